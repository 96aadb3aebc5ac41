// Tables: short ones stand whole; of long ones, rows come page by page and only those in sight are drawn.

import { el, fill, put } from "./dom.js";
import { count } from "./format.js";

const ROW = 44; // pixels; style.css says the same
const AROUND = 12; // rows kept above and below what is seen
const AHEAD = 60; // rows left below when the next page is asked for

/** A table that is shown whole; `heads` are [words, class] pairs, `rows` its rows. */
export function shortTable({ caption, heads, rows, kind = "plain", unseenHead = false }) {
  const head = heads.map(([words, name]) =>
    words ? el("th", { scope: "col", class: name }, words) : el("td", { class: name }),
  );
  return el(
    "table",
    { class: kind },
    el("caption", { class: "unseen" }, caption),
    el("thead", { class: unseenHead ? "unseen" : null }, el("tr", {}, head)),
    el("tbody", {}, rows),
  );
}

/**
 * A table of any length.
 *
 * `columns` are {head, cell(row), class, sort, sorts, falls}. A sort is what the service calls it,
 * `sorts` are those that clicks go through; `ordered` is the one that holds, and `onSort(sort)` is called on a click. `onCount(loaded, total, done)` is called
 * what is here. `source(cursor, signal)` gives {rows, next, total}; `none()` what stands for no rows.
 */
