// The heat map's twin: the same cells as a real table, each a button that opens it.
import { $, el } from "./dom.js";
import { percent } from "./format.js";

const REFRESH_MS = 1_000; // ten rewrites a second of 1,500 cells help nobody

export class Twin {
  /** open(row, column, opener) is called for a chosen cell. */
  constructor(root, open) {
    Object.assign(this, { root, table: $("table", root), grid: null, buttons: [], drawnAt: 0 });
    $(".as-table", root).addEventListener("click", (event) => this.toggle(event.target));
    this.table.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) open(button.dataset.row, button.dataset.column, button);
    });
  }

  toggle(button) {
    const isTable = this.root.dataset.view === "map";
    this.root.dataset.view = isTable ? "table" : "map";
    button.setAttribute("aria-pressed", isTable);
    button.textContent = isTable ? "View as map" : "View as table";
    this.drawnAt = 0;
    document.dispatchEvent(new Event("viewchange"));
  }

  draw({ grid, state }) {
    if (!grid || this.root.dataset.view !== "table") return;
    if (grid !== this.grid) this.build(grid);
    if (performance.now() - this.drawnAt < REFRESH_MS && state.finished_t === null) return;
    this.drawnAt = performance.now();
    grid.cells.forEach((cell, i) => write(this.buttons[i], cell));
  }

  build(grid) {
    this.grid = grid;
    this.buttons = [];
    this.drawnAt = 0;
    const [head] = this.table.tHead.rows;
    head.replaceChildren(
      el("th", { scope: "col" }, "layer"),
      ...grid.columns.map((column) => el("th", { scope: "col" }, column)),
    );
    const body = grid.rows.map((row) =>
      el("tr", {}, el("th", { scope: "row" }, row), ...grid.columns.map(() => el("td"))),
    );
    grid.cells.forEach((cell, i) => {
      const button = el("button", {
        type: "button",
        "data-row": grid.rows[cell.row],
        "data-column": grid.columns[cell.column],
      });
      this.buttons[i] = button;
      body[cell.row].children[cell.column + 1].append(button);
    });
    this.table.tBodies[0].replaceChildren(...body);
  }
}

function write(button, cell) {
  const faults = cell.unexpected ? `, ${cell.unexpected} unexpected` : "";
  const words = percent(cell.written, cell.total) + faults;
  if (button.textContent !== words) button.textContent = words;
  button.parentElement.toggleAttribute("data-fault", Boolean(cell.unexpected));
}
