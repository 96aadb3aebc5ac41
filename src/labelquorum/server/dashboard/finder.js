// A page to find things on: a search, some choices, a counter, and a long table that renews itself.

import { address, el, fill, icon } from "./dom.js";
import { coalesced } from "./live.js";
import { empty } from "./states.js";
import { longTable, tally } from "./table.js";

export const PAGE = 200; // rows asked for at a time
const RENEWED = 2000; // milliseconds between two renewals by events
const WAIT = 250; // and after the last key

/** What an address asks for, by name; else what is given here. */
export function asked(query, usual) {
  return Object.fromEntries(
    Object.entries(usual).map(([name, value]) => [name, query.get(name) ?? value]),
  );
}

/**
 * A page that lists items or workers, as `kind` says.
 *
 * `wanted` holds `search`, `sort` and what else is chosen; `choices` are the selects by those names.
 * `source(wanted)` gives the pages of a table, `ordered(sort)` the column that holds. `words` are
 * {heading, one, searched, caption, fresh, unfit, none}; `onFirst(page)` is called with the first page.
 */
export function finder({
  stream,
  kind,
  wanted,
  choices,
  source,
  columns,
  words,
  ordered = (sort) => sort,
  onFirst = () => {},
}) {
  const search = el("input", {
    type: "search",
    value: wanted.search,
    placeholder: `Search ${words.searched}`,
    "aria-label": `Search ${words.searched}`,
    autocomplete: "off",
    spellcheck: "false",
  });
  const counter = el("p", { class: "counter muted" });
  const fresh = el(
    "button",
    { class: "button fresh", type: "button", hidden: true, on: { click: () => again() } },
    `${words.fresh} · show`,
  );
  const table = longTable({
    caption: words.caption,
    columns,
    onSort: (next) => {
      choices.sort.value = next;
      change();
    },
    onCount: (...report) => fill(counter, tally(...report, words.one)),
    none,
  });
  const filters = Object.entries(choices).filter(([name]) => name !== "sort");
  let timer = null;

  function none() {
    if (!wanted.search && !filters.some(([name]) => wanted[name])) return empty(...words.none);
    const all = el(
      "button",
      { class: "button", type: "button", on: { click: clear } },
      `Show all ${kind}`,
    );
    return empty(...words.unfit, all);
  }

  function clear() {
    search.value = "";
    for (const [, one] of filters) one.value = "";
    change();
  }

  function change() {
    wanted.search = search.value.trim();
    for (const [name, one] of Object.entries(choices)) wanted[name] = one.value;
    history.replaceState(null, "", address(["s", stream, kind], wanted));
    again();
  }

  async function again() {
    fresh.hidden = true;
    scrollTo(0, 0);
    try {
      await table.reset(source(wanted), ordered(wanted.sort));
    } catch (error) {
      if (error.name !== "AbortError") fill(counter, error.message);
    }
  }

  const renewal = coalesced(again, RENEWED);
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(change, WAIT);
  });
  for (const one of Object.values(choices)) one.addEventListener("change", change);

  return {
    title: `${words.heading} of ${stream}`,
    head: el(
      "div",
      { class: "page-head" },
      el("h1", { tabindex: "-1" }, words.heading),
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
        Object.values(choices),
      ),
      table.node,
    ),
    skeleton: "table",
    load: (signal) => source(wanted)(null, signal),
    show(first) {
      onFirst(first);
      const rest = source(wanted);
      table.reset(
        (cursor, signal) => (cursor === null ? Promise.resolve(first) : rest(cursor, signal)),
        ordered(wanted.sort),
      );
    },
    hear() {
      if (scrollY < 40 && !table.node.contains(document.activeElement)) renewal.nudge();
      else fresh.hidden = false;
    },
    stop() {
      clearTimeout(timer);
      renewal.stop();
      table.stop();
    },
  };
}
