// Elements, made without ever reading text as markup: what a stranger typed stays text.

const SVG = "http://www.w3.org/2000/svg";

/** An element with its properties and children; text becomes text nodes. */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same for a picture's parts. */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    } else if (name === "style") {
      for (const [rule, given] of Object.entries(value)) node.style.setProperty(rule, given);
    } else if (name === "data") {
      Object.assign(node.dataset, value);
    } else if (name === "value" || name === "checked" || name === "selected") {
      node[name] = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  put(node, ...children);
  return node;
}

/** Add children to an element: nodes, texts, numbers, lists of them. */
export function put(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** Put these in the place of all that an element holds. */
export function fill(node, ...children) {
  node.replaceChildren();
  return put(node, ...children);
}

/** A name that a user gave, shown as it was typed and kept from turning what stands around it. */
export function named(text, props = {}) {
  return el("bdi", { ...props, class: `name ${props.class ?? ""}`.trim() }, String(text));
}

/** Words for screen readers alone. */
export function unseen(text) {
  return el("span", { class: "unseen" }, text);
}

/** A link to a page of ours, by the parts of its address and what is asked of it. */
export function link(parts, children, { query = {}, ...props } = {}) {
  return el("a", { ...props, href: address(parts, query) }, children);
}

/** The address of a page, such as #/s/birds/items. */
export function address(parts, query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const path = parts.map((part) => encodeURIComponent(String(part))).join("/");
  return `#/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

const SHAPES = {
  alert: ["M8 1.8 15 14H1z", "M8 6.2v3.6", "M8 11.9v.2"],
  auto: ["M8 1.5a6.5 6.5 0 1 0 0 13z", "M8 1.5a6.5 6.5 0 1 1 0 13"],
  back: ["M10 3 5 8l5 5"],
  dark: ["M13.6 9.6A6 6 0 0 1 6.4 2.4a6 6 0 1 0 7.2 7.2z"],
  download: ["M8 2v8.2", "M4.6 7 8 10.4 11.4 7", "M2.5 13.5h11"],
  leave: ["M6.5 2.5h-4v11h4", "M6 8h7.5", "M10.6 5 13.6 8l-3 3"],
  light: [
    "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6z",
    "M8 1v1.4M8 13.6V15M1 8h1.4M13.6 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  ],
  plus: ["M8 3v10M3 8h10"],
  search: ["M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9z", "M10.4 10.4 14 14"],
};

/** A small drawing; it says nothing to a screen reader. */
export function icon(name) {
  const props = { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" };
  return svg(
    "svg",
    props,
    SHAPES[name].map((d) => svg("path", { d })),
  );
}
