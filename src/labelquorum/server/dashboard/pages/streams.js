// All streams with their counters, and a form that makes another.

import * as api from "../api.js";
import { spark } from "../charts.js";
import { el, fill, icon, link, named } from "../dom.js";
import { brief, count, counted, inOurWords, rate } from "../format.js";
import { empty, field, figure, select } from "../states.js";

const EVERY = 2000;
const LONGEST = 256; // characters of a name

export function page({ go }) {
  const form = creation(go);
  const open = el(
    "button",
    {
      class: "button primary",
      type: "button",
      hidden: true,
      on: { click: () => form.showModal() },
    },
    icon("plus"),
    "New stream",
  );
  const figures = {
    rate: figure("Labels per second"),
    decided: figure("Items decided"),
    waiting: figure("Labels waiting"),
    undecided: figure("Items undecided"),
  };
  const body = el("tbody", { role: "rowgroup" });
  const table = el(
    "table",
    { class: "plain streams", role: "table" },
    el("caption", { class: "unseen" }, "Streams and what they hold"),
    head(),
    body,
  );
  const box = el("div", { class: "panel flush" }, table);
  const rows = new Map();

  function show({ details, may }) {
    open.hidden = !may;
    if (!details.length) {
      const start = may && el(
        "button",
        { class: "button primary", type: "button", on: { click: () => form.showModal() } },
        "Make the first stream",
      );
      fill(
        box,
        empty(
          "No streams yet",
          "A stream takes labels for one question, such as “Which bird is this?”, and answers its items as they come.",
          start,
        ),
      );
      return;
    }
    if (!table.isConnected) fill(box, table);
    const sum = (of) => details.reduce((total, one) => total + (of(one) ?? 0), 0);
    figures.rate.set(rate(sum((one) => one.labels_per_second)), "over all streams");
    figures.decided.set(
      count(sum((one) => one.counts.answered_items)),
      counted(details.length, "stream"),
    );
    figures.waiting.set(count(sum((one) => one.counts.waiting_labels)), "not cut into a chunk yet");
    figures.undecided.set(
      count(sum((one) => one.counts.waiting_items)),
      "with labels, and no answer yet",
    );
    const here = new Set(details.map((one) => one.name));
    for (const [name, row] of rows) {
      if (!here.has(name)) {
        row.remove();
        rows.delete(name);
      }
    }
    details.forEach((one, n) => {
      if (!rows.has(one.name)) rows.set(one.name, rowOf(one.name));
      const row = rows.get(one.name);
      if (body.children[n] !== row) body.insertBefore(row, body.children[n] ?? null);
      showRow(row, one);
    });
  }

  return {
    title: "Streams",
    head: el(
      "div",
      { class: "page-head" },
      el("h1", { tabindex: "-1" }, "Streams"),
      el("span", { class: "stretch" }),
      open,
    ),
    node: el(
      "div",
      {},
      el(
        "dl",
        { class: "figures four" },
        Object.values(figures).map((one) => one.node),
      ),
      box,
      form,
    ),
    skeleton: "table",
    every: EVERY,
    async load(signal) {
      const [{ details }, may] = await Promise.all([
        api.get("/v1/streams", { full: true }, signal),
        api.mayRule(),
      ]);
      return { details, may };
    },
    show,
  };
}

const COLUMNS = [
  ["Stream"],
  ["Labels/s", "number"],
  ["Decided", "number"],
  ["Waiting labels", "number wide"],
  ["Undecided", "number"],
  ["Chunks behind", "number wide"],
  ["Lately", "spark-cell"],
];

function head() {
  return el(
    "thead",
    {},
    el(
      "tr",
      {},
      COLUMNS.map(([words, kind]) => el("th", { scope: "col", class: kind }, words)),
    ),
  );
}

function rowOf(name) {
  const first = el(
    "th",
    { scope: "row", role: "rowheader" },
    link(["s", name], named(name), { class: "strong-link" }),
    el("p", { class: "small muted" }),
  );
  return el(
    "tr",
    { role: "row" },
    first,
    COLUMNS.slice(1).map(([words, kind]) =>
      el("td", { class: kind, role: "cell", data: kind === "spark-cell" ? {} : { label: words } }),
    ),
  );
}

