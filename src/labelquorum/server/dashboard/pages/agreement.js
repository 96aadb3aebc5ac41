// Which workers agree with one another beyond chance, and which do not.

import * as api from "../api.js";
import { el, fill, link, named } from "../dom.js";
import { count, counted, percent } from "../format.js";
import { squareMap } from "../heatmap.js";
import { empty, panel } from "../states.js";
import { shortTable } from "../table.js";

const LISTED = 15; // pairs that agree least

export function page({ stream }) {
  const map = el("div", { class: "maps" });
  const pairs = el("div");
  const node = el(
    "div",
    { class: "grid worker-grid" },
    panel("Cohen's kappa of every two workers", { note: "in percent; 0 is chance" }, map),
    panel("Pairs that agree least", { note: "with a 95 % interval", flush: true }, pairs),
  );
  let drawn = "";

  function show(data) {
    const report = JSON.stringify(data);
    if (report === drawn) return;
    drawn = report;
    const { workers, kappa } = data;
    if (workers.length < 2) {
      fill(map, empty("No pairs yet", "Two workers have to label the same open task."));
      fill(pairs);
      return;
    }
    const others = data.left_out ? `, ${counted(data.left_out, "worker")} left out` : "";
    const caption = `On the last ${counted(data.items, "open task")}${others}`;
    fill(
      map,
      squareMap({
        caption,
        classes: workers,
        matrix: kappa,
        tone: "accent",
        corner: "Worker",
        noun: "workers",
        says: (k, j) => sentence(data, k, j),
      }),
    );
    fill(pairs, listed(stream, data));
  }

  return {
    title: `Agreement in ${stream}`,
    head: el("div", { class: "page-head" }, el("h1", { tabindex: "-1" }, "Agreement")),
    node,
    skeleton: "cards",
    load: (signal) => api.get(api.pathOf(stream, "agreement"), {}, signal),
    show,
  };
}

function sentence({ workers, kappa, low, high, shared }, k, j) {
  const tasks = counted(shared[k][j], "task");
  if (k === j) return `${workers[k]} labelled ${tasks}`;
  const both = `${workers[k]} and ${workers[j]}`;
  if (kappa[k][j] === null) return `${both} share ${tasks}: no kappa`;
  return `${both}: ${percent(kappa[k][j])} (${percent(low[k][j])} to ${percent(high[k][j])}) on ${tasks}`;
}

function listed(stream, { workers, kappa, low, high, shared }) {
  const found = [];
  kappa.forEach((row, k) =>
    row.forEach((value, j) => {
      if (k < j && value !== null) found.push([value, k, j]);
    }),
  );
  found.sort((one, two) => one[0] - two[0]);
  const name = (k) => link(["s", stream, "workers", workers[k]], named(workers[k]));
  const rows = found.slice(0, LISTED).map(([value, k, j]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name(k)),
      el("td", {}, name(j)),
      el("td", { class: "number" }, percent(value)),
      el("td", { class: "number muted" }, `${percent(low[k][j])} to ${percent(high[k][j])}`),
      el("td", { class: "number" }, count(shared[k][j])),
    ),
  );
  if (!rows.length) return el("p", { class: "muted padded" }, "No two workers share a task.");
  const heads = [
    ["Worker"],
    ["Other"],
    ["Kappa", "number"],
    ["Interval", "number"],
    ["Tasks", "number"],
  ];
  return shortTable({ caption: "Pairs of workers that agree least", heads, rows });
}
