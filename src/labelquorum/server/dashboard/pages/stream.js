// One stream in figures: how much, how sure, how fast, and what needs a person.

import * as api from "../api.js";
import { certificatePanel } from "../certificate.js";
import { histogram, lines } from "../charts.js";
import { el, fill, icon, link, named } from "../dom.js";
import { brief, count, counted, moment, percent, rate, seconds, time } from "../format.js";
import { empty, figure, panel, unsureBelow } from "../states.js";
import { shortTable } from "../table.js";

const EVERY = 4000; // counters that change without an event
const MOST_CLASSES = 10;

export function page({ stream }) {
  const warnings = el("div", { class: "warnings" });
  const figures = {
    decided: figure("Items decided"),
    rate: figure("Labels per second"),
    waiting: figure("Waiting"),
    update: figure("Update takes"),
    lag: figure("Chunks behind"),
    error: figure("Expected error"),
    workers: figure("Workers"),
  };
  const decided = lines({
    label: "",
    time: true,
    series: [{ label: "decided", tone: "accent", fill: true, format: count }],
    xFormat: moment,
    yFormat: brief,
    range: (low, high) => [0, Math.max(high, 1)], // what is filled is read from nothing
  });
  const sureness = lines({
    label: "",
    time: true,
    series: [{ label: "mean confidence", tone: "good", format: percent }],
    xFormat: moment,
    yFormat: (y) => percent(y, 0),
    range: (low) => [Math.max(0, Math.floor((low - 0.02) * 10) / 10), 1],
  });
  const doubts = histogram();
  const unsure = el("span");
  const balance = el("div");
  const chunks = el("div");
  const charts = el(
    "div",
    { class: "grid two" },
    panel("Items decided", { note: "over the last chunks" }, decided.node),
    panel("Mean confidence", { note: "of each chunk's answers" }, sureness.node),
    panel(
      "Confidence of all answers",
      {
        note: unsure,
        aside: link(["s", stream, "items"], "See the unsure", {
          class: "more-link",
          query: { show: "unsure" },
        }),
      },
      doubts.node,
    ),
    panel("Class balance", { note: "answers; the tick is what the model expects" }, balance),
  );
  const certificate = certificatePanel(stream);
  const late = panel("Last chunks", { flush: true }, chunks);
  const body = el("div", {}, charts, certificate.node, late);
  const node = el(
    "div",
    {},
    warnings,
    el(
      "dl",
      { class: "figures seven" },
      Object.values(figures).map((one) => one.node),
    ),
    body,
  );

  function show(data) {
    showWarnings(warnings, stream, data.warnings);
    showFigures(figures, data);
    if (!data.counts.answered_items && !data.last_chunks.length) {
      if (!data.counts.waiting_labels && body.querySelector(".first-labels")) return; // still so
      fill(body, waitingState(stream, data));
      return;
    }
    if (!charts.isConnected) fill(body, charts, certificate.node, late);
    certificate.show();
    showOverTime(decided, sureness, data);
    showConfidence(doubts, unsure, data.confidence);
    fill(balance, balanceTable(data.balance));
    fill(chunks, chunkTable(data.last_chunks));
  }

  return {
    title: stream,
    head: el("h1", { class: "unseen", tabindex: "-1" }, "Overview of ", named(stream)),
    node,
    skeleton: "cards",
    every: EVERY,
    load: (signal) => api.get(api.pathOf(stream, "summary"), {}, signal),
    show,
    stop() {
      decided.stop();
      sureness.stop();
    },
  };
}

function showWarnings(host, stream, warnings) {
  const report = JSON.stringify(warnings);
  if (host.dataset.report === report) return; // nothing new: leave the focus where it is
  host.dataset.report = report;
  fill(
    host,
    warnings.map((one) => {
      const where =
        one.worker !== undefined && one.worker !== null
          ? link(["s", stream, "workers", one.worker], "See the worker")
          : one.label !== undefined && one.label !== null
            ? link(["s", stream, "items"], "See the items")
            : null;
      return el(
        "div",
        { class: "warning", data: { code: one.code } },
        icon("alert"),
        el("p", {}, who(one), one.says),
        where,
      );
    }),
  );
}

