// What happens in a stream, as it happens: server-sent events read by fetch, since those carry a key.

import { Refused, open, pathOf, pause } from "./api.js";

const SILENCE = 40_000; // the service says something every 15 seconds
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;
const REST = 20; // times as long as a renewal took, until the next
const LONGEST_REST = 5_000;

/**
 * Follow a stream until `stop()`; a connection that is lost is taken up where it was.
 *
 * A hidden page holds no connection: browsers allow six to a host, over all tabs.
 */
export function follow(stream, { onEvent, onState }) {
  let last = null;
  let attempt = 0;
  let current = null;
  let stopped = false;

  async function listen() {
    const cut = new AbortController();
    current = cut;
    onState("connecting");
    try {
      const body = await open(pathOf(stream, "events"), last, cut.signal);
      for await (const event of eventsOf(body, cut)) {
        attempt = 0;
        if (event === null) onState("live");
        else {
          last = event.id ?? last; // a passing note has none
          if (event.kind) onEvent(event);
        }
      }
    } catch (error) {
      if (error instanceof Refused && [401, 403, 404].includes(error.status)) {
        onState("refused");
        return;
      }
    }
    if (stopped || current !== cut) return;
    onState("connecting");
    attempt += 1;
    const longest = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** attempt);
    await pause(longest * (0.5 + Math.random() / 2)); // not all viewers at once
    if (!stopped && current === cut) listen();
  }

  function onVisibility() {
    if (document.hidden) {
      current?.abort();
      current = null;
    } else if (current === null) listen();
  }

  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) listen();
  return {
    stop() {
      stopped = true;
      document.removeEventListener("visibilitychange", onVisibility);
      current?.abort();
    },
    now() {
      current?.abort();
      attempt = 0;
      listen();
    },
  };
}

/** The events of a body; null for each sign of life. */
async function* eventsOf(body, cut) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let watch = setTimeout(() => cut.abort(), SILENCE);
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(() => cut.abort(), SILENCE);
      yield null;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event.id || event.kind) yield event;
      }
    }
  } finally {
    clearTimeout(watch);
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const found = { id: null, kind: null, data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at <= 0) continue;
    const value = line.slice(at + 1).trimStart();
    if (line.startsWith("id:")) found.id = value;
    else if (line.startsWith("event:")) found.kind = value;
    else if (line.startsWith("data:")) found.data += value;
  }
  return { ...safely(found.data), id: found.id, kind: found.data && found.kind };
}

function safely(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

/**
 * Do some work when nudged: at once, but never twice at a time nor twice within the gap.
 *
 * Work that takes long rests long: pages that look on shall not hold up a service under load.
 */
export function coalesced(work, gap = 1000) {
  let due = -Infinity;
  let timer = null;
  let running = false;
  let again = false;

  async function run() {
    timer = null;
    running = true;
    const begun = performance.now();
    try {
      await work();
    } finally {
      const rest = Math.min(REST * (performance.now() - begun), LONGEST_REST);
      due = begun + Math.max(gap, rest);
      running = false;
      if (again) {
        again = false;
        nudge();
      }
    }
  }

  function nudge() {
    if (running) again = true;
    else if (timer === null) timer = setTimeout(run, Math.max(0, due - performance.now()));
  }

  return { nudge, stop: () => clearTimeout(timer) };
}
