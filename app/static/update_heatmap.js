// The map of changes: colour is the relative size on a logarithmic scale, shapes tell the rest.
import { $, el, fill, show, text } from "./dom.js";
import { count } from "./format.js";
import { Heatmap } from "./heatmap.js";
import { dirty, onPaint } from "./paint.js";
import { changeGrid, isBroken, look } from "./update_grid.js";
import { paintChange } from "./update_heatpaint.js";
import { brokenWords, share, small } from "./update_words.js";

export class ChangeMap extends Heatmap {
  constructor(root) {
    super(root, () => {});
    Object.assign(this, { cellsSeen: null, wordsSeen: null });
    $(".as-table", root).addEventListener("click", (event) => this.toggle(event.currentTarget));
    onPaint(() => this.paint());
  }

  /** A record that is fetched again mostly says the same: then a selection in the table stays. */
  draw(cells) {
    if (cells === this.cellsSeen) return;
    this.cellsSeen = cells;
    const words = JSON.stringify(cells);
    if (words === this.wordsSeen) return;
    this.wordsSeen = words;
    this.root.toggleAttribute("data-empty", !cells.length);
    this.adopt(changeGrid(cells));
    this.drawLegend();
    drawTwin($(".twin table", this.root), this.grid);
    dirty();
  }

  paint() {
    if (!this.root.isConnected || !this.grid?.cells.length || this.root.dataset.view === "table") return;
    this.places = this.arrange();
    paintChange(this.canvas, this.places, this.grid, this.at);
  }

  drawLegend() {
    const { scale, cells } = this.grid;
    const has = (test) => cells.some(test);
    fill(this.root, { low: scale ? `1e${scale.low}` : "", high: scale ? `1e${scale.high}` : "" });
    show($("[data-legend=scale]", this.root), scale !== null);
    show(
      $("[data-legend=unchanged]", this.root),
      has((cell) => !cell.changed),
    );
    show(
      $("[data-legend=unsized]", this.root),
      has((cell) => look(cell, scale).kind === "unsized"),
    );
    show($("[data-legend=broken]", this.root), has(isBroken));
  }

  toggle(button) {
    const isTable = this.root.dataset.view === "map";
    this.root.dataset.view = isTable ? "table" : "map";
    button.setAttribute("aria-pressed", isTable);
    text(button, isTable ? "View as map" : "View as table");
    dirty();
  }

  leave() {
    show(this.tip, false);
    if (document.activeElement !== this.canvas) this.at = null;
    dirty();
  }

  /** All that is known of a cell is said as soon as it is pointed at. */
  open() {
    if (this.at) this.announce();
  }

  words(join) {
    const row = this.grid.rows[this.at.row];
    const place = `${row === "top" ? row : `layer ${row}`} · ${this.grid.columns[this.at.column]}`;
    const cell = this.cell();
    if (!cell) return `${place}${join}no such parameter`;
    return [place, ...facts(cell)].join(join);
  }
}

function facts(cell) {
  const broken = isBroken(cell) ? [brokenWords(cell)] : [];
  if (!cell.changed) return ["unchanged", `${count(cell.elements)} elements`, ...broken];
  return [
    cell.relative === null ? "no relative size" : `relative ${small(cell.relative)}`,
    `${share((100 * cell.changed) / cell.elements)} of ${count(cell.elements)} elements`,
    `rms ${small(cell.rms)}, at most ${small(cell.max_abs)}`,
    ...broken,
  ];
}

function drawTwin(table, grid) {
  const [head] = table.tHead.rows;
  head.replaceChildren(...["layer", ...grid.columns].map((column) => el("th", { scope: "col" }, column)));
  const lines = grid.rows.map((row) =>
    el("tr", {}, el("th", { scope: "row" }, row), ...grid.columns.map(() => el("td"))),
  );
  for (const cell of grid.cells) {
    const place = lines[cell.row].children[cell.column + 1];
    place.textContent = twinWords(cell);
    place.toggleAttribute("data-fault", isBroken(cell));
  }
  table.tBodies[0].replaceChildren(...lines);
}

function twinWords(cell) {
  const size = cell.changed ? (cell.relative === null ? "changed" : small(cell.relative)) : "unchanged";
  return isBroken(cell) ? `${size}, ${brokenWords(cell)}` : size;
}
