// The heat map's twin: the same cells as a real table, each a button that opens it.
import { $, el, show } from "./dom.js";
import { percent } from "./format.js";

const REFRESH_MS = 1_000; // ten rewrites a second of 1,500 cells help nobody

export function mountTwin(live, openCell) {
  const twin = { live, grid: null, buttons: [], drawnAt: 0 };
  const panel = $("#coverage");
  $("#as-table").addEventListener("click", (event) => {
    const isTable = panel.dataset.view === "map";
    panel.dataset.view = isTable ? "table" : "map";
    event.target.setAttribute("aria-pressed", isTable);
    event.target.textContent = isTable ? "View as map" : "View as table";
    twin.drawnAt = 0;
    document.dispatchEvent(new Event("viewchange"));
  });
  $("#coverage-table").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) openCell(button.dataset.row, button.dataset.column, button);
  });
  return () => drawTwin(twin);
}

function drawTwin(twin) {
  const { grid } = twin.live;
  if (!grid || $("#coverage").dataset.view !== "table") return;
  if (grid !== twin.grid) build(twin, grid);
  if (performance.now() - twin.drawnAt < REFRESH_MS && twin.live.state.finished_t === null) return;
  twin.drawnAt = performance.now();
  grid.cells.forEach((cell, i) => write(twin.buttons[i], cell));
}

function build(twin, grid) {
  twin.grid = grid;
  twin.buttons = [];
  const [head] = $("#coverage-table").tHead.rows;
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
    twin.buttons[i] = button;
    body[cell.row].children[cell.column + 1].append(button);
  });
  $("#coverage-table").tBodies[0].replaceChildren(...body);
}

function write(button, cell) {
  const faults = cell.unexpected ? `, ${cell.unexpected} unexpected` : "";
  const words = percent(cell.written, cell.total) + faults;
  if (button.textContent !== words) button.textContent = words;
  button.parentElement.toggleAttribute("data-fault", Boolean(cell.unexpected));
}
