// One worker: what they confuse compared with the crowd, how they changed, and what is odd.

import * as api from "../api.js";
import { lines } from "../charts.js";
import { el, fill, icon, link, named } from "../dom.js";
import { count, counted, flagWord, moment, percent } from "../format.js";
import { heatmap } from "../heatmap.js";
import { figure, panel } from "../states.js";
import { shortTable } from "../table.js";

const ENOUGH = 10; // recent labels; with fewer, nothing is marked

export function page({ stream, name, go }) {
  const figures = {
    skill: figure("Skill"),
    labels: figure("Labels given"),
    agreed: figure("Agrees with the answers"),
    crowd: figure("Agrees with the others, recently"),
  };
  const flags = el("div", { class: "warnings" });
  const maps = el("div", { class: "maps" });
  const confuses = el("div");
  let track = [];
  let changes = [];
  const chart = lines({
    label: "",
    height: 220,
    series: [
      { width: 0, band: "accent" },
      { width: 0 },
      { label: "they agree", tone: "accent", points: true },
      { label: "crowd", tone: "muted", dash: [5, 4] },
    ],
    xFormat: (x) => `chunk ${count(x)}`,
    xTick: count,
    whole: true,
    yFormat: (y) => percent(y, 0),
    range: (low) => [Math.min(0.4, Math.max(0, Math.floor((low - 0.05) * 10) / 10)), 1],
    marks: () =>
      changes.map((one) => ({ x: one.chunk, tone: one.after < one.before ? "bad" : "good" })),
  });
  const story = el("div", { class: "story" });
  const overTime = el("div", {}, chart.node, story);
  const over = panel(
    "Agreement with the others, over time",
    { note: "band: 95 % interval · dashed: the crowd on the same chunks" },
    overTime,
  );
  const forget = forgetting(stream, name, go);
  const node = el(
    "div",
    {},
    flags,
    el(
      "dl",
      { class: "figures four" },
      Object.values(figures).map((one) => one.node),
    ),
    el(
      "div",
      { class: "grid worker-grid" },
      panel("What they say, by the truth", { note: "in percent of each row" }, maps),
      el(
        "div",
        { class: "stack" },
        over,
        panel("Classes they confuse", { note: "more than the crowd does", flush: true }, confuses),
      ),
    ),
    forget,
  );
  let drawn = "";

  function show(data) {
    showFlags(flags, stream, data.flags);
    figures.skill.set(
      percent(data.skill),
      data.low === null ? "" : `${percent(data.low)} to ${percent(data.high)}, at 95 %`,
    );
    figures.labels.set(count(data.labels), counted(data.classes.length, "class", "classes"));
    figures.agreed.set(
      data.labels ? percent(data.agreed / data.labels) : "–",
      `${count(data.agreed)} of ${count(data.labels)}`,
    );
    track = data.track ?? [];
    changes = data.changes ?? [];
    const last = track.at(-1);
    if (last)
      figures.crowd.set(
        percent(last.agreement),
        `the crowd ${percent(last.crowd)}, on the last ${counted(last.labels, "label")}`,
        isBehind(last) ? "warn" : "",
      );
    else figures.crowd.set("–", "too few labels");
    const report = JSON.stringify([data.confusion, data.crowd_confusion]);
    if (report !== drawn) {
      drawn = report;
      const { classes, confusion: matrix, crowd_confusion: crowd } = data;
      fill(
        maps,
        heatmap({ caption: "They", classes, matrix, other: crowd }),
        crowd &&
          heatmap({ caption: "The crowd", classes, matrix: crowd, other: matrix, tone: "idle" }),
      );
    }
    showTrack();
    fill(confuses, confusions(data.confuses ?? []));
  }

  function showTrack() {
    if (track.length < 2) {
      fill(overTime, el("p", { class: "muted" }, "Too few labels to tell how they changed."));
      return;
    }
    if (!chart.node.isConnected) fill(overTime, chart.node, story);
    const column = (key) => track.map((one) => one[key]);
    const last = track.at(-1);
    const report = changes.map(
      (one) =>
        `From chunk ${count(one.chunk)} on they agree on ${percent(one.after)}, before on ${percent(one.before)}.`,
    );
    const since = track[0].at
      ? `since ${moment(track[0].at)}`
      : `since chunk ${count(track[0].chunk)}`;
    chart.set(
      [column("chunk"), column("high"), column("low"), column("agreement"), column("crowd")],
      `Agreement with the others over ${counted(track.length, "stretch", "stretches")}, last ${percent(last.agreement)}, the crowd ${percent(last.crowd)}. ${report.join(" ")}`,
      since,
    );
    fill(
      story,
      report.map((one) => el("p", { class: "small" }, one)),
    );
  }

  return {
    title: `${name} in ${stream}`,
    head: el(
      "div",
      { class: "page-head" },
      el("h1", { tabindex: "-1" }, named(name)),
      el("span", { class: "stretch" }),
      link(["s", stream, "workers"], [icon("back"), "All workers"], { class: "more-link" }),
    ),
    node,
    skeleton: "cards",
    async load(signal) {
      const both = [worker(stream, name, signal), api.mayRule(stream)];
      const [data, may] = await Promise.all(both);
      forget.hidden = !may;
      return data;
    },
    show,
    stop: () => chart.stop(),
  };
}