export function longTable({ caption, columns, none, onSort = null, onCount = () => {} }) {
  const head = el("tr", { "aria-rowindex": "1" });
  const [above, rows, below] = [spacer(), el("tbody", { class: "rows" }), spacer()];
  const table = el(
    "table",
    { class: "long" },
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, head),
    above.node,
    rows,
    below.node,
  );
  const foot = el("div", { class: "table-foot" });
  const node = el("div", { class: "long-box" }, table, foot);
  const shown = new Map();
  let state = null;
  let coming = null; // what ends the asking for a first page
  let frame = null;

  function spacer() {
    const cell = el("td", { colspan: columns.length });
    return { cell, node: el("tbody", { class: "gap", "aria-hidden": "true" }, el("tr", {}, cell)) };
  }

  function showHead(ordered) {
    fill(
      head,
      columns.map((column) => {
        const direction = directionOf(column, ordered);
        const props = { scope: "col", class: column.class, "aria-sort": direction };
        if (!column.sort || !onSort) return el("th", props, column.head);
        const next = column.sorts
          ? column.sorts[(column.sorts.indexOf(ordered) + 1) % column.sorts.length]
          : column.sort;
        const mark = el(
          "span",
          { class: "sort-mark", "aria-hidden": "true" },
          direction === null ? "" : direction === "descending" ? "↓" : "↑",
        );
        return el(
          "th",
          props,
          el(
            "button",
            { type: "button", class: "sort", on: { click: () => onSort(next) } },
            column.head,
            mark,
          ),
        );
      }),
    );
  }

  async function more() {
    const mine = state;
    if (mine.loading || mine.done || mine.failed) return;
    mine.loading = true;
    showFoot();
    try {
      const page = await mine.source(mine.cursor, mine.cut.signal);
      if (mine !== state) return;
      mine.rows.push(...page.rows);
      mine.cursor = page.next;
      mine.done = page.next === null;
      mine.total = page.total ?? mine.total;
    } catch (error) {
      if (mine !== state || mine.cut.signal.aborted) return;
      mine.failed = error;
    } finally {
      mine.loading = false;
    }
    showFoot();
    draw();
  }

  function showFoot() {
    table.setAttribute("aria-rowcount", state.done ? state.rows.length + 1 : -1);
    table.hidden = state.done && !state.rows.length;
    onCount(state.rows.length, state.total, state.done);
    if (state.failed) {
      const again = () => {
        state.failed = null;
        more();
      };
      fill(
        foot,
        el("span", {}, state.failed.message),
        el("button", { class: "button", type: "button", on: { click: again } }, "Try again"),
      );
    } else if (table.hidden) fill(foot, none());
    else
      fill(
        foot,
        state.done ? "" : el("span", { class: "muted" }, state.loading ? "Loading more…" : ""),
      );
  }

  function draw() {
    frame = null;
    if (!state || !node.isConnected) return;
    const top = table.getBoundingClientRect().top + head.offsetHeight;
    const first = Math.max(0, Math.min(state.rows.length, Math.floor(-top / ROW) - AROUND));
    const last = Math.max(
      first,
      Math.min(state.rows.length, Math.ceil((innerHeight - top) / ROW) + AROUND),
    );
    for (const [index, row] of shown) {
      if ((index < first || index >= last) && !row.contains(document.activeElement)) {
        row.remove();
        shown.delete(index);
      }
    }
    for (let index = first; index < last; index += 1) {
      if (!shown.has(index)) insert(index);
    }
    const places = [...shown.keys()]; // one more than those in sight where it has the focus
    const kept = {
      above: places.filter((n) => n < first).length,
      below: places.filter((n) => n >= last).length,
    };
    above.cell.style.height = `${(first - kept.above) * ROW}px`;
    below.cell.style.height = `${(state.rows.length - last - kept.below) * ROW}px`;
    if (state.rows.length - last < AHEAD) more();
  }

  function insert(index) {
    const cells = columns.map((column) =>
      put(el("td", { class: column.class }), column.cell(state.rows[index])),
    );
    const row = el("tr", { "aria-rowindex": index + 2, data: { index } }, cells);
    const after = [...rows.children].find((other) => Number(other.dataset.index) > index);
    rows.insertBefore(row, after ?? null);
    shown.set(index, row);
  }

  /** The arrow keys go from row to row. */
  function onKey(event) {
    const row = event.target.closest("tr[data-index]");
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!row || !step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const wanted = Math.max(0, Math.min(state.rows.length - 1, Number(row.dataset.index) + step));
    scrollBy(0, (wanted - Number(row.dataset.index)) * ROW);
    draw();
    shown.get(wanted)?.querySelector("a, button")?.focus({ preventScroll: true });
    shown.get(wanted)?.scrollIntoView({ block: "nearest" });
  }

  const onScroll = () => (frame ??= requestAnimationFrame(draw));
  addEventListener("scroll", onScroll, { passive: true });
  addEventListener("resize", onScroll);
  rows.addEventListener("keydown", onKey);

  return {
    node,
    /** Start again with another source; resolves when its first page is here. */
    async reset(source, ordered = null) {
      coming?.abort();
      const cut = new AbortController();
      coming = cut;
      showHead(ordered);
      const first = await source(null, cut.signal); // until then the rows of before stay
      if (coming !== cut) return;
      coming = null;
      state?.cut.abort();
      state = {
        source,
        cut,
        rows: first.rows,
        cursor: first.next,
        done: first.next === null,
        total: first.total ?? null,
        loading: false,
        failed: null,
      };
      for (const row of shown.values()) row.remove();
      shown.clear();
      showFoot();
      draw();
    },
    draw,
    stop() {
      removeEventListener("scroll", onScroll);
      removeEventListener("resize", onScroll);
      coming?.abort();
      state?.cut.abort();
    },
  };
}

/** Which way a column is ordered, null for not by it; where it `falls`, most come first. */
function directionOf({ sort, falls = false }, ordered) {
  if (!sort || ![sort, `-${sort}`].includes(ordered)) return null;
  return (ordered === sort) === falls ? "descending" : "ascending";
}

/** "1,200 of 100,000 items" */
export function tally(loaded, total, done, word) {
  if (total !== null && total !== undefined)
    return `${count(total)} ${total === 1 ? word : `${word}s`}`;
  return `${count(loaded)}${done ? "" : "+"} ${loaded === 1 && done ? word : `${word}s`}`;
}
