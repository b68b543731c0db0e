// What the update changed: totals, by kind of module, and a map of layers × modules per role.
import { $, fill, rows, show, text } from "./dom.js";
import { count, plural } from "./format.js";
import { ChangeMap } from "./update_heatmap.js";
import { drawNames } from "./update_names.js";
import { brokenWords, isOpen, share, small } from "./update_words.js";

const KINDS = {
  embedding: "embedding",
  mla: "attention",
  indexer: "indexer",
  router: "router",
  experts: "experts",
  shared_experts: "shared experts",
  mlp: "mlp",
  norm: "norms",
  head: "head",
  other: "other",
};

export function mountChange(book) {
  const maps = new WeakMap();
  const byRole = cellsByRole();
  return () => {
    const delta = book.opened?.delta ?? null;
    show($("#change"), delta !== null);
    show($("#unmeasured"), book.opened !== null && delta === null);
    if (!book.opened) return;
    if (delta === null) return text($("#unmeasured p"), whyNot(book.opened));
    drawTotals(delta);
    drawKinds(delta.by_kind);
    drawNames($("#dtypes .names"), delta.dtype_changed);
    show($("#dtypes"), delta.dtype_changed.length > 0);
    drawMaps(maps, byRole(delta.cells ?? []));
  };
}

/** Split once per answer of the server, so that the maps see when they have the same cells. */
function cellsByRole() {
  let [seen, roles] = [null, []];
  return (cells) => {
    if (cells !== seen) {
      seen = cells;
      roles = Object.entries(Object.groupBy(cells, ({ role }) => role));
      roles.sort(([a], [b]) => Number(b === "target") - Number(a === "target"));
    }
    return roles;
  };
}

/** A target that was changed alone needs no name. */
function drawMaps(maps, roles) {
  rows(
    $("#change-maps"),
    roles,
    ([role]) => role,
    "change-map",
    (node, [role, cells]) => {
      if (!maps.has(node)) maps.set(node, new ChangeMap(node));
      text($("[data-f=chip]", node), roles.length === 1 && role === "target" ? "" : role);
      maps.get(node).draw(cells);
    },
  );
}

function whyNot(record) {
  if (isOpen(record)) return "Measured when the new values are there, before the switch.";
  if (record.weights !== "new")
    return "The update ended before its new values could be compared with the old ones.";
  if (record.previous === null) return "No weights were there before: there is nothing to compare with.";
  return "Not measured: it was asked not to be (stats: none), or the old values were not at hand (in place).";
}

function drawTotals(delta) {
  const root = $("#change");
  fill(root, {
    elements: share(delta.elements_changed_pct),
    "elements-of": `${count(delta.elements_changed)} of ${count(delta.elements)}`,
    parameters: count(delta.tensors_changed),
    "max-abs": small(delta.max_abs),
    rms: small(delta.rms),
    broken: brokenWords(delta),
  });
  $("[data-f=broken]", root).parentElement.dataset.tone = delta.nan || delta.inf ? "bad" : "calm";
}

/** Kinds from the most changed to the least; a bar's length is the share of its elements. */
function drawKinds(kinds) {
  const all = Object.entries(kinds).sort(([, a], [, b]) => b.elements_changed_pct - a.elements_changed_pct);
  const most = Math.max(1e-9, ...all.map(([, kind]) => kind.elements_changed_pct));
  rows(
    $("#kinds"),
    all,
    ([name]) => name,
    "kind-row",
    (node, [name, kind]) => {
      $("meter", node).value = kind.elements_changed_pct / most;
      fill(node, {
        kind: KINDS[name] ?? name,
        share: share(kind.elements_changed_pct),
        rms: small(kind.rms),
        broken: kind.nan || kind.inf ? brokenWords(kind) : "",
      });
      node.title = `${count(kind.elements_changed)} of ${count(kind.elements)} elements in ${plural(kind.tensors_changed, "parameter")}, at most ${small(kind.max_abs)}`;
    },
  );
}
