// A square matrix as a heat map: a table with numbers where they fit, else a canvas with a cursor.

import { colour } from "./charts.js";
import { el, named } from "./dom.js";
import { percent } from "./format.js";

const MOST_IN_A_TABLE = 12;

/**
 * A matrix of P(says z | truth c), by row c.
 *
 * `other` is a matrix to compare with; the readout names both values of a cell.
 */
export function heatmap({ classes, matrix, other = null, tone = "accent", ...rest }) {
  const says = (c, z) => {
    const report = `Truth ${classes[c]}, says ${classes[z]}: ${percent(matrix[c][z])}`;
    return other ? `${report} (${percent(other[c][z])} on the other map)` : report;
  };
  return squareMap({ classes, matrix, tone, says, corner: "Truth", noun: "classes", ...rest });
}

/** A matrix of shares, null where nothing is known; `says(c, z)` is the sentence of a cell. */
export function squareMap(map) {
  return map.classes.length <= MOST_IN_A_TABLE ? asTable(map) : asCanvas(map);
}

function asTable({ caption, classes, matrix, tone, says, corner }) {
  const head = el(
    "tr",
    {},
    el("th", { scope: "col", class: "heat-corner" }, corner),
    classes.map((one) =>
      el("th", { scope: "col", class: "heat-head", title: String(one) }, named(one)),
    ),
  );
  const rows = matrix.map((row, c) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", class: "heat-side", title: String(classes[c]) }, named(classes[c])),
      row.map((prob, z) => {
        const style = { "--heat": `${Math.round(Math.max(0, prob) * 100)}%` };
        const strong = prob > 0.82 ? "strong" : prob > 0.63 ? "mid" : "weak"; // so that the number is read on it
        return el(
          "td",
          {
            class: `heat ${strong} ${c === z ? "right" : ""}`,
            data: { tone },
            style,
            title: says(c, z),
          },
          prob === null ? "–" : percent(prob, 0).replace(/\s?%/, ""),
        );
      }),
    ),
  );
  return el(
    "div",
    { class: "heat-box", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      { class: "heat-table" },
      el("caption", {}, caption),
      el("thead", {}, head),
      el("tbody", {}, rows),
    ),
  );
}

function asCanvas({ caption, classes, matrix, tone, says, noun }) {
  const n = classes.length;
  const size = Math.max(2, Math.floor(360 / n)) * n;
  const canvas = el("canvas", {
    class: "heat-canvas",
    width: size,
    height: size,
    tabindex: "0",
    role: "img",
  });
  const report = el("p", { class: "readout" }, "Point at a cell, or walk with the arrow keys.");
  const at = { c: 0, z: 0, seen: false };
  canvas.setAttribute(
    "aria-label",
    `${caption}. ${n} ${noun}. The table beside it has the cells to look at first.`,
  );

  const step = size / n;
  const pen = canvas.getContext("2d");
  const cells = el("canvas", { width: size, height: size }); // never shown: what lies under the cursor

  function drawCells() {
    const under = cells.getContext("2d");
    under.globalAlpha = 1;
    under.fillStyle = colour("sunken");
    under.fillRect(0, 0, size, size);
    under.fillStyle = colour(tone); // asked for once: it makes the browser lay the page out
    matrix.forEach((row, c) =>
      row.forEach((prob, z) => {
        if (prob < 0.005) return;
        under.globalAlpha = Math.min(1, 0.08 + prob);
        under.fillRect(z * step, c * step, step, step);
      }),
    );
    pen.strokeStyle = colour("text");
    drawCursor();
  }

  function drawCursor() {
    pen.drawImage(cells, 0, 0);
    if (at.seen) pen.strokeRect(at.z * step + 0.5, at.c * step + 0.5, step - 1, step - 1);
  }

  function go(c, z) {
    const [row, column] = [c, z].map((one) => Math.max(0, Math.min(n - 1, one)));
    if (at.seen && at.c === row && at.z === column) return;
    Object.assign(at, { c: row, z: column, seen: true });
    report.textContent = says(row, column);
    drawCursor();
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    go(
      Math.floor(((event.clientY - box.top) / box.height) * n),
      Math.floor(((event.clientX - box.left) / box.width) * n),
    );
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ];
    if (!move) return;
    event.preventDefault();
    go(at.c + move[0], at.z + move[1]);
  });
  canvas.addEventListener("recolour", drawCells);
  drawCells();
  return el("figure", { class: "heat-figure" }, el("figcaption", {}, caption), canvas, report);
}
