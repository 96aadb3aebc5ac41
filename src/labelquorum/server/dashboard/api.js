// The service's own routes, asked with the viewer's key. The key lives as long as the tab does.

const PLACE = "labelquorum.key";
const TRIES = 3;
const LONGEST_WAIT = 5;

/** What the service refused, in its own words. */
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The service did not answer at all. */
export class Unreachable extends Error {
  constructor() {
    super("The service does not answer. It may be restarting, or this computer may be offline.");
  }
}

/** Called with changes of the connection: `lost`, `found`, `locked`. */
export const wire = new EventTarget();

const tell = (kind) => wire.dispatchEvent(new Event(kind));

export const key = () => sessionStorage.getItem(PLACE);
export const drop = () => sessionStorage.removeItem(PLACE);

/** Keep a key, and tell whether it can be one: a header holds no other characters. */
export function keep(secret) {
  const fits = /^[\x21-\x7e]+$/.test(secret.trim());
  if (fits) sessionStorage.setItem(PLACE, secret.trim());
  else drop();
  return fits;
}

let owned = { secret: null, report: null };

/** Tell whether the viewer's key has the scope admin: for this stream, or for all. */
export async function mayRule(stream = null) {
  if (!key()) return false;
  if (owned.secret !== key()) owned = { secret: key(), report: get("/v1/key") };
  const asked = owned;
  try {
    const { scope, stream: only } = await asked.report;
    return scope === "admin" && (only === null || only === stream);
  } catch (error) {
    if (owned === asked) owned = { secret: null, report: null }; // the next caller tries again
    throw error;
  }
}

/** Ask again what the viewer's key may do: its stream has another name. */
export function renewKey() {
  owned = { secret: null, report: null };
}

/** The path of a stream, or of something in it, by its parts. */
export const pathOf = (stream, ...parts) =>
  ["/v1/streams", stream, ...parts]
    .map((part, n) => (n ? encodeURIComponent(String(part)) : part))
    .join("/");

/** Tell whether an address can hold a name: dots alone would be read as a way up. */
export const hasAddress = (name) => !/^\.{1,2}$/.test(name);

let hurried = false;
let aged = false;

/**
 * While a page is opened, let what others were shown a moment ago do, rather than wait for news.
 *
 * Tells whether such was given since the last call.
 */
export function hurry(on) {
  const report = aged;
  [hurried, aged] = [on, false];
  return report;
}

/** Ask for something to read. */
export async function get(path, params = {}, signal = undefined) {
  for (let attempt = 1; ; attempt += 1) {
    const headers = hurried ? { "Cache-Control": "max-stale" } : {};
    const response = await request("GET", withQuery(path, params), { signal, headers });
    aged ||= response.headers.has("Age");
    if (response.ok) return response.json();
    const wait = Number(response.headers.get("Retry-After"));
    const again = [429, 503].includes(response.status) && wait && wait <= LONGEST_WAIT;
    if (!again || attempt === TRIES) throw await refusalOf(response);
    await pause(wait * 1000, signal);
  }
}

/** Send, change or remove something. */
export async function send(method, path, body = undefined, params = {}) {
  const options =
    body === undefined ? {} : { body: JSON.stringify(body), type: "application/json" };
  const response = await request(method, withQuery(path, params), options);
  if (!response.ok) throw await refusalOf(response);
  return response.json();
}

/** Fetch a file and hand it to the viewer. */
export async function download(path, params, name) {
  const response = await request("GET", withQuery(path, params), {});
  if (!response.ok) throw await refusalOf(response);
  const place = URL.createObjectURL(await response.blob());
  const anchor = document.createElement("a");
  anchor.href = place;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(place), 60_000);
}

/** Open a route that goes on telling, after an event or from now on. */
export async function open(path, after, signal) {
  const headers = after === null ? {} : { "Last-Event-ID": after };
  const response = await request("GET", path, { signal, headers });
  if (!response.ok) throw await refusalOf(response);
  return response.body;
}

/** Tell whether the service answers at all. */
export async function answers() {
  try {
    return (await fetch("/healthz", { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

/** Wait, unless it is called off. */
export function pause(milliseconds, signal = undefined) {
  return new Promise((done, fail) => {
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      fail(signal.reason);
    });
  });
}

async function request(method, address, { body, type, signal, headers = {} }) {
  const sent = { ...headers, Authorization: `Bearer ${key() ?? ""}` };
  if (type) sent["Content-Type"] = type;
  let response;
  try {
    response = await fetch(address, { method, body, signal, headers: sent, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    tell("lost");
    throw new Unreachable();
  }
  tell("found");
  if (response.status === 401) tell("locked");
  return response;
}

async function refusalOf(response) {
  try {
    const report = await response.json();
    return new Refused(response.status, report.errors.slice(0, 3).join(" "));
  } catch {
    return new Refused(
      response.status,
      `The service answered with ${response.status} and no reason.`,
    );
  }
}

function withQuery(path, params) {
  const given = Object.entries(params).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}
