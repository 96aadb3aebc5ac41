// All workers: how good each is, how sure that is, and what is odd about some.

import * as api from "../api.js";
import { el, link, named } from "../dom.js";
import { PAGE, asked, finder } from "../finder.js";
import { FLAGS, count, flagWord, percent } from "../format.js";
import { select, whisker } from "../states.js";

const SORTS = [
  ["flags", "Flagged first"],
  ["skill", "Least skilled first"],
  ["-skill", "Most skilled first"],
  ["labels", "Most labels first"],
  ["-labels", "Fewest labels first"],
  ["agreement", "Least agreement first"],
  ["-agreement", "Most agreement first"],
  ["-flags", "Flagged last"],
  ["worker", "Name"],
  ["-worker", "Name, from the end"],
  ["place", "First come first"],
];

const WORDS = {
  heading: "Workers",
  one: "worker",
  searched: "workers",
  caption: "Workers, their skill and what is odd about them",
  fresh: "New figures",
  unfit: ["No match", "No worker fits this search and this flag."],
  none: ["No workers yet", "Workers appear once a chunk with their labels is learned."],
};

export function page({ stream, query }) {
  const wanted = asked(query, { search: "", sort: "flags", flag: "" });
  const flags = [["", "Any flag or none"], ...FLAGS.map((one) => [one, flagWord(one)])];
  return finder({
    stream,
    kind: "workers",
    wanted,
    choices: {
      flag: select(flags, wanted.flag, { "aria-label": "Flag" }),
      sort: select(SORTS, wanted.sort, { "aria-label": "Order" }),
    },
    source: (now) => source(stream, now),
    columns: columns(stream),
    words: WORDS,
  });
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
      sorts: ["worker", "-worker"],
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
          percent(row.skill),
        ),
    },
    {
      head: "Labels",
      sort: "labels",
      sorts: ["labels", "-labels"],
      falls: true,
      class: "number",
      cell: (row) => count(row.labels),
    },
    {
      head: "Agrees",
      sort: "agreement",
      sorts: ["agreement", "-agreement"],
      class: "number wide",
      cell: (row) => (row.labels ? percent(row.agreed / row.labels) : "–"),
    },
    {
      head: "Flags",
      sort: "flags",
      sorts: ["flags", "-flags"],
      falls: true,
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
