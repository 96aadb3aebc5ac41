// The shell: which page is shown, how it is kept up to date, and what the bar and the banner say.

import * as api from "./api.js";
import { recolour } from "./charts.js";
import { address, el, fill, icon, link, named, svg } from "./dom.js";
import { ago, time } from "./format.js";
import { coalesced, follow } from "./live.js";
import { failure, skeleton } from "./states.js";
import { page as agreement } from "./pages/agreement.js";
import { page as ask } from "./pages/ask.js";
import { page as item } from "./pages/item.js";
import { page as items } from "./pages/items.js";
import { page as jury } from "./pages/jury.js";
import { page as login } from "./pages/login.js";
import { page as settings } from "./pages/settings.js";
import { page as stream } from "./pages/stream.js";
import { page as streams } from "./pages/streams.js";
import { page as worker } from "./pages/worker.js";
import { page as workers } from "./pages/workers.js";

const LISTS = { agreement, ask, items, jury, settings, workers };
const SINGLES = { items: item, workers: worker };
const TABS = [
  ["Overview"],
  ["Items", "items"],
  ["Workers", "workers"],
  ["Agreement", "agreement"],
  ["Jury", "jury"],
  ["Ask next", "ask"],
  ["Settings", "settings"],
];
const THEMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
const THEME = "labelquorum.theme";

const [bar, banner, main] = ["bar", "banner", "main"].map((id) => document.getElementById(id));
const pill = el("span", { class: "pill", data: { state: "off" } });
let current = null; // the page that is shown, and all that goes on for it
let heard = null; // the last event, and when we heard it
let lostSince = null;
let painting = null;

// ── where we are ──────────────────────────────────────────────────────────────────────────

/** The page for an address such as #/s/birds/items/t7?sort=newest. */
function whereOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decoded);
  const found = { query: new URLSearchParams(query ?? ""), stream: null, name: null, tab: null };
  if (!api.key()) return { ...found, page: login };
  if (parts[0] !== "s" || parts.length < 2) return { ...found, page: streams };
  const [, name, tab, one] = parts;
  const page = one !== undefined ? SINGLES[tab] : tab === undefined ? stream : LISTS[tab];
  return { ...found, page: page ?? stream, stream: name, tab, name: one };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** A link #key=…&go=/s/birds logs in; the key leaves the address at once. */
function takeKey() {
  if (!location.hash.startsWith("#key=")) return;
  const given = new URLSearchParams(location.hash.slice(1));
  history.replaceState(null, "", `#${given.get("go") ?? "/"}`);
  api.keep(given.get("key"));
}

// ── a page's life ─────────────────────────────────────────────────────────────────────────

function open() {
  takeKey();
  const isFirst = current === null;
  close();
  const where = whereOf(location.hash);
  const cut = new AbortController();
  const context = {
    ...where,
    signal: cut.signal,
    go: (parts, query) => (location.hash = address(parts, query)),
    again: open,
  };
  const view = where.page(context);
  current = {
    where,
    view,
    cut,
    timers: [],
    body: el("div", {}, skeleton(view.skeleton ?? "detail")),
  };
  heard = null;
  hush();
  showBar(where);
  document.title = `${view.title} · LabelQuorum`;
  fill(main, view.head, current.body);
  scrollTo(0, 0);
  if (!isFirst) main.querySelector("h1")?.focus({ preventScroll: true });
  begin(current);
}

function close() {
  if (!current) return;
  current.cut.abort();
  current.timers.forEach(clearInterval);
  current.refresher?.stop();
  current.following?.stop();
  current.view.stop?.();
}

async function begin(mine) {
  const { view, cut, where } = mine;
  let aged = false; // whether it shows what was so a moment ago
  try {
    api.hurry(true);
    const data = await view.load(cut.signal);
    if (mine !== current) return;
    aged = api.hurry(false);
    fill(mine.body, view.node);
    view.show(data);
  } catch (error) {
    if (mine !== current || cut.signal.aborted) return;
    api.hurry(false);
    if (!(error instanceof api.Refused || error instanceof api.Unreachable)) console.error(error);
    fill(mine.body, failure(error, open));
    return;
  }
  mine.refresher = coalesced(() => refresh(mine));
  if (view.every)
    mine.timers.push(setInterval(() => document.hidden || mine.refresher.nudge(), view.every));
  if (where.stream !== null)
    mine.following = follow(where.stream, { onEvent: hear, onState: showState });
  else showState(where.page === login ? "off" : "polling");
  if (aged) hear({ id: null });
}

async function refresh(mine) {
  try {
    const data = await mine.view.load(mine.cut.signal);
    if (mine !== current) return;
    mine.view.show(data);
    hush();
  } catch (error) {
    if (mine !== current || mine.cut.signal.aborted || error instanceof api.Unreachable) return;
    showBanner("bad", error.message);
  }
}

function hear(event) {
  if (event.id !== null) {
    heard = { ...event, here: Date.now() / 1000 };
    pill.dataset.event = event.id;
    painting ??= requestAnimationFrame(() => {
      painting = null;
      showState("live");
    });
  } else if (current.where.tab === "items") return; // the worker table was renewed
  if (current.view.hear) current.view.hear(event);
  else current.refresher.nudge();
}

// ── the bar ───────────────────────────────────────────────────────────────────────────────

