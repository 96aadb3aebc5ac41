// How many independent judges the workers count for, who errs together, and what the order does.

import * as api from "../api.js";
import { el, fill, link, named } from "../dom.js";
import { count, counted, percent, ratio } from "../format.js";
import { empty, figure, panel, whisker } from "../states.js";
import { shortTable } from "../table.js";

export function page({ stream }) {
  const figures = {
    effective: figure("Independent judges"),
    judges: figure("Judges"),
    correlation: figure("Correlation of errors"),
  };
  const says = el("p", { class: "jury-text" });
  const body = el("div", { class: "grid" });
  let drawn = "";

  function show(data) {
    const report = JSON.stringify(data);
    if (report === drawn) return;
    drawn = report;
    if (data.n_judges < 2) {
      fill(body, empty("No jury yet", "Two workers have to label the same open task."));
      return;
    }
    const isGold = data.reference === "gold";
    const tasks = counted(data.tasks, isGold ? "gold task" : "task");
    figures.effective.set(one(data.effective), between(data.low, data.high, one));
    const others = data.left_out ? `${count(data.left_out)} left out` : "";
    figures.judges.set(count(data.n_judges), others);
    figures.correlation.set(ratio(data.correlation), `${tasks}${isGold ? "" : ", by consensus"}`);
    says.textContent = data.text;
    fill(
      body,
      el(
        "dl",
        { class: "figures" },
        Object.values(figures).map((each) => each.node),
      ),
      says,
      panel("Judges", { note: "with a 95 % interval", flush: true }, judges(stream, data)),
      panel("Groups that err together", { note: "beyond the others", flush: true }, groups(data)),
      panel(
        "Order of the answers",
        { note: "judges asked in two orders", flush: true },
        orders(stream, data),
      ),
    );
  }

  return {
    title: `Jury of ${stream}`,
    head: el("div", { class: "page-head" }, el("h1", { tabindex: "-1" }, "Jury")),
    node: body,
    skeleton: "cards",
    load: (signal) => api.get(api.pathOf(stream, "jury"), {}, signal),
    show,
  };
}

const NAMED = 3;
const one = (value) => (value === null ? "–" : value.toFixed(1));
const between = (low, high, write) =>
  low === null || high === null ? "" : `${write(low)} to ${write(high)}`;
const number = (...children) => el("td", { class: "number" }, ...children);
const none = (sentence) => el("p", { class: "muted padded" }, sentence);

function judges(stream, data) {
  const rows = data.judges.map((row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, link(["s", stream, "workers", row.worker], named(row.worker))),
      number(
        el(
          "span",
          { class: "measured", title: between(row.low, row.high, percent) },
          whisker(row.reliability, row.low, row.high),
          percent(row.reliability),
        ),
      ),
      el("td", { class: "muted" }, row.by),
      number(count(row.labels)),
      el("td", { class: "wide" }, what(row)),
    ),
  );
  const heads = [
    ["Judge"],
    ["Right", "number"],
    ["By"],
    ["Labels", "number"],
    ["What it is", "wide"],
  ];
  return shortTable({ caption: "Judges and how often each is right", heads, rows });
}

function what({ worker_kind, model, prompt, order }) {
  const known = [worker_kind, model, prompt, order].filter((part) => part !== null);
  return known.length ? known.join(" · ") : "–";
}

function groups({ groups: found }) {
  if (!found.length) return none("No two judges err together more than the others do.");
  const rows = found.map((row) =>
    el(
      "tr",
      { title: row.judges.join(", ") },
      el("th", { scope: "row" }, row.by === "model" ? row.group : some(row.judges)),
      number(count(row.judges.length)),
      number(ratio(row.correlation)),
      number(el("span", { class: "muted" }, between(row.low, row.high, ratio))),
      number(one(row.effective)),
      el("td", {}, row.excess_low > 0 ? "beyond the others" : "as the others"),
    ),
  );
  const heads = [
    ["Group"],
    ["Judges", "number"],
    ["Correlation", "number"],
    ["Interval", "number"],
    ["Count as", "number"],
    ["Err together"],
  ];
  return shortTable({ caption: "Groups of judges and how their errors correlate", heads, rows });
}

// A group that was found has no name of its own.
function some(judges) {
  const rest = judges.length - NAMED;
  return judges.slice(0, NAMED).join(", ") + (rest > 0 ? ` and ${count(rest)} more` : "");
}

function orders(stream, { order_effects: found }) {
  if (!found.length)
    return none("No judge has two orders: give workers their model, prompt and order.");
  const rows = found.map((row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, link(["s", stream, "workers", row.worker], named(row.worker))),
      el("td", {}, `${row.order}, ${row.other_order}`),
      number(percent(row.flips)),
      number(el("span", { class: "muted" }, between(row.flips_low, row.flips_high, percent))),
      el("td", {}, row.first_shown ? "the first shown" : `${row.label} in ${row.order}`),
      number(percent(row.shift)),
      number(el("span", { class: "muted" }, between(row.low, row.high, percent))),
      number(count(row.tasks)),
    ),
  );
  const heads = [
    ["Judge"],
    ["Orders"],
    ["Flips", "number"],
    ["Interval", "number"],
    ["Prefers"],
    ["By", "number"],
    ["Interval", "number"],
    ["Tasks", "number"],
  ];
  return shortTable({ caption: "How verdicts change with the order of the answers", heads, rows });
}
