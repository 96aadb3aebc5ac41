// All items: searched, sorted, paged; those without an answer first, then the least sure.

import * as api from "../api.js";
import { address, el, fill, icon, link, named } from "../dom.js";
import { count, percent } from "../format.js";
import { empty, meter, select, unsureBelow } from "../states.js";
import { longTable, tally } from "../table.js";

const PAGE = 200;
const WAIT = 250; // milliseconds after the last key
const SORTS = [
  ["", "Undecided, then least sure"],
  ["-confidence", "Most sure first"],
  ["newest", "Newest first"],
  ["task", "Task"],
];
const SHOWS = [
  ["", "All items"],
  ["undecided", "Undecided"],
  ["unsure", "Unsure"],
];

export function page({ stream, query }) {
  const wanted = {
    search: query.get("search") ?? "",
    sort: query.get("sort") ?? "",
    label: query.get("label") ?? "",
    show: query.get("show") ?? "",
  };
  const search = el("input", {
    type: "search",
    value: wanted.search,
    placeholder: "Search tasks",
    "aria-label": "Search tasks",
    autocomplete: "off",
    spellcheck: "false",
  });
  const sort = select(SORTS, wanted.sort, { "aria-label": "Order" });
  const label = el("select", { "aria-label": "Answer" });
  const shows = select(
    SHOWS.map(([value, words]) => [
      value,
      value === "unsure" ? `Unsure, below ${percent(unsureBelow(), 0)}` : words,
    ]),
    wanted.show,
    { "aria-label": "Which items" },
  );
  const counter = el("p", { class: "counter muted" });
  const fresh = el(
    "button",
    { class: "button fresh", type: "button", hidden: true, on: { click: () => again() } },
    "New answers · show",
  );
  const table = longTable({
    caption: "Items, their answers and how sure they are",
    columns: columns(stream),
    onSort: (next) => {
      sort.value = next;
      change();
    },
    onCount: (...told) => fill(counter, tally(...told, "item")),
    none,
  });
  let timer = null;

  function none() {
    return wanted.search || wanted.label || wanted.show
      ? empty(
          "Nothing matches",
          "No item fits this search and these filters.",
          el("button", { class: "button", type: "button", on: { click: clear } }, "Show all items"),
        )
      : empty("No items yet", "Items appear with their first label.");
  }

  function clear() {
    search.value = sort.value = label.value = shows.value = "";
    change();
  }

  function change() {
    Object.assign(wanted, {
      search: search.value.trim(),
      sort: sort.value,
      label: label.value,
      show: shows.value,
    });
    history.replaceState(null, "", address(["s", stream, "items"], wanted));
    again();
  }

  async function again() {
    fresh.hidden = true;
    scrollTo(0, 0);
    try {
      await table.reset(source(stream, wanted), shownSort(wanted.sort));
    } catch (error) {
      if (error.name !== "AbortError") fill(counter, error.message);
    }
  }

  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(change, WAIT);
  });
  for (const one of [sort, label, shows]) one.addEventListener("change", change);

  return {
    title: `Items of ${stream}`,
    head: el(
      "div",
      { class: "page-head" },
      el("h1", { tabindex: "-1" }, "Items"),
      counter,
      el("span", { class: "stretch" }),
      fresh,
    ),
    node: el(
      "div",
      {},
      el(
        "div",
        { class: "tools", role: "search" },
        el("span", { class: "search" }, icon("search"), search),
        shows,
        label,
        sort,
      ),
      table.node,
    ),
    skeleton: "table",
    async load(signal) {
      const [about, first] = await Promise.all([
        api.get(api.pathOf(stream, "summary"), {}, signal),
        source(stream, wanted)(null, signal),
      ]);
      const plain = !wanted.search && !wanted.label && !wanted.show;
      if (plain) first.total = about.counts.answered_items + about.counts.waiting_items;
      return { classes: about.classes, first };
    },
    show({ classes, first }) {
      fill(
        label,
        el("option", { value: "" }, "Any answer"),
        classes.map((one) =>
          el("option", { value: String(one), selected: String(one) === wanted.label }, String(one)),
        ),
      );
      const rest = source(stream, wanted);
      table.reset(
        (cursor, signal) => (cursor === null ? Promise.resolve(first) : rest(cursor, signal)),
        shownSort(wanted.sort),
      );
    },
    hear() {
      if (scrollY < 40 && !table.node.contains(document.activeElement)) again();
      else fresh.hidden = false;
    },
    stop: () => table.stop(),
  };
}

const shownSort = (sort) => (sort === "" ? "confidence" : sort);

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
      class: "number wide",
      cell: (row) => (row.chunk === null ? "waits" : count(row.chunk)),
    },
  ];
}
