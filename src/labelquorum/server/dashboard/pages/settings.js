// Results to take away, rules and name of the stream, the viewer's threshold, and keys.

import * as api from "../api.js";
import { el, fill, icon, named } from "../dom.js";
import { fileName, inOurWords, moment, percent, ruleWord } from "../format.js";
import { renameDeletePanel } from "../rename_delete.js";
import { field, panel, select, setUnsureBelow, unsureBelow } from "../states.js";
import { shortTable } from "../table.js";

const FILES = [
  ["items", "Items", "answers, how sure"],
  ["workers", "Workers", "skills, flags"],
];
const FORMATS = [
  ["csv", "CSV"],
  ["jsonl", "JSON lines"],
  ["parquet", "Parquet"],
];
const RETENTIONS = [
  ["discard", "Delete at once"],
  ["keep_days", "Keep for some days"],
  ["keep", "Keep for ever"],
];
const RULES = [
  ["labels_per_item", "", "Labels that make an item ready.", 1],
  ["max_wait", "seconds", "Then it is ready with fewer. Empty: never.", 0],
  ["chunk_items", "", "Ready items that are cut and learned together.", 1],
  ["max_chunk_wait", "seconds", "Then it is cut with fewer. Empty: never.", 0],
  ["grace", "seconds", "For later labels, reasons and “Ask next”. Empty: for good.", 0],
  ["days", "", "Where they are kept for some days.", 0],
  ["max_workers", "", "Labels of more are refused.", 1],
];

export function page({ stream, go }) {
  const name = renameDeletePanel(stream, go);
  const rules = rulesPanel(stream);
  const keys = keysPanel(stream);
  return {
    title: `Settings of ${stream}`,
    head: el("h1", { tabindex: "-1" }, "Export and settings"),
    node: el(
      "div",
      { class: "grid settings-grid" },
      el("div", { class: "stack" }, exportPanel(stream), thresholdPanel(), name.node),
      rules.node,
      keys.node,
    ),
    skeleton: "detail",
    async load(signal) {
      const [about, may, mayAll] = await Promise.all([
        api.get(api.pathOf(stream), {}, signal),
        api.mayRule(stream),
        api.mayRule(),
      ]);
      const found = mayAll ? await api.get("/v1/keys", {}, signal) : { keys: null };
      return { about, may, found };
    },
    show({ about, may, found }) {
      rules.allow(may);
      name.show(about, may);
      rules.show(about.rules);
      keys.show(found.keys);
    },
    hear(event) {
      if (event.kind === "rules") rules.again();
    },
  };
}

/** Say how something went, in the place of what was said before. */
function telling() {
  const node = el("p", { class: "report", role: "status" });
  return {
    node,
    good: (text) => fill(node, text),
    bad(error) {
      fill(node, el("span", { class: "form-error" }, icon("alert"), inOurWords(error.message)));
    },
  };
}

function exportPanel(stream) {
  const report = telling();
  const get = async (path, params, name, button) => {
    button.disabled = true;
    try {
      await api.download(path, params, fileName(stream, name));
      report.good(`${fileName(stream, name)} is on its way.`);
    } catch (error) {
      report.bad(error);
    } finally {
      button.disabled = false;
    }
  };
  const rows = FILES.map(([what, words, says]) => {
    const buttons = FORMATS.map(([format, name]) => {
      const button = el(
        "button",
        { class: "button", type: "button", "aria-label": `${words} as ${name}` },
        icon("download"),
        name,
      );
      button.addEventListener("click", () =>
        get(api.pathOf(stream, "export"), { what, format }, `${what}.${format}`, button),
      );
      return button;
    });
    return el(
      "div",
      { class: "export-row" },
      el("p", {}, el("strong", {}, words), el("span", { class: "small muted" }, says)),
      el("div", { class: "buttons" }, buttons),
    );
  });
  const model = el("button", { class: "button", type: "button" }, icon("download"), "model.lq");
  model.addEventListener("click", () => get(api.pathOf(stream, "model"), {}, "model.lq", model));
  const last = el(
    "div",
    { class: "export-row" },
    el(
      "p",
      {},
      el("strong", {}, "Model"),
      el("span", { class: "small muted" }, "labelquorum.load reads it"),
    ),
    el("div", { class: "buttons" }, model),
  );
  return panel("Take the results away", {}, rows, last, report.node);
}

function thresholdPanel() {
  const input = el("input", {
    type: "range",
    min: 0.5,
    max: 0.99,
    step: 0.01,
    value: unsureBelow(),
    class: "slider",
    id: "unsure",
  });
  const output = el("output", { for: "unsure" }, percent(unsureBelow(), 0));
  input.addEventListener("input", () => {
    setUnsureBelow(input.value);
    fill(output, percent(Number(input.value), 0));
  });
  return panel(
    "Threshold",
    { note: "in this browser" },
    el(
      "div",
      { class: "field" },
      el("label", { for: "unsure" }, "An answer is unsure below ", output),
      input,
      el(
        "p",
        { class: "hint" },
        "Such answers are marked, and found under Items. It changes nothing in the stream.",
      ),
    ),
  );
}

