// A certificate: which answers may stand without a person, and which tasks people must still see.

import * as api from "./api.js";
import { el, fill, icon, link, named } from "./dom.js";
import { count, counted, fileName, percent } from "./format.js";
import { field, panel } from "./states.js";

const SHOWN = 12;

/** A form for the error allowed and how certain it must be, and what the service says to it. */
export function certificatePanel(stream) {
  const share = (name, value, id) =>
    el("input", { type: "number", name, id, min: 0.1, max: 99.9, step: 0.1, value, required: true });
  const error = share("error", 5, "certify-error");
  const sure = share("confidence", 95, "certify-confidence");
  const result = el("div", { class: "certificate", role: "status" });
  const button = el("button", { class: "button", type: "submit" }, "Certify");
  const form = el(
    "form",
    { class: "certify-form", on: { submit } },
    field("Wrong labels allowed, %", error),
    field("How certain, %", sure),
    button,
  );
  let asked = false;

  const wanted = () => ({ error: error.value / 100, confidence: sure.value / 100 });

  async function submit(event) {
    event.preventDefault();
    await ask();
  }

  async function ask() {
    asked = true;
    button.disabled = true;
    const params = wanted();
    try {
      const found = await api.get(api.pathOf(stream, "certificate"), { ...params, limit: SHOWN });
      fill(result, verdict(stream, found, params));
    } catch (refused) {
      fill(result, el("p", { class: "form-error", role: "alert" }, icon("alert"), refused.message));
    } finally {
      button.disabled = false;
    }
  }

  return {
    node: panel(
      "Certificate",
      { note: "by gold drawn at random; look as often as you like" },
      form,
      result,
    ),
    /** Ask once, with what the form holds at first. */
    show() {
      if (!asked) ask();
    },
  };
}

function verdict(stream, found, params) {
  if (!found.certified)
    return el(
      "p",
      { data: { certified: "no" } },
      el("strong", {}, "No certificate: "),
      found.gold_needed === null
        ? found.reason
        : `${count(found.gold)} gold labels are too few. It takes at least ${count(found.gold_needed)} of ${counted(found.tasks, "item")}, drawn at random.`,
    );
  return [
    el(
      "p",
      { data: { certified: "yes" } },
      el("strong", {}, `${count(found.accepted)} answers may stand. `),
      `If people label the other ${counted(found.todo_tasks, "item")}, at most ${percent(found.error_bound)} of all labels are wrong, and at most ${percent(found.accepted_error_bound)} of those accepted (${count(found.gold)} are gold).`,
    ),
    found.todo_tasks ? todo(stream, found, params) : null,
  ];
}

/** The least sure of the tasks a person must still see, and all of them as a file. */
function todo(stream, found, params) {
  const saved = el("p", { class: "form-error", role: "alert" });
  const button = el(
    "button",
    { class: "button small", type: "button" },
    icon("download"),
    `All ${count(found.todo_tasks)} as CSV`,
  );
  button.addEventListener("click", async () => {
    fill(saved);
    try {
      const asked = { ...params, format: "csv" };
      await api.download(api.pathOf(stream, "certificate"), asked, fileName(stream, "todo.csv"));
    } catch (error) {
      fill(saved, icon("alert"), error.message);
    }
  });
  return [
    el("p", { class: "small muted" }, "A person must still see, the least sure first:"),
    el(
      "ul",
      { class: "todo" },
      found.todo.map((task) => el("li", {}, link(["s", stream, "items", task], named(task)))),
    ),
    button,
    saved,
  ];
}
