// What a page shows when there is nothing to show: not yet, not at all, or no longer.

import { el, icon, put, unseen } from "./dom.js";

/** Grey shapes where a page will be; `kind` is cards, table or detail. */
export function skeleton(kind) {
  const bones = (name, n) => Array.from({ length: n }, () => el("div", { class: `bone ${name}` }));
  const parts = {
    cards: [
      el("div", { class: "figures" }, bones("figure-bone", 6)),
      el("div", { class: "grid two" }, bones("panel-bone", 4)),
    ],
    detail: [bones("line-bone", 1), el("div", { class: "grid two" }, bones("panel-bone", 2))],
    table: [bones("line-bone", 1), el("div", { class: "panel flush" }, bones("row-bone", 9))],
  };
  return el("div", { class: "skeleton", role: "status" }, unseen("Loading…"), parts[kind]);
}

/** A sentence that says what went wrong, and a way to try again. */
export function failure(error, retry) {
  const again = el(
    "button",
    { class: "button", type: "button", on: { click: retry } },
    "Try again",
  );
  const title =
    error.status === 404
      ? "Not found"
      : error.status === 403
        ? "Not with this key"
        : "This could not be shown";
  return el(
    "div",
    { class: "state bad", role: "alert" },
    icon("alert"),
    el("h2", {}, title),
    el("p", {}, error.message),
    again,
  );
}

/** A friendly blank: what is not here yet, and what would bring it. */
export function empty(title, ...says) {
  return el(
    "div",
    { class: "state" },
    el("h2", {}, title),
    says.map((one) => (typeof one === "string" ? el("p", {}, one) : one)),
  );
}

/** A panel with a heading, and something at its right. */
export function panel(title, { note = null, aside = null, flush = false } = {}, ...children) {
  const head = el(
    "div",
    { class: "panel-head" },
    el("h2", {}, title),
    note && el("p", { class: "note" }, note),
    aside,
  );
  return put(el("section", { class: flush ? "panel flush" : "panel" }), head, ...children);
}

/** A number with its name, and a line of small print. */
export function figure(name) {
  const value = el("dd", { class: "value" }, "–");
  const more = el("dd", { class: "more" });
  const node = el("div", { class: "figure" }, el("dt", {}, name), value, more);
  return {
    node,
    set(text, small = "", tone = "") {
      if (value.textContent !== String(text)) value.textContent = text;
      if (more.textContent !== small) more.textContent = small;
      node.dataset.tone = tone;
    },
  };
}

/** A bar from 0 to 1, with its number. */
export function meter(share, tone = "") {
  const full = el("span", {
    class: "meter-full",
    style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` },
  });
  return el("span", { class: "meter", "aria-hidden": "true", data: { tone } }, full);
}

/** A number from 0 to 1 with its interval, drawn on a line. */
export function whisker(value, low, high) {
  const place = (x) => `${Math.max(0, Math.min(1, x)) * 100}%`;
  const span =
    low === null || low === undefined
      ? null
      : el("span", {
          class: "whisker-span",
          style: { left: place(low), width: place(high - low) },
        });
  return el(
    "span",
    { class: "whisker", "aria-hidden": "true" },
    span,
    el("span", { class: "whisker-dot", style: { left: place(value) } }),
  );
}

/** A labelled field of a form. */
export function field(label, input, hint = null) {
  const id = input.id || `field-${(field.next = (field.next ?? 0) + 1)}`;
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return el(
    "div",
    { class: "field" },
    el("label", { for: id }, label),
    input,
    hint && el("p", { class: "hint", id: `${id}-hint` }, hint),
  );
}

/** A choice of one from a few, as [value, words] pairs. */
export function select(pairs, value, props = {}) {
  return el(
    "select",
    props,
    pairs.map(([given, words]) => el("option", { value: given, selected: given === value }, words)),
  );
}

const THRESHOLD = "labelquorum.unsure";

/** Below this confidence an answer counts as unsure; the viewer's own choice. */
export const unsureBelow = () => Number(localStorage.getItem(THRESHOLD) ?? 0.9);

/** Choose it. */
export const setUnsureBelow = (value) => localStorage.setItem(THRESHOLD, String(value));
