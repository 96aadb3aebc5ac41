// Rename a stream, or delete it for good.

import * as api from "./api.js";
import { el, fill, icon, named } from "./dom.js";
import { counted, inOurWords } from "./format.js";
import { field, panel } from "./states.js";

/** A panel for who may; `go` leads to another page. */
export function renameDeletePanel(stream, go) {
  const report = el("p", { class: "report", role: "status" });
  const name = el("input", {
    value: stream,
    required: true,
    maxlength: 256,
    name: "name",
    autocomplete: "off",
  });

  async function rename(event) {
    event.preventDefault();
    if (name.value === stream) {
      fill(report, "Nothing was changed.");
      return;
    }
    try {
      const { name: next } = await api.send("PATCH", api.pathOf(stream), { name: name.value });
      api.renewKey();
      go(["s", next, "settings"]);
    } catch (error) {
      fill(report, failed(error));
    }
  }

  const held = el("p");
  const dialog = deleting(stream, held, go);
  const open = el(
    "button",
    { class: "button", type: "button", on: { click: () => dialog.showModal() } },
    "Delete this stream…",
  );
  const node = panel(
    "Name of the stream",
    { note: "clients must use the new one" },
    el(
      "form",
      { class: "rename", on: { submit: rename } },
      field("Name", name),
      el(
        "div",
        { class: "actions left" },
        el("button", { class: "button primary", type: "submit" }, "Rename"),
        report,
      ),
    ),
    el("div", { class: "danger-zone" }, open),
    dialog,
  );
  node.classList.add("rename-delete");
  return {
    node,
    show({ counts }, may) {
      node.hidden = !may;
      const all = counts.answered_items + counts.waiting_items;
      fill(
        held,
        `${counted(all, "item")}, their labels and answers, the workers and the model go for good. Keys for this stream alone go with it. A backup is the only way back.`,
      );
    },
  };
}

/** The name is typed: a stream cannot be brought back. */
function deleting(stream, held, go) {
  const report = el("p", { class: "form-error", role: "alert" });
  const typed = el("input", { autocomplete: "off", spellcheck: "false", name: "typed" });
  const end = el("button", { class: "button danger", type: "submit", disabled: true }, "Delete for good");
  typed.addEventListener("input", () => (end.disabled = typed.value !== stream));

  async function remove(event) {
    event.preventDefault();
    if (typed.value !== stream) return; // Enter submits as well
    end.disabled = true; // a second request would find no stream
    try {
      await api.send("DELETE", api.pathOf(stream));
      dialog.close();
      go([]);
    } catch (error) {
      end.disabled = false;
      fill(report, failed(error));
    }
  }

  const close = () => dialog.close();
  const dialog = el(
    "dialog",
    { class: "dialog", "aria-labelledby": "delete" },
    el("h2", { id: "delete" }, "Delete ", named(stream), "?"),
    held,
    el(
      "form",
      { on: { submit: remove } },
      field("Type its name to confirm", typed),
      report,
      el(
        "div",
        { class: "actions" },
        el("button", { class: "button", type: "button", on: { click: close } }, "Cancel"),
        end,
      ),
    ),
  );
  dialog.addEventListener("close", () => {
    typed.value = "";
    end.disabled = true;
    fill(report);
  });
  return dialog;
}

function failed(error) {
  return el("span", { class: "form-error" }, icon("alert"), inOurWords(error.message));
}
