// Tensors as drawings: the whole as an outline, the slice as a filled part of it, to scale.
import { el, svg } from "./dom.js";
import { count } from "./format.js";

const LONG = 128;
const SHORT = 18; // nothing is drawn thinner, so a scale of 1 × 7,168 can still be seen
const TALL = 96;
const ROOM = 48; // for the row count at the left
const LEAST = 2.5;

/** boxes: [{slice: [[a, b], …], tone: 0…2, label}]; an empty list draws the whole as filled. */
export function drawBox(shape, boxes, caption, zoom = 1) {
  const { rows, columns } = plane(shape);
  const { width, height } = scale(rows, columns, zoom);
  const all = boxes.length ? boxes : [{ slice: shape.map((size) => [0, size]), tone: 0 }];
  const parts = all.map((box) => part(box, shape, width, height));
  const words = `${caption}: ${all.map((box) => box.label ?? describe(box.slice, shape)).join("; ")}`;
  const picture = svg(
    "svg",
    {
      class: "tensor",
      width: width + ROOM + 4,
      height: height + 22,
      viewBox: `${-ROOM} -20 ${width + ROOM + 4} ${height + 22}`,
      role: "img",
      "aria-label": words,
    },
    svg("rect", { width, height, class: "whole" }),
    ...parts,
    svg("rect", { width, height, class: "frame" }),
    svg("text", { x: width / 2, y: -6, "text-anchor": "middle" }, count(columns)),
    rows > 1 || shape.length > 1
      ? svg("text", { x: -6, y: height / 2 + 4, "text-anchor": "end" }, count(rows))
      : "",
  );
  return el("figure", {}, picture, el("figcaption", {}, caption));
}

/** A stack of experts shows the plane of one slot; which slot is written beside it. */
export function plane(shape) {
  if (!shape.length) return { rows: 1, columns: 1 };
  return { rows: shape.length > 1 ? shape.at(-2) : 1, columns: shape.at(-1) };
}

/** The slots of a stack as a strip, the filled one marked. */
export function drawSlots(total, [from, to], zoom = 1) {
  const width = LONG * zoom;
  const x = (from / total) * width;
  const label =
    to - from === 1 ? `slot ${from} of ${count(total)}` : `slots ${from}–${to - 1} of ${count(total)}`;
  const strip = svg(
    "svg",
    {
      class: "tensor",
      width: width + ROOM + 4,
      height: 16,
      viewBox: `${-ROOM} 0 ${width + ROOM + 4} 16`,
      role: "img",
      "aria-label": label,
    },
    svg("rect", { y: 2, width, height: 12, class: "whole" }),
    svg("rect", {
      x,
      y: 2,
      width: Math.max(LEAST, ((to - from) / total) * width),
      height: 12,
      class: "part",
      "data-tone": 0,
    }),
    svg("rect", { y: 2, width, height: 12, class: "frame" }),
  );
  return el("figure", {}, strip, el("figcaption", {}, label));
}

/** "rows 0–1,535 of 2,112, all 7,168 columns" */
export function describe(slice, shape) {
  const names =
    shape.length === 1
      ? ["elements"]
      : shape.length === 2
        ? ["rows", "columns"]
        : ["slots", "rows", "columns"];
  const words = slice.map(([from, to], dim) => range(names[dim] ?? `dim ${dim}`, from, to, shape[dim]));
  return words.join(", ") || "the scalar";
}

function range(name, from, to, size) {
  if (from === 0 && to === size) return `all ${count(to)} ${name}`;
  const which =
    to - from === 1 ? `${name.replace(/s$/, "")} ${count(from)}` : `${name} ${count(from)}–${count(to - 1)}`;
  return `${which} of ${count(size)}`;
}

function scale(rows, columns, zoom) {
  const ratio = rows / columns;
  const isTall = ratio > TALL / LONG;
  const width = isTall ? Math.max(SHORT, TALL / ratio) : LONG;
  const height = isTall ? TALL : Math.max(SHORT, LONG * ratio);
  return { width: width * zoom, height: height * zoom };
}

function part({ slice, tone, label }, shape, width, height) {
  const across = span(slice.at(-1), shape.at(-1), width);
  const down = span(shape.length > 1 ? slice.at(-2) : null, shape.at(-2), height);
  const title = svg("title", {}, label ?? describe(slice, shape));
  return svg(
    "rect",
    { x: across[0], y: down[0], width: across[1], height: down[1], class: "part", "data-tone": tone },
    title,
  );
}

function span(range, size, length) {
  if (!range || !size) return [0, length];
  const extent = Math.max(LEAST, ((range[1] - range[0]) / size) * length);
  return [Math.min((range[0] / size) * length, length - extent), extent];
}
