// Where one more label does most, whom to ask for it, and what stopping earlier would cost.

import * as api from "../api.js";
import { lines } from "../charts.js";
import { el, fill, icon, link, named } from "../dom.js";
import { count, counted, fileName, inOurWords, percent, points } from "../format.js";
import { empty, meter, panel, unsureBelow } from "../states.js";
import { shortTable } from "../table.js";

const SHOWN = 50;
const MAX_COUNTED = 10_000; // the service counts no further

export function page({ stream }) {
  const stopping = stoppingPanel();
  const list = el("div");
  const says = el("span");
  const saved = el("p", { class: "form-error", role: "alert" });

  async function fetchFile(format) {
    fill(saved);
    try {
      const name = fileName(stream, `ask-next.${format}`);
      await api.download(api.pathOf(stream, "ask"), { format, limit: 1000 }, name);
    } catch (error) {
      fill(saved, icon("alert"), error.message);
    }
  }

  const buttons = ["csv", "json"].map((format) =>
    el(
      "button",
      { class: "button", type: "button", on: { click: () => fetchFile(format) } },
      icon("download"),
      format.toUpperCase(),
    ),
  );
  const ranked = panel(
    "Ask about these next",
    { flush: true, note: says, aside: el("div", { class: "buttons" }, buttons) },
    saved,
    list,
  );

  return {
    title: `Ask next in ${stream}`,
    head: el("h1", { tabindex: "-1" }, "Ask next"),
    node: el("div", {}, stopping.node, ranked),
    skeleton: "table",
    async load(signal) {
      const [next, curve] = await Promise.all([
        api.get(api.pathOf(stream, "ask"), { limit: SHOWN }, signal),
        api.get(api.pathOf(stream, "stopping"), {}, signal),
      ]);
      return { next, curve };
    },
    show({ next, curve }) {
      stopping.show(curve);
      fill(
        says,
        next.says !== null
          ? inOurWords(next.says)
          : `${counted(next.open_items, "item")}${next.open_items < MAX_COUNTED ? "" : " or more"} open; those where one more label helps most come first.`,
      );
      const report = JSON.stringify(next.items);
      if (list.dataset.report === report || list.contains(document.activeElement)) return;
      list.dataset.report = report;
      fill(
        list,
        next.items.length
          ? askTable(stream, next.items)
          : empty(
              "Nothing to ask for",
              "No open item would gain from another label. How long answered items stay open is a rule of the stream, under Settings.",
            ),
      );
    },
    stop: stopping.stop,
  };
}

function askTable(stream, items) {
  const heads = [
    ["#", "number wide"],
    ["Task"],
    ["Answer"],
    ["Confidence", "wide"],
    ["Labels", "number wide"],
    ["Gain", "number"],
    ["Ask"],
    ["Their gain", "number wide"],
  ];
  const body = items.map((one, n) => {
    const who =
      one.worker === null || one.worker === undefined
        ? "–"
        : link(["s", stream, "workers", one.worker], named(one.worker));
    return el(
      "tr",
      {},
      el("td", { class: "number wide muted" }, count(n + 1)),
      el(
        "th",
        { scope: "row" },
        link(["s", stream, "items", one.task], named(one.task), {
          class: "strong-link",
          title: String(one.task),
        }),
      ),
      el("td", {}, one.label === null ? "–" : named(one.label)),
      el(
        "td",
        { class: "wide" },
        one.confidence === null
          ? "–"
          : el(
              "span",
              { class: "measured" },
              meter(one.confidence, one.confidence < unsureBelow() ? "warn" : "good"),
              percent(one.confidence),
            ),
      ),
      el("td", { class: "number wide" }, count(one.labels)),
      el("td", { class: "number" }, points(one.gain)),
      el("td", {}, who),
      el("td", { class: "number wide" }, points(one.worker_gain)),
    );
  });
  return shortTable({
    caption: "Items where one more label helps most",
    heads,
    rows: body,
    kind: "plain ask",
  });
}

/** A slider: stop at confidence x: labels saved and expected error. */
function stoppingPanel() {
  const slider = el("input", { type: "range", id: "stop-at", class: "slider" });
  const at = el("output", { for: "stop-at", class: "stop-at" });
  const saves = el("p", { class: "stop-figure" });
  const errs = el("p", { class: "stop-figure" });
  const blank = el("div");
  let data = null;
  let chosen = null;
  const chart = lines({
    label: "",
    height: 190,
    series: [
      { label: "labels saved", tone: "accent", fill: true },
      { label: "expected error", tone: "bad", format: (y) => percent(y, 1) },
    ],
    xFormat: (x) => `stop at ${percent(x, x > 0.99 ? 1 : 0)}`,
    xTick: (x) => percent(x, 0),
    yFormat: (y) => percent(y, 0),
    range: (low, high) => [0, Math.max(0.1, high)],
    marks: () => (data ? [{ x: data.curve[chosen].threshold, tone: "text" }] : []),
  });
  const inner = el(
    "div",
    { class: "stopping" },
    el(
      "div",
      { class: "stop-side" },
      el("label", { for: "stop-at" }, "Stop at confidence ", at),
      slider,
      saves,
      errs,
    ),
    chart.node,
  );
  const node = panel(
    "What if I stopped earlier?",
    { note: "replayed on the labels that came, from the calibrated probabilities" },
    inner,
    blank,
  );

  function tell() {
    const {
      threshold,
      labels_used: used,
      labels_saved: share,
      expected_error: error,
    } = data.curve[chosen];
    const words = percent(threshold, threshold > 0.99 ? 1 : 0);
    fill(at, words);
    slider.setAttribute(
      "aria-valuetext",
      `${words}: saves ${percent(share)} of the labels, expected error ${percent(error)}`,
    );
    fill(
      saves,
      el("strong", {}, percent(share)),
      ` of the labels saved`,
      el("span", { class: "small muted" }, `${count(data.labels - used)} of ${count(data.labels)}`),
    );
    fill(
      errs,
      el("strong", {}, percent(error)),
      " expected error",
      el("span", { class: "small muted" }, `of ${counted(data.items, "item")}`),
    );
    chart.redraw();
  }

  slider.addEventListener("input", () => {
    chosen = Number(slider.value);
    tell();
  });

  return {
    node,
    show(curve) {
      const known = curve.items > 0 && curve.curve.length > 1;
      inner.hidden = !known;
      fill(
        blank,
        known
          ? ""
          : el(
              "p",
              { class: "muted" },
              "The answer needs chunks that were learned. Come back after the first.",
            ),
      );
      if (!known) return;
      const first = data === null;
      data = curve;
      slider.min = 0;
      slider.max = curve.curve.length - 1;
      if (first) {
        chosen = curve.curve.findIndex((one) => one.threshold >= 0.9 - 1e-9);
        if (chosen < 0) chosen = curve.curve.length - 1;
        slider.value = chosen;
      }
      const column = (key) => curve.curve.map((one) => one[key]);
      const ends = [curve.curve[0], curve.curve.at(-1)].map(
        (one) =>
          `at ${percent(one.threshold)} ${percent(one.labels_saved)} of the labels saved and ${percent(one.expected_error)} expected error`,
      );
      chart.set(
        [column("threshold"), column("labels_saved"), column("expected_error")],
        `Stopping ${ends.join("; ")}.`,
        "blue: labels saved · red: expected error",
      );
      tell();
    },
    stop: () => chart.stop(),
  };
}
