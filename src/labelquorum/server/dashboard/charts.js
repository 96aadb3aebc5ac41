// Charts: lines by uPlot, bars and sparks by hand. Each says in words what it shows.

import UPlot from "./vendor/uPlot.js";
import { el, fill, svg } from "./dom.js";

const probe = el("span", { hidden: true });
const drawn = new Set();
const WHOLE = [1, 2, 5]
  .flatMap((n) => [1, 10, 100, 1000, 10_000, 100_000, 1_000_000].map((ten) => n * ten))
  .sort((a, b) => a - b);

/** A colour of the theme, as a canvas wants it. */
export function colour(name, alpha = 1) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  return alpha === 1 ? found : found.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

/** Draw all charts again, in the current colours. */
export function recolour() {
  for (const chart of drawn) chart.redraw(false, true);
  for (const canvas of document.querySelectorAll("canvas.heat-canvas"))
    canvas.dispatchEvent(new Event("recolour"));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

/**
 * Lines over time or over some other number.
 *
 * `series` are {label, tone, fill, dash, band, points, format}; the first column of the data is x.
 * `marks(data)` gives places on x that are drawn as upright lines.
 */
export function lines({
  label,
  series,
  time = false,
  height = 200,
  xFormat = String,
  xTick = xFormat,
  whole = false,
  yFormat = String,
  range = null,
  marks = null,
}) {
  const host = el("div", {
    class: "chart",
    role: "img",
    "aria-label": label,
    style: { height: `${height}px` },
  });
  const readout = el("p", { class: "readout", "aria-hidden": "true" });
  let chart = null;
  let data = null;
  let rest = "";
  const bands = series.flatMap((one, n) =>
    one.band ? [{ series: [n + 1, n + 2], fill: () => colour(one.band, 0.16) }] : [],
  );

  const axis = (side) => ({
    stroke: () => colour("muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: () => colour("line"), width: 1, show: side === "y" },
    ticks: { show: false },
    gap: 6,
    size: side === "y" ? 46 : 26,
    space: side === "y" ? 34 : time ? 96 : 60,
  });

  function options(width) {
    const y = { ...axis("y"), values: (_, ticks) => ticks.map(yFormat) };
    const x = { ...axis("x") };
    x.values = (_, ticks) => ticks.map(time ? clockTicks(ticks) : xTick);
    if (whole) x.incrs = WHOLE;
    return {
      width,
      height,
      bands,
      padding: [8, 6, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time }, y: range ? { range: (u, low, high) => range(low, high) } : {} },
      axes: [x, y],
      series: [
        {},
        ...series.map((one) => ({
          label: one.label,
          width: one.width ?? 1.75,
          dash: one.dash,
          stroke: one.tone ? () => colour(one.tone) : undefined,
          fill: one.fill ? () => colour(one.tone, 0.1) : undefined,
          points: { show: one.points ?? false, size: 5 },
          spanGaps: true,
        })),
      ],
      hooks: { setCursor: [tell], draw: [draw] },
    };
  }

  function tell(u) {
    const at = u.cursor.idx;
    if (at === null || at === undefined || !data) {
      readout.textContent = rest;
      return;
    }
    const report = series
      .map((one, n) => [one, data[n + 1][at]])
      .filter(([one, value]) => one.label && value !== null && value !== undefined)
      .map(([one, value]) => `${one.label} ${(one.format ?? yFormat)(value)}`);
    readout.textContent = [xFormat(data[0][at]), ...report].join(" · ");
  }

  function draw(u) {
    const { ctx, bbox } = u;
    for (const { x, tone } of marks ? marks() : []) {
      const at = Math.round(u.valToPos(x, "x", true));
      ctx.save();
      ctx.strokeStyle = colour(tone);
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.restore();
    }
  }

  const watch = new ResizeObserver(() => {
    const width = Math.floor(host.clientWidth);
    if (!width || !data) return;
    if (chart === null) {
      chart = new UPlot(options(width), data, host);
      drawn.add(chart);
    } else if (chart.width !== width) chart.setSize({ width, height });
  });
  watch.observe(host);

  return {
    node: el("div", { class: "chart-box" }, readout, host),
    set(columns, summary, resting = "") {
      data = columns;
      rest = resting;
      host.setAttribute("aria-label", summary);
      if (chart) chart.setData(columns);
      else if (host.clientWidth) {
        chart = new UPlot(options(Math.floor(host.clientWidth)), columns, host);
        drawn.add(chart);
      }
      readout.textContent = rest;
    },
    redraw: () => chart?.redraw(false, true),
    stop() {
      watch.disconnect();
      drawn.delete(chart);
      chart?.destroy();
    },
  };
}

/** Times of day where all ticks are of one day, else days too. */
function clockTicks(ticks) {
  const long = ticks.length > 1 && ticks.at(-1) - ticks[0] > 86_400;
  const fine = ticks.length > 1 && ticks[1] - ticks[0] < 60;
  const style = long
    ? { month: "short", day: "numeric", hour: "2-digit" }
    : { hour: "2-digit", minute: "2-digit", second: fine ? "2-digit" : undefined };
  const format = new Intl.DateTimeFormat(undefined, style);
  return (tick) => format.format(tick * 1000);
}

/** Upright bars: how many in each of several equal steps from 0 to 1. */
export function histogram() {
  const bars = el("div", { class: "bars", role: "img" });
  const scale = el("div", { class: "bars-scale", "aria-hidden": "true" });
  return {
    node: el("div", {}, bars, scale),
    set(values, { ticks, summary, titles, tone }) {
      const most = Math.max(...values, 1);
      bars.setAttribute("aria-label", summary);
      fill(
        bars,
        values.map((value, n) => {
          const height = value ? `${Math.max(1.5, (value / most) * 100)}%` : "0";
          return el(
            "div",
            { class: "bars-slot", title: titles[n] },
            el("div", { class: "bars-full", data: { tone: tone(n) }, style: { height } }),
          );
        }),
      );
      fill(
        scale,
        ticks.map((tick) => el("span", {}, tick)),
      );
    },
  };
}

/** A small line without axes. */
export function spark(values, label) {
  const [width, height] = [120, 28];
  const props = {
    class: "spark",
    viewBox: `0 0 ${width} ${height}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  };
  const most = Math.max(...values, 1);
  const step = width / Math.max(values.length - 1, 1);
  const at = (value, n) =>
    `${(n * step).toFixed(1)},${(height - 1.5 - (value / most) * (height - 4)).toFixed(1)}`;
  const path = values.map(at).join(" L");
  if (!values.length) return svg("svg", props);
  return svg(
    "svg",
    props,
    svg("path", { class: "spark-area", d: `M0,${height} L${path} L${width},${height}Z` }),
    svg("path", { class: "spark-line", d: `M${path}`, "vector-effect": "non-scaling-stroke" }),
  );
}
