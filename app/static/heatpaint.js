// The heat map's strokes: cells, faults, labels, and the mark of the cell under the pointer.
import { NARROW, group } from "./geometry.js";
import { palette, shade } from "./palette.js";

const GLOW_MS = 450;
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

/** Returns true while something still fades and wants another frame. */
export function paintGrid(canvas, places, live, at) {
  const context = scaled(canvas, places.width, places.height);
  context.font = labelFont(places.width);
  paintAbsent(context, places, live.grid);
  live.grid.cells.forEach((cell) => paintCell(context, places, cell));
  const isGlowing = !isStill.matches && paintGlow(context, places, live);
  paintColumns(context, places, live.grid.columns, at);
  paintRows(context, places, live.grid.rows, at);
  if (at) {
    // two lines, so that one of them stands out on any shade
    outline(context, places, at, palette().surface, 4);
    outline(context, places, at, palette().ink, 2);
  }
  return isGlowing;
}

export function labelFont(width) {
  return `${width < NARROW ? 10 : 12}px ${getComputedStyle(document.body).fontFamily}`;
}

/** A cleared context in CSS pixels, sharp on any screen. */
export function scaled(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function paintAbsent(context, places, grid) {
  const present = new Set(grid.cells.map((cell) => cell.row * grid.columns.length + cell.column));
  context.fillStyle = palette().none;
  places.y.forEach((y, row) =>
    places.x.forEach((x, column) => {
      if (present.has(row * grid.columns.length + column)) return;
      context.fillRect(x + places.cellWidth / 2 - 1, y + places.cellHeight / 2 - 1, 1.5, 1.5);
    }),
  );
}

function paintCell(context, places, cell) {
  const [x, y] = [places.x[cell.column], places.y[cell.row]];
  context.fillStyle = shade(cell.written, cell.total);
  context.fillRect(x + 0.5, y + 0.5, places.cellWidth - 1, places.cellHeight - 1);
  if (!cell.unexpected) return;
  // the bar's width is the share, so one fault of 512 does not look like 512
  const share = Math.min(1, cell.unexpected / Math.max(1, cell.parameters));
  const height = Math.max(4, places.cellHeight * 0.4);
  const width = Math.max(5, (places.cellWidth - 1) * share);
  const top = y + places.cellHeight - 0.5 - height;
  // the seam keeps the bar apart from a full cell of about the same lightness
  context.fillStyle = palette().surface;
  context.fillRect(x + 0.5, top - 1, Math.min(width + 1, places.cellWidth - 1), height + 1);
  context.fillStyle = palette().fault;
  context.fillRect(x + 0.5, top, width, height);
}

function paintGlow(context, places, live) {
  const now = performance.now();
  let isGlowing = false;
  for (const [index, since] of live.touched) {
    const age = (now - since) / GLOW_MS;
    if (age >= 1) {
      live.touched.delete(index);
      continue;
    }
    isGlowing = true;
    context.globalAlpha = 1 - age;
    outline(context, places, live.grid.cells[index], palette().accent, 1.5);
  }
  context.globalAlpha = 1;
  return isGlowing;
}

function outline(context, places, { row, column }, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.strokeRect(
    places.x[column] + width / 2 - 0.5,
    places.y[row] + width / 2 - 0.5,
    places.cellWidth + 1 - width,
    places.cellHeight + 1 - width,
  );
}

function paintColumns(context, places, columns, at) {
  const colours = palette();
  context.textAlign = "left";
  context.textBaseline = "middle";
  columns.forEach((column, i) => {
    const prefix = group(column) && `${group(column)}.`;
    context.save();
    context.translate(places.x[i] + places.cellWidth / 2, places.top - 6);
    context.rotate(-places.slant);
    context.fillStyle = at?.column === i ? colours.accent : colours.muted;
    context.fillText(prefix, 0, 0);
    context.fillStyle = at?.column === i ? colours.accent : colours.ink;
    context.fillText(column.slice(prefix.length), context.measureText(prefix).width, 0);
    context.restore();
  });
}

function paintRows(context, places, rows, at) {
  const colours = palette();
  context.textAlign = "right";
  context.textBaseline = "middle";
  const every = places.cellHeight >= 14 ? 1 : 5;
  rows.forEach((row, i) => {
    const isNumber = /^\d+$/.test(row);
    const near = at && Math.abs(at.row - i) < 2 && at.row !== i && every > 1;
    if (at?.row !== i && (near || (isNumber && Number(row) % every))) return;
    context.fillStyle = at?.row === i ? colours.accent : isNumber ? colours.muted : colours.ink;
    context.fillText(row, places.left - 8, places.y[i] + places.cellHeight / 2 + 0.5);
  });
}