function showBar(where) {
  const brand = el(
    "a",
    { class: "brand", href: "#/" },
    logo(),
    el("span", {}, "LabelQuorum"),
  );
  const leave = el(
    "button",
    { class: "quiet", type: "button", title: "Sign out", on: { click: signOut } },
    icon("leave"),
    el("span", { class: "unseen" }, "Sign out"),
  );
  const here =
    where.stream === null
      ? null
      : [
          el("span", { class: "slash", "aria-hidden": "true" }, "/"),
          link(["s", where.stream], named(where.stream), { class: "crumb", title: where.stream }),
        ];
  const tabs =
    where.stream === null
      ? null
      : el(
          "nav",
          { class: "tabs", "aria-label": "Stream" },
          TABS.map(([words, tab]) => tabOf(where, words, tab)),
        );
  fill(
    bar,
    el(
      "div",
      { class: "bar-row" },
      brand,
      here,
      el("span", { class: "stretch" }),
      where.page === login ? null : pill,
      themeButton(),
      where.page === login ? null : leave,
    ),
    tabs,
  );
}

/** The picture of icon.svg, drawn here: one that is fetched is lost where the service is. */
function logo() {
  const dots = [
    [10, 12, 1],
    [22, 12, 1],
    [16, 22, 0.55],
  ];
  return svg(
    "svg",
    { class: "logo", viewBox: "0 0 32 32", width: 22, height: 22, "aria-hidden": "true" },
    svg("rect", { width: 32, height: 32, rx: 8, fill: "#3056c9" }),
    dots.map(([cx, cy, opacity]) => svg("circle", { cx, cy, r: 3.4, fill: "#fff", opacity })),
  );
}

function tabOf(where, words, tab) {
  const parts = ["s", where.stream, ...(tab ? [tab] : [])];
  return link(parts, words, {
    "aria-current":
      where.tab === tab
        ? where.name === null || where.name === undefined
          ? "page"
          : "true"
        : null,
  });
}

function themeButton() {
  const theme = localStorage.getItem(THEME) ?? "auto";
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(theme) + 1) % names.length];
  const turn = () => {
    localStorage.setItem(THEME, next);
    showTheme();
    button.replaceWith(themeButton());
    bar.querySelector(".theme").focus();
  };
  const button = el(
    "button",
    { class: "quiet theme", type: "button", title: THEMES[theme], on: { click: turn } },
    icon(theme),
    el("span", { class: "unseen" }, THEMES[theme]),
  );
  return button;
}

function showTheme() {
  const theme = localStorage.getItem(THEME) ?? "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  recolour();
}

function showState(report) {
  const state = lostSince === null ? report : "lost";
  const words = {
    live: "Live",
    polling: "Live",
    connecting: heard ? "Reconnecting…" : "Connecting…",
    refused: "Not live",
    lost: "Offline",
    off: "",
  };
  pill.dataset.state = state;
  const more = heard && state === "live" ? ` · ${saying(heard)} · ${ago(heard.here)}` : "";
  fill(
    pill,
    el("span", { class: "dot", "aria-hidden": "true" }),
    words[state],
    el("span", { class: "pill-more" }, more),
  );
}

function saying({ kind, chunk }) {
  const words = { applied: "applied", quarantined: "quarantined" };
  return chunk && words[kind]
    ? `chunk ${chunk} ${words[kind]}`
    : ({ forgot: "a worker was forgotten", gold: "truths came", rules: "rules changed" }[kind] ??
        kind);
}

setInterval(() => {
  if (!document.hidden && pill.dataset.state === "live" && heard) showState("live");
}, 1000);

function signOut() {
  api.drop();
  location.hash = "#/";
  open();
}

// ── the banner ────────────────────────────────────────────────────────────────────────────

function showBanner(tone, sentence, ...more) {
  banner.dataset.tone = tone;
  fill(banner, icon("alert"), el("p", {}, sentence), ...more);
}

/** Take back what the banner says, unless it is that the service is gone. */
function hush() {
  if (lostSince === null) fill(banner);
}

/** Say that the service is gone, and look for it again until it is there. */
async function onLost() {
  if (lostSince !== null) return;
  lostSince = Date.now() / 1000;
  const look = el(
    "button",
    { class: "button", type: "button", on: { click: () => current.following?.now() ?? open() } },
    "Try now",
  );
  showBanner("bad", `The service does not answer. What you see is from ${time(lostSince)}.`, look);
  document.body.dataset.lost = "yes";
  showState("lost");
  for (let wait = 500; lostSince !== null; wait = Math.min(8000, wait * 1.6)) {
    await api.pause(wait);
    if (lostSince !== null && !document.hidden && (await api.answers())) onFound();
  }
}

function onFound() {
  if (lostSince === null) return;
  lostSince = null;
  delete document.body.dataset.lost;
  hush();
  showState(current?.where.stream == null ? "polling" : "connecting");
  if (current?.refresher) {
    current.following?.now();
    current.refresher.nudge();
  } else open();
}

api.wire.addEventListener("lost", onLost);
api.wire.addEventListener("found", onFound);
api.wire.addEventListener("locked", () => {
  if (current.where.page === login) return;
  api.drop();
  open();
});
addEventListener("offline", onLost);
addEventListener("online", async () => (await api.answers()) && onFound());
addEventListener("hashchange", open);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
showTheme();
open();