function showRow(row, one) {
  const { labels_per_item: wanted } = one.rules;
  const [first, ...cells] = row.children;
  const about = `${counted(one.classes.length, "class", "classes")} · ${counted(wanted, "label")} an item`;
  const small = first.querySelector("p");
  if (small.textContent !== about) small.textContent = about;
  const values = [
    rate(one.labels_per_second),
    brief(one.counts.answered_items),
    brief(one.counts.waiting_labels),
    brief(one.counts.waiting_items),
    count(one.chunks_behind),
  ];
  values.forEach((value, n) => {
    if (cells[n].textContent !== value) cells[n].textContent = value;
  });
  cells[4].dataset.tone = one.chunks_behind > 10 ? "warn" : "";
  fill(
    cells[5],
    spark(
      one.spark,
      `Labels in the last ${one.spark.length} steps, most recently ${count(one.spark.at(-1) ?? 0)}`,
    ),
  );
}

/** What keeps a stream from being made, as a sentence; null for nothing. */
function unfit(name, classes) {
  if (name.length > LONGEST)
    return `A name has ${count(LONGEST)} characters at most. This one has ${count(name.length)}.`;
  const joined = classes.find((one) => one.includes(","));
  if (joined !== undefined)
    return `Write one class a line: “${joined}” has a comma. A class with a comma in its name is made over the API.`;
  if (classes.length === 1)
    return "One class leaves nothing to decide. Write two or more, or none: then every new label makes a class.";
  return null;
}

/** A dialog in which a stream is made. */
function creation(go) {
  const report = el("p", { class: "form-error", role: "alert" });
  const parts = {
    name: el("input", { name: "name", required: true, autocomplete: "off" }),
    classes: el("textarea", { rows: 3, spellcheck: "false", placeholder: "owl\nwren" }),
    labels: el("input", { type: "number", min: 1, value: 1, required: true }),
    items: el("input", { type: "number", min: 1, value: 50, required: true }),
    grace: select(
      [
        ["", "For good"],
        ["604800", "A week"],
        ["86400", "A day"],
        ["3600", "An hour"],
        ["0", "Close it at once"],
      ],
      "",
    ),
  };
  const close = () => node.close();

  async function make(event) {
    event.preventDefault();
    const classes = parts.classes.value
      .split("\n")
      .map((one) => one.trim())
      .filter(Boolean);
    const amiss = unfit(parts.name.value, classes);
    fill(report, amiss && [icon("alert"), amiss]);
    if (amiss) return;
    const rules = {
      labels_per_item: Number(parts.labels.value),
      chunk_items: Number(parts.items.value),
      grace: parts.grace.value === "" ? null : Number(parts.grace.value),
    };
    const body = { name: parts.name.value, settings: classes.length ? { classes } : {}, rules };
    try {
      const made = await api.send("POST", "/v1/streams", body);
      close();
      go(["s", made.name]);
    } catch (error) {
      fill(report, icon("alert"), inOurWords(error.message));
    }
  }

  const node = el(
    "dialog",
    { class: "dialog", "aria-labelledby": "new-stream" },
    el(
      "form",
      { on: { submit: make } },
      el("h2", { id: "new-stream" }, "New stream"),
      field("Name", parts.name, "It can be changed later, by the service or the command line."),
      field(
        "Classes",
        parts.classes,
        "One a line, two or more. Leave it empty and every new label makes a class.",
      ),
      el(
        "div",
        { class: "pair" },
        field("Labels per item", parts.labels, "With this number it is answered at once."),
        field("Items a chunk", parts.items),
      ),
      field(
        "Keep answered items open for",
        parts.grace,
        "Labels of an open item change its answer, and you see the reasons and whom to ask next.",
      ),
      report,
      el(
        "div",
        { class: "actions" },
        el("button", { class: "button", type: "button", on: { click: close } }, "Cancel"),
        el("button", { class: "button primary", type: "submit" }, "Make stream"),
      ),
    ),
  );
  return node;
}