/** The worker's name, where the sentence leaves it out. */
function who({ worker, says }) {
  const missing = worker !== undefined && worker !== null && !says.includes(String(worker));
  return missing ? [el("strong", {}, named(worker)), ": "] : null;
}

function showFigures(
  figures,
  { counts, labels_per_second, update, chunks_behind, expected_error, workers, flagged, last_chunks },
) {
  figures.decided.set(
    count(counts.answered_items),
    `${count(counts.version)} ${counts.version === 1 ? "chunk" : "chunks"} learned`,
  );
  figures.rate.set(
    rate(labels_per_second),
    last_chunks.length ? `last cut ${time(last_chunks[0].cut_at)}` : "",
  );
  figures.waiting.set(
    count(counts.waiting_items),
    `${counts.waiting_items === 1 ? "item" : "items"}, with ${counted(counts.waiting_labels, "label")}`,
  );
  figures.update.set(
    seconds(update?.p50_seconds),
    update?.p99_seconds ? `99 % within ${seconds(update.p99_seconds)}` : "cut to answered",
  );
  figures.lag.set(
    count(chunks_behind),
    chunks_behind ? "cut and not learned yet" : "up to date",
    chunks_behind > 10 ? "warn" : "",
  );
  if (expected_error) {
    const { estimate, low, high, n_gold } = expected_error;
    const by = n_gold ? `corrected on ${count(n_gold)} gold` : "by the model, no gold";
    figures.error.set(percent(estimate), `${percent(low)} to ${percent(high)} · ${by}`);
  } else figures.error.set("–", "no answers yet");
  figures.workers.set(
    count(workers),
    flagged ? `${count(flagged)} flagged` : "none flagged",
    flagged ? "note" : "",
  );
}

function waitingState(stream, { counts, classes }) {
  if (counts.waiting_labels) {
    return empty(
      "Labels are coming in",
      `${counted(counts.waiting_labels, "label")} of ${counted(counts.waiting_items, "item")} wait. The first answers come with the first full chunk, or when its time is up.`,
    );
  }
  return empty(
    "No labels yet",
    `This stream knows ${counted(classes.length, "class", "classes")} and waits for its first label. Send some from Python, or with any HTTP client. Put a key with the scope write in the place of KEY.`,
    el(
      "div",
      { class: "first-labels" },
      snippet("Python", inPython(stream, classes)),
      snippet("Shell", inShell(stream, classes)),
    ),
  );
}

const FIRST = (classes) => ({ task: "photo1", worker: "ann", label: classes[0] ?? "owl" });

function inPython(stream, classes) {
  return [
    "import labelquorum as lq",
    "",
    `client = lq.Client(${JSON.stringify(location.origin)}, "KEY")`,
    `client.send(${JSON.stringify(stream)}, [${JSON.stringify(FIRST(classes))}])`,
  ].join("\n");
}

function inShell(stream, classes) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  return [
    `curl ${quoted(location.origin + api.pathOf(stream, "labels"))}`,
    `-H 'Authorization: Bearer KEY' -H 'Content-Type: application/json'`,
    `-d ${quoted(JSON.stringify([FIRST(classes)]))}`,
  ].join(" \\\n  ");
}

/** Lines to take away; where a page may not write to the clipboard they are marked. */
function snippet(words, text) {
  const code = el("pre", { class: "code", tabindex: "0", "aria-label": words }, text);
  const copy = el(
    "button",
    { class: "button small", type: "button", "aria-label": `Copy the lines for ${words}` },
    "Copy",
  );
  copy.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(text);
      fill(copy, "Copied");
    } catch {
      fill(copy, "Marked");
    }
  });
  return el("div", { class: "snippet" }, el("p", {}, words, copy), code);
}

