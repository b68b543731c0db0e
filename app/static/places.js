// Where a tensor goes: per rank, the slice taken from the source and the slice filled in the parameter.
import { el } from "./dom.js";
import { plural, shape } from "./format.js";
import { describe, drawBox, drawSlots } from "./slices.js";
import { nameLink } from "./stations.js";

const AT_FIRST = 8;

export function placesStation(document) {
  if (!document.destinations.length) return null;
  const cards = alike(document.destinations).map((group) => card(group, document));
  const rest = cards.slice(AT_FIRST);
  const folded = rest.length
    ? el(
        "details",
        { class: "rest" },
        el("summary", {}, `${plural(rest.length, "more slice")}`),
        el("div", { class: "places" }, ...rest),
      )
    : null;
  return {
    kind: "place",
    title: cards.length === 1 ? "Written" : `Written in ${cards.length} different slices`,
    content: [el("div", { class: "places" }, ...cards.slice(0, AT_FIRST)), folded].filter(Boolean),
  };
}

/** Ranks that do exactly the same share a card: a replicated tensor is one picture, not eight. */
export function alike(destinations) {
  const groups = new Map();
  for (const place of destinations) {
    const { rank, ...same } = place;
    const key = JSON.stringify(same);
    if (!groups.has(key)) groups.set(key, { ...place, ranks: [] });
    groups.get(key).ranks.push(rank);
  }
  return [...groups.values()];
}

function card(place, { shape: sourceShape }) {
  const target = place.param_shape;
  const parts = [
    place.part !== null && place.part !== undefined ? `part ${place.part}` : null,
    isNumber(place.expert) ? `expert ${place.expert}` : null,
  ];
  return el(
    "section",
    { class: "place" },
    el(
      "p",
      { class: "head" },
      el("b", {}, ranks(place.ranks)),
      ...parts.filter(Boolean).map((words) => el("span", { class: "badge" }, words)),
    ),
    el("p", {}, nameLink(place.param, place.ranks[0])),
    el(
      "div",
      { class: "pictures" },
      drawBox(sourceShape, [{ slice: place.source_slice, tone: 0 }], "out of the tensor"),
      el("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      targetPicture(place, target),
    ),
    el(
      "p",
      { class: "facts" },
      `takes ${describe(place.source_slice, sourceShape)}; fills ${describe(place.target_slice, target)}`,
    ),
  );
}

function targetPicture(place, target) {
  const box = drawBox(target, [{ slice: place.target_slice, tone: 0 }], `into ${shape(target)}`);
  return target.length > 2 ? el("div", {}, drawSlots(target[0], place.target_slice[0]), box) : box;
}

/** [0, 1, 2, 3, 7] -> "ranks 0–3, 7" */
export function ranks(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  const words = runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  return `${numbers.length === 1 ? "rank" : "ranks"} ${words}`;
}

function isNumber(value) {
  return typeof value === "number";
}
