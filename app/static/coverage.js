// One card per role, the second beside the first: heat map, table twin, the role's own verdict.
import { $, rows, show, text } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { Twin } from "./twin.js";
import { WORDS, shownStatus, tone } from "./words.js";

export function mountCoverage(live, openCell) {
  const cards = new WeakMap();
  const keyOf = (load) => load.role ?? "target";
  const draw = (node, load) => {
    if (!cards.has(node)) cards.set(node, makeCard(node, openCell));
    drawWords(node, load, live.chip(load));
    for (const view of cards.get(node)) view.draw(load);
  };
  return () => {
    const [first, ...others] = live.loads;
    rows($("#coverages"), [first], keyOf, "coverage-card", draw);
    rows($("#beside"), others, keyOf, "coverage-card", draw);
  };
}

function makeCard(root, openCell) {
  const name = root.dataset.key;
  const readout = $(".readout", root);
  readout.id = `cell-${name}`;
  $("canvas", root).setAttribute("aria-describedby", readout.id);
  // the number of a role's load changes with each reload, so the role is remembered
  const open = (row, column, opener) => openCell(name, row, column, opener);
  return [new Heatmap(root, open), new Twin(root, open)];
}

/** With one role alone its word and its sentence are the page's first lines already. */
function drawWords(root, { state }, chip) {
  text($("[data-f=chip]", root), chip);
  const told = $(".told", root);
  show(told, Boolean(chip));
  told.dataset.tone = tone(state);
  text($("[data-f=word]", told), WORDS[shownStatus(state)]);
  text($("[data-f=sentence]", told), state.sentence);
}