function showOverTime(decided, sureness, { over_time: points, counts }) {
  const known = points.filter((one) => one.at !== null);
  const x = known.map((one) => one.at);
  let total = counts.answered_items; // at the end of the curve; it is followed back from there
  const sums = [];
  for (const one of known.toReversed()) {
    sums.unshift(total);
    total = Math.max(0, total - one.new_items);
  }
  const confidences = known.map((one) => one.mean_confidence);
  const last = known.at(-1);
  const since = known.length ? `since ${time(known[0].at)}` : "";
  decided.set(
    [x, sums],
    `Items decided: ${count(sums.at(-1))} in all, ${count((sums.at(-1) ?? 0) - (sums[0] ?? 0))} ${since}.`,
    since,
  );
  sureness.set(
    [x, confidences],
    `Mean confidence of the answers of the last chunk: ${percent(last?.mean_confidence)}.`,
    last ? `last ${percent(last.mean_confidence)}` : "",
  );
}

function showConfidence(chart, note, { edges, items }) {
  const all = items.reduce((sum, n) => sum + n, 0);
  const threshold = unsureBelow();
  const below = items.reduce((sum, n, i) => sum + (edges[i + 1] <= threshold + 1e-9 ? n : 0), 0);
  fill(note, `${count(below)} (${percent(all ? below / all : 0)}) below ${percent(threshold, 0)}`);
  chart.set(items, {
    ticks: ["0 %", "25 %", "50 %", "75 %", "100 %"],
    titles: items.map(
      (n, i) => `${percent(edges[i], 0)} to ${percent(edges[i + 1], 0)}: ${counted(n, "item")}`,
    ),
    tone: (n) => (edges[n + 1] <= threshold + 1e-9 ? "warn" : "accent"),
    summary: `Confidence of ${counted(all, "answer")}: ${count(below)} at ${percent(threshold, 0)} or less, ${count(all - below)} above.`,
  });
}

function balanceTable(rows) {
  const sorted = [...rows].sort((one, other) => other.items - one.items);
  const most = Math.max(...sorted.map((one) => Math.max(one.share, one.prior ?? 0)), 0.01);
  const width = (share) => `${(share / most) * 100}%`;
  const body = sorted
    .slice(0, MOST_CLASSES)
    .map((one) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, named(one.label, { title: String(one.label) })),
        el(
          "td",
          { class: "balance-bar" },
          el(
            "span",
            { class: "track", "aria-hidden": "true" },
            el("span", { class: "track-full", style: { width: width(one.share) } }),
            one.prior === null
              ? null
              : el("span", { class: "track-tick", style: { left: width(one.prior) } }),
          ),
        ),
        el("td", { class: "number" }, percent(one.share)),
        el("td", { class: "number muted wide" }, count(one.items)),
      ),
    );
  const rest = sorted.length - MOST_CLASSES;
  return [
    shortTable({
      caption: "Answers by class",
      heads: [["Class"], ["Bar"], ["Share"], ["Items"]],
      rows: body,
      kind: "balance",
      unseenHead: true,
    }),
    rest > 0
      ? el("p", { class: "small muted" }, `and ${counted(rest, "class", "classes")} more`)
      : null,
  ];
}

const STATES = {
  applied: ["Learned", "good"],
  cut: ["Cut", "warn"],
  quarantined: ["Quarantined", "bad"],
};

function chunkTable(chunks) {
  const heads = [
    ["Chunk"],
    ["State"],
    ["Items", "number"],
    ["Labels", "number wide"],
    ["Cut at", "number"],
    ["Took", "number wide"],
    ["What happened", "wide"],
  ];
  const body = chunks.map((one) => {
    const [words, tone] = STATES[one.state] ?? [one.state, ""];
    const took = one.applied_at ? seconds(Math.max(0, one.applied_at - one.cut_at)) : "–";
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, count(one.id)),
      el("td", {}, el("span", { class: "chip", data: { tone } }, words)),
      el("td", { class: "number" }, count(one.items)),
      el("td", { class: "number wide" }, count(one.labels)),
      el("td", { class: "number", title: moment(one.cut_at) }, time(one.cut_at)),
      el("td", { class: "number wide" }, took),
      el(
        "td",
        { class: "wide muted" },
        one.error ?? (one.attempts > 1 ? `${count(one.attempts)} attempts` : ""),
      ),
    );
  });
  return shortTable({ caption: "The ten newest chunks", heads, rows: body });
}
