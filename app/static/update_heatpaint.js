// Strokes of the map of changes; labels and the dots of what is not there are the coverage map's.
import { paintGrid } from "./heatpaint.js";
import { palette } from "./palette.js";
import { isBroken, look } from "./update_grid.js";

const FIRST_SHADE = 9; // the ramp's beginning is too near to an empty place

export function paintChange(canvas, places, grid, at) {
  // without cells it paints a dot in every place: those of ours cover theirs
  paintGrid(canvas, places, { grid: { ...grid, cells: [] }, touched: new Map() }, at);
  const context = canvas.getContext("2d");
  for (const cell of grid.cells) paintCell(context, box(places, cell), cell, grid.scale);
  if (!at) return;
  outline(context, box(places, at), palette().surface, 4);
  outline(context, box(places, at), palette().ink, 2);
}

function box({ x, y, cellWidth, cellHeight }, { row, column }) {
  return { x: x[column] + 0.5, y: y[row] + 0.5, width: cellWidth - 1, height: cellHeight - 1 };
}

function paintCell(context, place, cell, scale) {
  const { surface, ramp } = palette();
  const { kind, share } = look(cell, scale);
  context.fillStyle =
    kind === "sized" ? ramp[FIRST_SHADE + Math.round(share * (ramp.length - 1 - FIRST_SHADE))] : surface;
  context.fillRect(place.x, place.y, place.width, place.height);
  if (kind === "unchanged") paintHollow(context, place);
  if (kind === "unsized") paintHatch(context, place);
  if (isBroken(cell)) paintCross(context, place);
}

function paintHollow(context, place) {
  outline(context, place, palette().none, 1);
}

/** Changed by an amount that has no size: lines, so that it is neither empty nor a shade. */
function paintHatch(context, place) {
  context.save();
  context.beginPath();
  context.rect(place.x, place.y, place.width, place.height);
  context.clip();
  context.beginPath();
  for (let offset = -place.height; offset < place.width; offset += 4) {
    context.moveTo(place.x + offset, place.y + place.height);
    context.lineTo(place.x + offset + place.height, place.y);
  }
  stroke(context, palette().muted, 1);
  context.restore();
  outline(context, place, palette().muted, 1);
}

/** A shape, so that it is seen without its colour; the seam parts it from any shade. */
function paintCross(context, { x, y, width, height }) {
  const reach = Math.max(2.5, Math.min(width, height) / 2 - 2.5);
  const [middleX, middleY] = [x + width / 2, y + height / 2];
  for (const [colour, thickness] of [
    [palette().surface, 5],
    [palette().bad, 2.2],
  ]) {
    context.beginPath();
    context.moveTo(middleX - reach, middleY - reach);
    context.lineTo(middleX + reach, middleY + reach);
    context.moveTo(middleX + reach, middleY - reach);
    context.lineTo(middleX - reach, middleY + reach);
    stroke(context, colour, thickness);
  }
}

function outline(context, place, colour, width) {
  context.beginPath();
  context.rect(place.x + width / 2, place.y + width / 2, place.width - width, place.height - width);
  stroke(context, colour, width);
}

function stroke(context, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.stroke();
}