/** Whether the worker clearly agrees less with the others than the crowd does. */
function isBehind({ labels, high, crowd }) {
  return labels >= ENOUGH && high !== null && crowd !== null && high < crowd;
}

/** One worker; one whose name is dots alone is searched for, and less is known of them. */
async function worker(stream, name, signal) {
  if (api.hasAddress(name)) return api.get(api.pathOf(stream, "workers", name), {}, signal);
  const asked = { search: name, sort: "worker", limit: 100 };
  const found = await api.get(api.pathOf(stream, "workers"), asked, signal);
  const one = found.workers.find((other) => String(other.worker) === name);
  if (one) return one;
  throw new api.Refused(
    404,
    `The worker ${name} was not found among the first that have this name in theirs.`,
  );
}

function showFlags(host, stream, flags) {
  const report = JSON.stringify(flags);
  if (host.dataset.report === report) return;
  host.dataset.report = report;
  fill(
    host,
    flags.map((one) => {
      const partners = (one.partners ?? []).map((other) =>
        link(["s", stream, "workers", other], named(other)),
      );
      return el(
        "div",
        { class: "warning", data: { code: one.flag } },
        icon("alert"),
        el("p", {}, el("strong", {}, flagWord(one.flag)), ` · ${one.says}`),
        partners.length ? el("span", { class: "partners" }, partners) : null,
      );
    }),
  );
}

function confusions(rows) {
  if (!rows.length) return el("p", { class: "muted padded" }, "None more than the crowd does.");
  const heads = [["Truth"], ["They say"], ["How often", "number"], ["The crowd", "number"]];
  const body = rows.map((one) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, named(one.truth)),
      el("td", {}, named(one.says)),
      el("td", { class: "number" }, percent(one.prob)),
      el("td", { class: "number muted" }, percent(one.crowd)),
    ),
  );
  return shortTable({ caption: "Classes they confuse more than the crowd does", heads, rows: body });
}

/** A person's right: to be removed for good. It is asked twice. */
function forgetting(stream, name, go) {
  const asked = el("p", { class: "small muted" }, "If this worker asks to be removed:");
  if (!api.hasAddress(name))
    return el(
      "div",
      { class: "danger-zone" },
      asked,
      el("pre", { class: "code" }, `labelquorum forget ${name} --stream … --store …`),
    );
  const report = el("p", { class: "form-error", role: "alert" });
  const close = () => dialog.close();

  async function forget() {
    try {
      await api.send("DELETE", api.pathOf(stream, "workers", name));
      close();
      go(["s", stream, "workers"]);
    } catch (error) {
      fill(report, icon("alert"), error.message);
    }
  }

  const dialog = el(
    "dialog",
    { class: "dialog", "aria-labelledby": "forget" },
    el("h2", { id: "forget" }, "Forget ", named(name), "?"),
    el(
      "p",
      {},
      "The id, the matrix, the history and all labels that are still held go for good. Answers stay: they name nobody.",
    ),
    report,
    el(
      "div",
      { class: "actions" },
      el("button", { class: "button", type: "button", on: { click: close } }, "Cancel"),
      el(
        "button",
        { class: "button danger", type: "button", on: { click: forget } },
        "Forget for good",
      ),
    ),
  );
  const open = el(
    "button",
    { class: "button", type: "button", on: { click: () => dialog.showModal() } },
    "Forget this person…",
  );
  return el("div", { class: "danger-zone" }, asked, open, dialog);
}
