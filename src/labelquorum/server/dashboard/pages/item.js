// One item: what was answered, who spoke for it and who against, and what one more label would do.

import * as api from "../api.js";
import { el, fill, icon, link, named } from "../dom.js";
import { count, counted, percent, points, ratio } from "../format.js";
import { empty, meter, panel } from "../states.js";
import { shortTable } from "../table.js";

const MOST_CLASSES = 12;
const MOST_NAMES = 3;
const WORTH_TELLING = 0.05; // of log-odds; learn/reports.py says the same

export function page({ stream, name }) {
  const node = el("div");
  let shown = "";

  function show(data) {
    const report = JSON.stringify(data);
    if (report === shown) return;
    shown = report;
    if (data.label === null) {
      fill(
        node,
        empty(
          "No answer yet",
          `${counted(data.labels, "label")} so far. The answer comes with the chunk this item goes into.`,
        ),
      );
      return;
    }
    fill(
      node,
      verdict(stream, data),
      el("div", { class: "grid two" }, probabilities(data), nextLabel(stream, data)),
      evidence(stream, data),
    );
  }

  return {
    title: `${name} in ${stream}`,
    head: el(
      "div",
      { class: "page-head" },
      el("h1", { tabindex: "-1" }, named(name)),
      el("span", { class: "stretch" }),
      link(["s", stream, "items"], [icon("back"), "All items"], { class: "more-link" }),
    ),
    node,
    skeleton: "detail",
    load: (signal) => item(stream, name, signal),
    show,
  };
}

/** One item; an address cannot hold a name that is dots alone, so that one is searched for. */
async function item(stream, name, signal) {
  if (api.hasAddress(name)) return api.get(api.pathOf(stream, "items", name), {}, signal);
  const found = await api.get(api.pathOf(stream, "items"), { search: name, limit: 1000 }, signal);
  const one = found.items.find((other) => String(other.task) === name);
  if (!one)
    throw new api.Refused(
      404,
      `The task ${name} was not found among the first that have its name in theirs.`,
    );
  return { ...one, probabilities: null, open: null, why: null };
}

function verdict(stream, data) {
  const state = data.why?.truth_given
    ? "Its true label was given"
    : data.open === null
      ? "Whether it is open is not known"
      : data.open
        ? "Open: a late label still counts"
        : "Closed";
  return el(
    "section",
    { class: "panel verdict" },
    el("p", { class: "verdict-label" }, named(data.label)),
    el("p", { class: "verdict-sure" }, el("strong", {}, percent(data.confidence)), " sure"),
    el("p", { class: "verdict-why" }, because(stream, data)),
    el(
      "p",
      { class: "small muted" },
      `${counted(data.labels, "label")} · chunk ${count(data.chunk)} · ${state}${data.why && !data.why.truth_given ? " · In brackets: how sure that alone would make us" : ""}`,
    ),
  );
}

/** "Because w1 (0.93) outweighs w2 (0.71). owl is more frequent than wren (0.57)." */
function because(stream, { why, open, label }) {
  if (!why)
    return open !== false
      ? "Why is not known."
      : "Its labels were deleted once it was answered, so the reasons are gone. A longer grace keeps them.";
  if (why.truth_given) return "Because its true label was given.";
  const reasons = why.workers.map((one) => [whoSaid(stream, one, label), one.log_odds]);
  const prior = moreFrequent(why, label);
  reasons.sort(([, one], [, other]) => Math.abs(other) - Math.abs(one));
  const side = (chosen) =>
    reasons
      .filter(([, odds]) => chosen(odds))
      .map(([words, odds]) => [words, ` (${ratio(alone(Math.abs(odds)))})`]);
  const pros = side((odds) => odds >= WORTH_TELLING);
  const cons = side((odds) => odds <= -WORTH_TELLING);
  if (!pros.length) return ["No label speaks clearly for it.", ...prior];
  const s = pros.length === 1 ? "s" : "";
  const sum = reasons.reduce((total, [, odds]) => total + odds, 0);
  const verb = !cons.length ? ` say${s} so` : sum < 0 ? ` say${s} so, against ` : ` outweigh${s} `;
  return ["Because ", listed(pros), verb, cons.length ? listed(cons) : "", ".", ...prior];
}

/** What the class prior adds: it is no label of a worker. */
function moreFrequent({ prior_log_odds: odds, runner_up: other }, label) {
  if (odds === null || Math.abs(odds) < WORTH_TELLING) return [];
  const [often, rare] = odds > 0 ? [label, other] : [other, label];
  const sure = ratio(alone(Math.abs(odds)));
  return [" ", named(often), " is more frequent than ", named(rare), ` (${sure}).`];
}

/** The worker; and what was said, where it supports another class. */
function whoSaid(stream, one, label) {
  const surprising = (String(one.label) === String(label)) !== one.log_odds > 0;
  const who = link(["s", stream, "workers", one.worker], named(one.worker));
  return surprising ? [who, " by saying ", named(one.label)] : who;
}

