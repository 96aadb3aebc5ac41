// All items: searched, sorted, paged; those without an answer first, then the least sure.

import * as api from "../api.js";
import { el, fill, link, named } from "../dom.js";
import { PAGE, asked, finder } from "../finder.js";
import { count, percent } from "../format.js";
import { meter, select, unsureBelow } from "../states.js";

const SORTS = [
  ["", "Undecided, then least sure"],
  ["-confidence", "Most sure first"],
  ["newest", "Newest first"],
  ["task", "Task"],
];
const WORDS = {
  heading: "Items",
  one: "item",
  searched: "tasks",
  caption: "Items, their answers and how sure they are",
  fresh: "New answers",
  unfit: ["Nothing matches", "No item fits this search and these filters."],
  none: ["No items yet", "Items appear with their first label."],
};

export function page({ stream, query }) {
  const wanted = asked(query, { search: "", sort: "", label: "", show: "" });
  const shows = [
    ["", "All items"],
    ["undecided", "Undecided"],
    ["unsure", `Unsure, below ${percent(unsureBelow(), 0)}`],
  ];
  const label = el("select", { "aria-label": "Answer" });
  return finder({
    stream,
    kind: "items",
    wanted,
    choices: {
      show: select(shows, wanted.show, { "aria-label": "Which items" }),
      label,
      sort: select(SORTS, wanted.sort, { "aria-label": "Order" }),
    },
    source: (now) => report(stream, now, label.options.length > 0),
    columns: columns(stream),
    words: WORDS,
    ordered: (sort) => sort || "confidence",
    onFirst({ classes }) {
      if (classes) showClasses(label, classes, wanted.label);
    },
  });
}

function showClasses(host, classes, chosen) {
  fill(
    host,
    el("option", { value: "" }, "Any answer"),
    classes.map((one) =>
      el("option", { value: String(one), selected: String(one) === chosen }, String(one)),
    ),
  );
}

/** The source, whose first page also tells the classes and, of all items, how many there are. */
function report(stream, wanted, classesKnown) {
  const rows = source(stream, wanted);
  const plain = !wanted.search && !wanted.label && !wanted.show;
  return async (cursor, signal) => {
    if (cursor !== null || (classesKnown && !plain)) return rows(cursor, signal);
    // The summary is made once for all who look, and the first time may take long to make.
    const about = api.pathOf(stream, ...(classesKnown ? ["summary"] : []));
    const [{ classes, counts }, first] = await Promise.all([
      api.get(about, {}, signal),
      rows(null, signal),
    ]);
    if (plain) first.total = counts.answered_items + counts.waiting_items;
    return { ...first, classes };
  };
}

/** Pages of items: where nothing else is asked for, the undecided come before the answered. */
function source(stream, { search, sort, label, show }) {
  const path = api.pathOf(stream, "items");
  const first = !label && show !== "unsure" && sort === "";
  return async (cursor, signal) => {
    const phase = cursor?.phase ?? (show === "undecided" || first ? "undecided" : "answered");
    const common = { search, limit: PAGE, cursor: cursor?.at };
    const asked =
      phase === "undecided"
        ? { ...common, undecided: true }
        : {
            ...common,
            label,
            sort: sort || "confidence",
            confidence_below: show === "unsure" ? unsureBelow() : null,
          };
    const page = await api.get(path, asked, signal);
    const known = { total: first && show === "" ? null : page.total };
    if (page.next !== null) return { ...known, rows: page.items, next: { phase, at: page.next } };
    if (phase === "undecided" && show !== "undecided") {
      const next = { phase: "answered", at: null };
      if (page.items.length >= PAGE / 4) return { ...known, rows: page.items, next };
      const more = await source(stream, { search, sort, label, show })(next, signal);
      return { ...more, rows: [...page.items, ...more.rows] };
    }
    return { ...known, rows: page.items, next: null };
  };
}

function columns(stream) {
  return [
    {
      head: "Task",
      sort: "task",
      class: "grow",
      cell: (row) =>
        link(["s", stream, "items", row.task], named(row.task), {
          class: "strong-link",
          title: String(row.task),
        }),
    },
    {
      head: "Answer",
      class: "mid",
      cell: (row) =>
        row.label === null
          ? el("span", { class: "chip", data: { tone: "idle" } }, "Undecided")
          : named(row.label, { title: String(row.label) }),
    },
    {
      head: "Confidence",
      sort: "confidence",
      sorts: ["confidence", "-confidence"],
      class: "mid",
      cell: (row) =>
        row.confidence === null
          ? el("span", { class: "muted" }, "–")
          : el(
              "span",
              { class: "measured" },
              meter(row.confidence, row.confidence < unsureBelow() ? "warn" : "good"),
              percent(row.confidence),
            ),
    },
    { head: "Labels", class: "number", cell: (row) => count(row.labels) },
    {
      head: "Chunk",
      sort: "newest",
      falls: true,
      class: "number wide",
      cell: (row) => (row.chunk === null ? "waits" : count(row.chunk)),
    },
  ];
}
