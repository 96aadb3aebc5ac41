// Signing in: a key is typed, tried, and kept for as long as the tab is open.

import * as api from "../api.js";
import { el, fill, icon } from "../dom.js";
import { field } from "../states.js";

export function page({ again }) {
  const input = el("input", {
    type: "password",
    name: "key",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "lq_…",
  });
  const report = el("p", { class: "form-error", role: "alert" });
  const button = el("button", { class: "button primary", type: "submit" }, "Sign in");

  async function tryKey(event) {
    event.preventDefault();
    fill(report);
    if (!api.keep(input.value)) {
      fill(report, icon("alert"), "This is no key: it has a space or a letter that no key has.");
      input.focus();
      return;
    }
    button.disabled = true;
    try {
      await api.get("/v1/streams");
      again();
    } catch (error) {
      api.drop();
      fill(
        report,
        icon("alert"),
        error.status === 401
          ? "This key opens nothing. Check it, or ask the administrator for another."
          : error.message,
      );
      input.focus();
    } finally {
      button.disabled = false;
    }
  }

  const form = el(
    "form",
    { class: "panel login", on: { submit: tryKey } },
    field("Key", input, "It is kept in this tab only, and forgotten when you close it."),
    report,
    button,
    el(
      "p",
      { class: "muted small" },
      "labelquorum serve prints a key at its first start. While it runs, Settings makes further ones.",
    ),
  );
  return {
    title: "Sign in",
    head: el(
      "div",
      { class: "login-head" },
      el("h1", { tabindex: "-1" }, "Sign in to LabelQuorum"),
      el("p", { class: "muted" }, "See the stream, the crowd and the doubt."),
    ),
    node: form,
    load: async () => null,
    show: () => input.focus(),
  };
}
