// Layers × modules on a canvas: one hue for the share written, an orange bar for the unexpected.
import { $, show, text } from "./dom.js";
import { count, percent } from "./format.js";
import { arrange, hit } from "./geometry.js";
import { labelFont, paintGrid } from "./heatpaint.js";
import { dirty } from "./paint.js";

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const ANNOUNCE_MS = 5_000;

export class Heatmap {
  /** open(row, column, opener) is called for a chosen cell. */
  constructor(root, open) {
    Object.assign(this, { root, openCell: open, canvas: $("canvas", root), at: null, grid: null });
    Object.assign(this, { map: $(".map", root), tip: $(".tip", root), announcedAt: 0 });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", dirty);
    this.canvas.addEventListener("blur", () => this.leave());
    new ResizeObserver(dirty).observe(root);
  }

  draw(load) {
    const { grid } = load;
    const isEmpty = !grid || !grid.cells.length;
    this.root.toggleAttribute("data-empty", isEmpty);
    if (isEmpty || this.root.dataset.view !== "map") return;
    if (grid !== this.grid) this.adopt(grid);
    this.places = this.arrange();
    if (paintGrid(this.canvas, this.places, load, this.at)) dirty();
    if (this.at && performance.now() - this.announcedAt > ANNOUNCE_MS) this.announce();
  }

  adopt(grid) {
    this.grid = grid;
    this.cells = new Map(grid.cells.map((cell) => [`${cell.row}/${cell.column}`, cell]));
    if (this.at && (this.at.row >= grid.rows.length || this.at.column >= grid.columns.length)) this.at = null;
  }

  arrange() {
    const context = this.canvas.getContext("2d");
    const width = this.map.clientWidth;
    context.font = labelFont(width);
    return arrange(this.grid, width, (words) => context.measureText(words).width);
  }

  point(event) {
    const found = this.places && hit(this.places, event.offsetX, event.offsetY);
    if (!found) return this.leave();
    this.move(found);
    this.placeTip();
  }

  leave() {
    show(this.tip, false);
    if (document.activeElement !== this.canvas && $("#drill").hidden) this.at = null;
    dirty();
  }

  click(event) {
    const found = this.places && hit(this.places, event.offsetX, event.offsetY);
    if (!found) return;
    this.move(found);
    this.open();
  }

  key(event) {
    if (!this.grid) return;
    if (event.key === "Enter" || event.key === " ") this.open();
    else if (event.key === "Home") this.move({ row: 0, column: 0 });
    else if (STEPS[event.key]) this.step(...STEPS[event.key]);
    else return;
    event.preventDefault();
  }

  step(down, right) {
    const from = this.at ?? { row: 0, column: -right };
    const within = (value, length) => Math.max(0, Math.min(length - 1, value));
    this.move({
      row: within(from.row + down, this.grid.rows.length),
      column: within(from.column + right, this.grid.columns.length),
    });
    show(this.tip, false);
  }

  move(at) {
    if (this.at && this.at.row === at.row && this.at.column === at.column) return;
    this.at = at;
    this.announce();
    dirty();
  }

  open() {
    if (this.at && this.cell())
      this.openCell(this.grid.rows[this.at.row], this.grid.columns[this.at.column], this.canvas);
  }

  cell() {
    return this.cells.get(`${this.at.row}/${this.at.column}`);
  }

  announce() {
    this.announcedAt = performance.now();
    text($(".readout", this.root), this.words(" · "));
    if (!this.tip.hidden) text(this.tip, this.words("\n"));
  }

  /** The cell in words: what the colour says to the eye. */
  words(join) {
    const row = this.grid.rows[this.at.row];
    const place = `${/^\d+$/.test(row) ? `layer ${row}` : row} · ${this.grid.columns[this.at.column]}`;
    const cell = this.cell();
    if (!cell) return `${place}${join}no such parameter`;
    const faults = cell.unexpected ? `${join}${count(cell.unexpected)} unexpected` : "";
    const parts = `${count(cell.parameters)} ${cell.parameters === 1 ? "parameter" : "parameters"}`;
    return `${place}${join}${percent(cell.written, cell.total)} written${join}${count(cell.written)} of ${count(cell.total)} elements, ${parts}${faults}`;
  }

  placeTip() {
    const { map, tip } = this;
    show(tip, true);
    text(tip, this.words("\n"));
    const left = this.places.x[this.at.column] + this.places.cellWidth + 8;
    const room = map.clientWidth + map.scrollLeft - tip.offsetWidth - 4;
    tip.style.left = `${left > room ? this.places.x[this.at.column] - tip.offsetWidth - 8 : left}px`;
    tip.style.top = `${Math.min(this.places.y[this.at.row] + 4, this.places.height - tip.offsetHeight - 4)}px`;
  }
}
