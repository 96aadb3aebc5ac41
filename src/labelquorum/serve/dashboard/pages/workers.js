// All workers: how good each is, how sure that is, and what is odd about some.

import * as api from "../api.js";
import { address, el, fill, icon, link, named } from "../dom.js";
import { FLAGS, count, flagWord, percent, ratio } from "../format.js";
import { empty, select, whisker } from "../states.js";
import { longTable, tally } from "../table.js";

const PAGE = 200;
const WAIT = 250;
const SORTS = [
  ["flags", "Flagged first"],
  ["skill", "Least skilled first"],
  ["-skill", "Most skilled first"],
  ["labels", "Most labels first"],
  ["agreement", "Least agreement first"],
  ["worker", "Name"],
  ["place", "First come first"],
];

export function page({ stream, query }) {
  const wanted = {
    search: query.get("search") ?? "",
    sort: query.get("sort") ?? "flags",
    flag: query.get("flag") ?? "",
  };
  const search = el("input", {
    type: "search",
    value: wanted.search,
    placeholder: "Search workers",
    "aria-label": "Search workers",
    autocomplete: "off",
    spellcheck: "false",
  });
  const sort = select(SORTS, wanted.sort, { "aria-label": "Order" });
  const flag = select(
    [["", "Any flag or none"], ...FLAGS.map((one) => [one, flagWord(one)])],
    wanted.flag,
    { "aria-label": "Flag" },
  );
  const counter = el("p", { class: "counter muted" });
  const fresh = el(
    "button",
    { class: "button fresh", type: "button", hidden: true, on: { click: () => again() } },
    "New figures · show",
  );
  let timer = null;
  const table = longTable({
    caption: "Workers, their skill and what is odd about them",
    columns: columns(stream),
    onSort: (next) => {
      sort.value = next;
      change();
    },
    onCount: (...told) => fill(counter, tally(...told, "worker")),
    none: () =>
      wanted.search || wanted.flag
        ? empty(
            "Nobody matches",
            "No worker fits this search and this flag.",
            el(
              "button",
              { class: "button", type: "button", on: { click: clear } },
              "Show all workers",
            ),
          )
        : empty("No workers yet", "Workers appear once a chunk with their labels is learned."),
  });

  function clear() {
    search.value = flag.value = "";
    change();
  }

  function change() {
    Object.assign(wanted, { search: search.value.trim(), sort: sort.value, flag: flag.value });
    history.replaceState(null, "", address(["s", stream, "workers"], wanted));
    again();
  }

  async function again() {
    fresh.hidden = true;
    scrollTo(0, 0);
    try {
      await table.reset(source(stream, wanted), wanted.sort);
    } catch (error) {
      if (error.name !== "AbortError") fill(counter, error.message);
    }
  }

  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(change, WAIT);
  });
  for (const one of [sort, flag]) one.addEventListener("change", change);

  return {
    title: `Workers of ${stream}`,
    head: el(
      "div",
      { class: "page-head" },
      el("h1", { tabindex: "-1" }, "Workers"),
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
        flag,
        sort,
      ),
      table.node,
    ),
    skeleton: "table",
    load: (signal) => source(stream, wanted)(null, signal),
    show(first) {
      const rest = source(stream, wanted);
      table.reset(
        (cursor, signal) => (cursor === null ? Promise.resolve(first) : rest(cursor, signal)),
        wanted.sort,
      );
    },
    hear() {
      if (scrollY < 40 && !table.node.contains(document.activeElement)) again();
      else fresh.hidden = false;
    },
    stop: () => table.stop(),
  };
}

function source(stream, { search, sort, flag }) {
  return async (cursor, signal) => {
    const page = await api.get(
      api.pathOf(stream, "workers"),
      { brief: true, search, sort, flag, cursor, limit: PAGE },
      signal,
    );
    return { rows: page.workers, next: page.next, total: page.total };
  };
}

/** What is odd about a worker, each a word with its reason. */
export function chips(flags) {
  return flags.map((one) =>
    el(
      "span",
      { class: "chip", data: { tone: one.flag === "drifting" ? "warn" : "bad" }, title: one.says },
      flagWord(one.flag),
    ),
  );
}

function columns(stream) {
  return [
    {
      head: "Worker",
      sort: "worker",
      class: "grow",
      cell: (row) =>
        link(["s", stream, "workers", row.worker], named(row.worker), {
          class: "strong-link",
          title: String(row.worker),
        }),
    },
    {
      head: "Skill",
      sort: "skill",
      sorts: ["skill", "-skill"],
      class: "skill-cell",
      cell: (row) =>
        el(
          "span",
          {
            class: "measured",
            title:
              row.low === null
                ? null
                : `${percent(row.low)} to ${percent(row.high)}, with 95 % probability`,
          },
          whisker(row.skill, row.low, row.high),
          ratio(row.skill),
        ),
    },
    { head: "Labels", sort: "labels", class: "number", cell: (row) => count(row.labels) },
    {
      head: "Agrees",
      sort: "agreement",
      class: "number wide",
      cell: (row) => (row.labels ? percent(row.agreed / row.labels) : "–"),
    },
    {
      head: "Flags",
      sort: "flags",
      class: "flags-cell",
      cell: (row) => (row.flags.length ? chips(row.flags) : el("span", { class: "muted" }, "–")),
    },
    {
      head: "Why",
      class: "why-cell wide muted",
      cell: (row) =>
        el(
          "span",
          { title: row.flags.map((one) => one.says).join(" ") },
          row.flags.map((one) => one.says).join(" "),
        ),
    },
  ];
}
