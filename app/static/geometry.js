// Where the heat map's cells and labels go: from grid names and a width to pixels, no drawing.
const GROUP_GAP = 7;
const TIGHT_GAP = 3;
const TOP_GAP = 5;
const LABEL_GAP = 8;
const SLANT = Math.PI * 0.3; // 54 degrees: readable, and half as wide as it is long
export const NARROW = 640;

/** measure(text) gives a width in pixels. */
export function arrange(grid, width, measure) {
  const left = Math.ceil(Math.max(...grid.rows.map(measure))) + LABEL_GAP + 2;
  const lengths = grid.columns.map(measure);
  const slant = width < NARROW ? Math.PI / 2 : SLANT;
  const top = Math.ceil(Math.max(...lengths) * Math.sin(slant)) + 18;
  const reach = lengths.map((length) => length * Math.cos(slant) + 8);
  const columnGaps = gapsBefore(grid.columns, isSameGroup, width < NARROW ? TIGHT_GAP : GROUP_GAP);
  const rowGaps = gapsBefore(grid.rows, isSameKind, TOP_GAP);
  const cellWidth = fitWidth(width - left, columnGaps, reach);
  const cellHeight = rowHeight(grid.rows.length);
  const x = columnGaps.map((gap, i) => left + gap + i * cellWidth);
  const y = rowGaps.map((gap, i) => top + gap + i * cellHeight);
  return {
    left,
    top,
    slant,
    cellWidth,
    cellHeight,
    x,
    y,
    width: fullWidth(width, x, cellWidth, reach),
    height: y.at(-1) + cellHeight + 4,
  };
}

/** The part of a module's name that it shares with its neighbours: "attn.o.scale" -> "attn". */
export function group(column) {
  return column.includes(".") ? column.split(".")[0] : "";
}

/** The same grid with the modules of one group side by side; cells keep their index. */
export function inGroups(grid) {
  const place = (column) =>
    grid.columns.findIndex(
      (other) => isSameGroup(column, other) && (column === other || group(other) || group(column)),
    );
  const order = grid.columns
    .map((_, i) => i)
    .sort((a, b) => place(grid.columns[a]) - place(grid.columns[b]) || a - b);
  const moved = new Map(order.map((from, to) => [from, to]));
  const cells = grid.cells.map((cell) => ({ ...cell, column: moved.get(cell.column) }));
  return { rows: grid.rows, columns: order.map((i) => grid.columns[i]), cells };
}

/** Cell indexes under a point, or null beside the grid. */
export function hit(places, px, py) {
  const column = places.x.findIndex((x) => px >= x && px < x + places.cellWidth);
  const row = places.y.findIndex((y) => py >= y && py < y + places.cellHeight);
  return row < 0 || column < 0 ? null : { row, column };
}

/** Offsets that set groups apart; isNear says whether two neighbours belong together. */
function gapsBefore(names, isNear, gap) {
  let sum = 0;
  return names.map((name, i) => (sum += i && !isNear(name, names[i - 1]) ? gap : 0));
}

/** "router" belongs to "router.bias"; "norm" and "lm_head" are both on their own. */
function isSameGroup(a, b) {
  return group(a) === group(b) || a.split(".")[0] === b.split(".")[0];
}

function isSameKind(a, b) {
  return isNumber(a) === isNumber(b);
}

function isNumber(name) {
  return /^\d+$/.test(name);
}

/** The widest cell at which no label's end leaves the canvas. */
function fitWidth(available, gaps, reach) {
  const n = gaps.length;
  const limits = gaps.map((gap, i) => (available - gap - reach[i]) / (i + 0.5));
  const widest = Math.min((available - gaps[n - 1]) / n, ...limits);
  return Math.max(9.5, Math.min(64, Math.floor(widest * 2) / 2));
}

function fullWidth(width, x, cellWidth, reach) {
  return Math.max(
    width,
    Math.ceil(Math.max(...x.map((left, i) => left + Math.max(cellWidth, cellWidth / 2 + reach[i])))),
  );
}

function rowHeight(rows) {
  return Math.max(11, Math.min(26, Math.floor(680 / rows)));
}
