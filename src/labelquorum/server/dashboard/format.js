// Numbers with their units, and times in the viewer's own zone.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const fixed = new Intl.NumberFormat(undefined, {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
});
const two = new Intl.NumberFormat(undefined, {
  minimumFractionDigits: 2,
  maximumFractionDigits: 2,
});
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const NONE = "–";

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** 12,345 */
export const count = (value) => (missing(value) ? NONE : whole.format(value));

/** 12.3K, where space is short. */
export const brief = (value) =>
  missing(value) ? NONE : Math.abs(value) < 10_000 ? whole.format(value) : short.format(value);

/** "1 item", "2 items". */
export const counted = (value, word, words = `${word}s`) =>
  `${count(value)} ${value === 1 ? word : words}`;

/** 0.93 → "93 %"; a digit more near the ends, where it matters. */
export function percent(value, digits = null) {
  if (missing(value)) return NONE;
  if (value > 0 && value < 0.0005) return "<\u202f0.1\u202f%";
  if (value < 1 && value >= 0.9995) return ">\u202f99.9\u202f%";
  const shown = digits ?? (value > 0 && value < 0.0995 ? 1 : value > 0.9905 && value < 1 ? 1 : 0);
  const text = (value * 100).toLocaleString(undefined, {
    minimumFractionDigits: shown,
    maximumFractionDigits: shown,
  });
  return `${text}\u202f%`;
}

/** 0.934 → "0.93" */
export const ratio = (value) => (missing(value) ? NONE : two.format(value));

/** A probability's gain, in points of a hundred. */
export function points(value) {
  if (missing(value)) return NONE;
  if (Math.abs(value) < 0.0005) return value === 0 ? "0\u202fpt" : "<\u202f0.1\u202fpt";
  return `${value >= 0 ? "+" : "−"}${fixed.format(Math.abs(value * 100))}\u202fpt`;
}

/** Labels per second, with few digits. */
export const rate = (value) =>
  missing(value) ? NONE : value >= 10 ? whole.format(value) : one.format(value);

/** 0.034 → "34 ms"; 75 → "1.3 min" */
export function seconds(value) {
  if (missing(value)) return NONE;
  if (value < 1) return `${whole.format(value * 1000)} ms`;
  if (value < 90) return `${one.format(value)} s`;
  if (value < 5400) return `${one.format(value / 60)} min`;
  return value < 172_800 ? `${one.format(value / 3600)} h` : `${one.format(value / 86_400)} days`;
}

/** The time of day, as the viewer writes it. */
export const time = (at) => (missing(at) ? NONE : clock.format(at * 1000));

/** Day and time. */
export const moment = (at) => (missing(at) ? NONE : day.format(at * 1000));

/** "now", "12 s ago" */
export function ago(at) {
  if (missing(at)) return NONE;
  const gone = Math.max(0, Date.now() / 1000 - at);
  return gone < 2 ? "now" : `${seconds(Math.floor(gone))} ago`;
}

/** The name of a file about a stream, without what file systems do not take. */
export const fileName = (stream, rest) =>
  `${stream.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80)}-${rest}`;

const RULES = {
  chunk_items: "Items a chunk",
  days: "Days labels are kept",
  grace: "Answered items stay open",
  labels_per_item: "Labels per item",
  max_chunk_wait: "Longest wait of a chunk",
  max_wait: "Longest wait of an item",
  max_workers: "Most workers",
};

/** What the pages call a rule. */
export const ruleWord = (name) => RULES[name];

/** A sentence of the service, in which rules have the names the pages give them. */
export const inOurWords = (sentence) =>
  Object.entries(RULES).reduce(
    (text, [name, words]) => text.replaceAll(`\`${name}\``, `“${words}”`),
    sentence.replaceAll("`rules.", "`"),
  );

const WORDS = {
  colluding: "Colluding",
  drifting: "Drifting",
  one_answer: "One answer",
  reversed: "Reversed",
  spammer: "Spammer",
};

/** The word for a flag. */
export const flagWord = (flag) => WORDS[flag] ?? String(flag).replaceAll("_", " ");

/** All flags that have a word. */
export const FLAGS = Object.keys(WORDS);
