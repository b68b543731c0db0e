// All updates on one scale of time: a bar of phases each, and the same seconds as a table.
import { $, el, fill, rows, show, text } from "./dom.js";
import { count, plural, seconds } from "./format.js";
import { duration, spans, spent } from "./update_book.js";
import { PHASES, STATES, isOpen, sourceWords, tone } from "./update_words.js";

const LEAST_PX = 2; // a switch of 4 ms in an update of 10 s is seen all the same
const ATOMICITY = {
  staged: "staged",
  undo_log: "undo log",
  validated_in_place: "validated, in place",
  none: "in place",
};

export function mountTimeline(book, { open, more }) {
  const root = $("#timeline");
  root.addEventListener("click", open);
  $("#failures").addEventListener("click", open);
  $("#more").addEventListener("click", more);
  $(".as-table", root).addEventListener("click", (event) => toggle(root, event.currentTarget));
  return () => draw(root, book);
}

function toggle(root, button) {
  const isTable = root.dataset.view === "bars";
  root.dataset.view = isTable ? "table" : "bars";
  button.setAttribute("aria-pressed", isTable);
  text(button, isTable ? "View as bars" : "View as table");
}

function draw(root, book) {
  const { list } = book;
  const scale = Math.max(0.001, ...list.map(duration));
  show(root, list.length > 0);
  show($("#more"), book.next !== null);
  text($("#timeline-text"), `${plural(book.total ?? list.length, "update")}, newest first`);
  text($("[data-f=scale]", root), seconds(scale));
  rows(
    $("#updates"),
    list,
    ({ id }) => id,
    "update-row",
    (node, record) => drawRow(node, record, book, scale),
  );
  rows($("#phases"), list, ({ id }) => id, "phases-row", drawPhases);
}

function drawRow(node, record, { openedId }, scale) {
  const isOpened = record.id === openedId;
  node.toggleAttribute("data-opened", isOpened);
  const link = drawLink(node, record);
  if (isOpened) link.setAttribute("aria-current", "true");
  else link.removeAttribute("aria-current");
  const state = $("[data-f=state]", node);
  state.dataset.tone = tone(record);
  fill(node, {
    id: record.id,
    state: STATES[record.state],
    spent: spentWords(record),
    total: seconds(duration(record)),
    tensors: tensors(record),
    rate: rates(record.gbps),
    stopped: record.stopped_serving_s ? seconds(record.stopped_serving_s) : "–",
    source: sourceWords(record),
    how: how(record),
    reason: record.atomicity_reason ?? "",
  });
  drawBar($(".bar", node), record, scale);
}

function drawLink(node, { id, version }) {
  const link = $("[data-f=version]", node);
  link.dataset.update = id;
  link.href = `/ui/updates/${id}`;
  text(link, version);
  return link;
}

function tensors({ plan, scope }) {
  if (scope === "partial") return `${count(plan.tensors_received)} (partial)`;
  return plan.tensors_expected ? `${count(plan.tensors_received)} / ${count(plan.tensors_expected)}` : "–";
}

/** GB/s of what was read from the source, and of the switch itself. */
function rates({ read, switch: exchanged }) {
  const words = (value) => (value >= 0.1 ? value.toFixed(1) : value.toPrecision(2));
  const parts = [read !== null && `${words(read)} read`, exchanged !== null && `${words(exchanged)} switch`];
  return parts.filter(Boolean).join(", ") || "–";
}

function how({ scope, atomicity, previous }) {
  const way = atomicity === null ? "way not chosen" : ATOMICITY[atomicity];
  return [`${scope}, ${way}`, previous === null ? null : `after ${previous}`].filter(Boolean).join(", ");
}

function spentWords(record) {
  const phases = record.phases.map(({ phase }) => phase);
  return [...new Set(phases)].map((phase) => `${phase} ${seconds(spent(record, phase))}`).join(" · ");
}

/** Positions are shares of the scale; a short phase keeps a width that can be seen. */
function drawBar(bar, record, scale) {
  const wanted = spans(record);
  while (bar.children.length > wanted.length) bar.lastElementChild.remove();
  while (bar.children.length < wanted.length) bar.append(el("i"));
  wanted.forEach(({ phase, from, to }, i) => {
    const piece = bar.children[i];
    piece.dataset.phase = phase;
    piece.title = `${phase} ${seconds(to - from)}`;
    piece.toggleAttribute("data-current", isOpen(record) && i === wanted.length - 1);
    piece.style.left = `min(${(100 * from) / scale}%, 100% - ${LEAST_PX}px)`;
    piece.style.width = `max(${(100 * (to - from)) / scale}%, ${LEAST_PX}px)`;
  });
}

function drawPhases(node, record) {
  const cells = Object.fromEntries(
    PHASES.map((phase) => [
      phase,
      record.phases_s[phase] === undefined ? "–" : seconds(spent(record, phase)),
    ]),
  );
  fill(node, {
    ...cells,
    id: record.id,
    version: record.version,
    state: STATES[record.state],
    total: seconds(duration(record)),
  });
}