function rulesPanel(stream) {
  const report = telling();
  const inputs = Object.fromEntries(
    RULES.map(([name, , , least]) => [
      name,
      el("input", { type: "number", min: least, step: "any", name }),
    ]),
  );
  const retention = select(RETENTIONS, "keep", { name: "retention" });
  let held = null;

  async function change(event) {
    event.preventDefault();
    const wanted = { retention: retention.value };
    for (const [name] of RULES)
      wanted[name] = inputs[name].value === "" ? null : Number(inputs[name].value);
    const changed = Object.fromEntries(
      Object.entries(wanted).filter(([name, value]) => value !== held[name]),
    );
    if (!Object.keys(changed).length) {
      report.good("Nothing was changed.");
      return;
    }
    try {
      show((await api.send("PATCH", api.pathOf(stream), changed)).rules);
      report.good("The new rules hold from now on.");
    } catch (error) {
      report.bad(error);
    }
  }

  function show(rules) {
    held = rules;
    for (const [name] of RULES) inputs[name].value = rules[name] ?? "";
    retention.value = rules.retention;
  }

  const fields = RULES.map(([name, unit, hint]) =>
    field(unit ? `${ruleWord(name)} (${unit})` : ruleWord(name), inputs[name], hint),
  );
  fields.splice(
    4,
    0,
    field("Raw labels", retention, "What becomes of them once they are learned from."),
  );
  const save = el("button", { class: "button primary", type: "submit" }, "Change rules");
  const inner = el("fieldset", { class: "fields" }, fields);
  const node = panel(
    "Rules of the stream",
    { note: "they hold from now on" },
    el(
      "form",
      { class: "rules", on: { submit: change } },
      inner,
      el("div", { class: "actions left" }, save, report.node),
    ),
  );

  function allow(may) {
    inner.disabled = save.hidden = !may;
    if (!may) report.good("Rules are changed with a key of the scope admin. Yours is another.");
  }

  async function again() {
    const { rules } = await api.get(api.pathOf(stream));
    if (JSON.stringify(rules) === JSON.stringify(held)) return; // we did it ourselves
    show(rules);
    report.good("The rules were changed elsewhere just now.");
  }

  return { node, show, allow, again };
}

function keysPanel(stream) {
  const report = telling();
  const secret = el("div");
  const body = el("div");
  const parts = {
    name: el("input", { required: true, maxlength: 256, autocomplete: "off" }),
    scope: select(
      [
        ["read", "read"],
        ["write", "write"],
        ["admin", "admin"],
      ],
      "read",
    ),
    reach: select(
      [
        ["stream", "this stream"],
        ["all", "all streams"],
      ],
      "stream",
    ),
  };

  async function make(event) {
    event.preventDefault();
    const wanted = {
      name: parts.name.value,
      scope: parts.scope.value,
      stream: parts.reach.value === "all" ? null : stream,
    };
    try {
      const made = await api.send("POST", "/v1/keys", wanted);
      fill(
        secret,
        el(
          "p",
          { class: "secret" },
          "The key of ",
          named(made.name),
          ", shown this once: ",
          el("code", {}, made.key),
        ),
      );
      parts.name.value = "";
      report.good("");
      show((await api.get("/v1/keys")).keys);
    } catch (error) {
      report.bad(error);
    }
  }

  async function revoke(key) {
    report.good("");
    try {
      await api.send("DELETE", `/v1/keys/${key.id}`);
      show((await api.get("/v1/keys")).keys);
    } catch (error) {
      report.bad(error);
    }
  }

  const dialog = el("dialog", { class: "dialog", "aria-labelledby": "revoke" });

  /** It is asked twice: who uses the key is shut out at once. */
  function ask(key) {
    const close = () => dialog.close();
    const go = () => {
      close();
      revoke(key);
    };
    fill(
      dialog,
      el("h2", { id: "revoke" }, "Revoke ", named(key.name), "?"),
      el("p", {}, "Requests with this key are rejected from now on. This cannot be undone."),
      el(
        "div",
        { class: "actions" },
        el("button", { class: "button", type: "button", on: { click: close } }, "Cancel"),
        el(
          "button",
          { class: "button danger", type: "button", on: { click: go } },
          "Revoke for good",
        ),
      ),
    );
    dialog.showModal();
  }

  function show(keys) {
    if (keys === null) {
      fill(
        body,
        el(
          "p",
          { class: "muted padded" },
          "Keys are made and seen with a key of the scope admin for all streams. Yours is another.",
        ),
      );
      form.hidden = true;
      return;
    }
    form.hidden = false;
    const heads = [["Name"], ["Scope"], ["For"], ["Made", "wide"], ["", "number"]];
    const rows = keys.map((key) => {
      const end = key.revoked_at
        ? el("span", { class: "muted" }, "revoked")
        : el(
            "button",
            {
              class: "button small",
              type: "button",
              "aria-label": `Revoke the key ${key.name}`,
              on: { click: () => ask(key) },
            },
            "Revoke…",
          );
      return el(
        "tr",
        { class: key.revoked_at ? "gone" : null },
        el("th", { scope: "row" }, named(key.name)),
        el("td", {}, el("span", { class: "chip", data: { tone: "idle" } }, key.scope)),
        el("td", {}, key.stream === null ? "all streams" : named(key.stream)),
        el("td", { class: "wide muted" }, moment(key.created_at)),
        el("td", { class: "number" }, end),
      );
    });
    fill(body, shortTable({ caption: "Keys of the service", heads, rows }));
  }

  const form = el(
    "form",
    { class: "inline-form", on: { submit: make } },
    field("Name of a new key", parts.name),
    field("Scope", parts.scope),
    field("For", parts.reach),
    el("button", { class: "button primary", type: "submit" }, "Make key"),
  );
  const node = panel("Keys", { flush: true }, body, secret, form, report.node, dialog);
  node.classList.add("keys");
  return { node, show };
}