const alone = (odds) => 1 / (1 + Math.exp(-odds));

function listed(parts) {
  const shown = parts.slice(0, MOST_NAMES);
  if (parts.length > MOST_NAMES) shown.push(`${count(parts.length - MOST_NAMES)} more`);
  return shown.flatMap((part, n) => [n === 0 ? "" : n === shown.length - 1 ? " and " : ", ", part]);
}

function probabilities({ probabilities: found, label }) {
  const rows = Object.entries(found ?? {}).sort(([, one], [, other]) => other - one);
  const body = rows
    .slice(0, MOST_CLASSES)
    .map(([name, prob]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, named(name, { title: name })),
        el("td", { class: "balance-bar" }, meter(prob, name === String(label) ? "accent" : "idle")),
        el("td", { class: "number" }, percent(prob)),
      ),
    );
  const rest = rows.slice(MOST_CLASSES).reduce((sum, [, prob]) => sum + prob, 0);
  return panel(
    "Probabilities",
    {
      note:
        rows.length > MOST_CLASSES
          ? `${count(rows.length - MOST_CLASSES)} other classes share ${percent(rest)}`
          : null,
    },
    shortTable({
      caption: "Probability of each class",
      heads: [["Class"], ["Bar"], ["Probability"]],
      rows: body,
      kind: "balance",
      unseenHead: true,
    }),
  );
}

function nextLabel(stream, { gain, open, why, confidence }) {
  if (open === null)
    return panel(
      "One more label",
      {},
      el("p", { class: "muted" }, "Whether the item is still open is not known."),
    );
  if (!open)
    return panel(
      "One more label",
      {},
      el(
        "p",
        { class: "muted" },
        "The item is closed: a label that comes now is counted as late, and changes nothing.",
      ),
    );
  const lines = [];
  if (gain) {
    lines.push(
      el(
        "p",
        {},
        "A label of an average worker would raise the chance that the answer is right by ",
        el("strong", {}, points(gain.mean)),
        `, from ${percent(confidence)}.`,
      ),
    );
    if (gain.worker !== null && gain.worker !== undefined)
      lines.push(
        el(
          "p",
          {},
          "Best to ask is ",
          link(["s", stream, "workers", gain.worker], named(gain.worker)),
          ": ",
          el("strong", {}, points(gain.worker_gain)),
          ".",
        ),
      );
  }
  if (why?.flips?.length)
    lines.push(
      el(
        "p",
        {},
        "Without ",
        listed(why.flips.map((one) => named(one))),
        " the answer would be another.",
      ),
    );
  if (why?.further_labels)
    lines.push(
      el(
        "p",
        {},
        `${counted(why.further_labels, "more average worker")} saying `,
        named(why.runner_up),
        " would flip it.",
      ),
    );
  return panel(
    "One more label",
    { note: "what it would likely do" },
    lines.length ? lines : el("p", { class: "muted" }, "Its effect is unknown."),
  );
}

function evidence(stream, { why, label }) {
  if (!why || why.truth_given) return null;
  const rows = why.workers.map((one) => [
    link(["s", stream, "workers", one.worker], named(one.worker), { class: "strong-link" }),
    named(one.label, { class: String(one.label) === String(label) ? "" : "other" }),
    one.log_odds,
  ]);
  if (why.prior_log_odds !== null)
    rows.push([
      el("span", { class: "muted" }, "How frequent the classes are"),
      "",
      why.prior_log_odds,
    ]);
  const most = Math.max(...rows.map(([, , odds]) => Math.abs(odds)), 1);
  const body = rows.map(([who, said, odds]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, who),
      el("td", {}, said),
      el("td", { class: "odds-cell" }, oddsBar(odds / most)),
      el("td", { class: "number" }, `${odds >= 0 ? "+" : "−"}${ratio(Math.abs(odds))}`),
      el("td", { class: "number wide" }, percent(alone(odds))),
    ),
  );
  const heads = [
    ["Worker"],
    ["Said"],
    ["Against or for", "odds-cell"],
    ["Log-odds", "number"],
    ["Alone", "number wide"],
  ];
  const note = `for ${label} against ${why.runner_up ?? "all else"}${why.heat > 1.005 ? `; all divided by ${ratio(why.heat)}, since labels of one item lean on each other` : ""}`;
  return panel(
    "Evidence by worker",
    { note, flush: true },
    shortTable({ caption: "What each label says for the answer", heads, rows: body }),
  );
}

function oddsBar(share) {
  const width = `${Math.abs(share) * 50}%`;
  const style = share >= 0 ? { left: "50%", width } : { right: "50%", width };
  return el(
    "span",
    { class: "odds", "aria-hidden": "true" },
    el("span", { class: "odds-full", data: { tone: share >= 0 ? "good" : "bad" }, style }),
  );
}
