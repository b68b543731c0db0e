// From cells by name to a grid of layers × modules, and the logarithmic scale of their colours.
import { inGroups } from "./geometry.js";

const MOST_DECADES = 6;
// modules in the order of a layer, as the coverage has them; others stand at the end
const ORDER = [
  "embed_tokens",
  "enorm",
  "hnorm",
  "eh",
  "norm",
  "lm_head",
  "input_norm",
  "attn",
  "post_attention_norm",
  "router",
  "mlp",
  "shared",
  "experts",
];

/** cells: [{layer: "3" | "top", module, relative, …}] in any order. */
export function changeGrid(cells) {
  const layers = [...new Set(cells.map(({ layer }) => layer))].sort(byLayer);
  const columns = [...new Set(cells.map(({ module }) => module))].sort(byModule);
  const placed = cells.map((cell) => ({
    ...cell,
    row: layers.indexOf(cell.layer),
    column: columns.indexOf(cell.module),
  }));
  return { ...inGroups({ rows: layers, columns, cells: placed }), scale: scaleOf(cells) };
}

function byLayer(a, b) {
  return (a === "top" ? -1 : Number(a)) - (b === "top" ? -1 : Number(b));
}

function byModule(a, b) {
  return place(a) - place(b) || a.localeCompare(b);
}

function place(module) {
  const at = ORDER.indexOf(module.split(".")[0]);
  return at < 0 ? ORDER.length : at;
}

/** Whole decades around all sizes that are known; null where there are none. */
function scaleOf(cells) {
  const known = cells
    .filter(({ changed, relative }) => changed && relative > 0)
    .map(({ relative }) => relative);
  if (!known.length) return null;
  const high = Math.ceil(Math.log10(Math.max(...known)));
  const low = Math.floor(Math.log10(Math.min(...known)));
  return { low: Math.max(high - MOST_DECADES, Math.min(low, high - 1)), high };
}

/** unchanged, sized (a share of the scale, 0 to 1) or changed without a size: codes, or from zero. */
export function look(cell, scale) {
  if (!cell.changed) return { kind: "unchanged" };
  if (!scale || !(cell.relative > 0)) return { kind: "unsized" };
  const share = (Math.log10(cell.relative) - scale.low) / (scale.high - scale.low);
  return { kind: "sized", share: Math.max(0, Math.min(1, share)) };
}

export function isBroken({ nan, inf }) {
  return nan > 0 || inf > 0;
}
