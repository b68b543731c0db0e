// The other direction: a parameter, and every tensor that fills a part of it.
import { el } from "./dom.js";
import { plural, shape } from "./format.js";
import { alike, ranks } from "./places.js";
import { describe, drawBox, drawSlots } from "./slices.js";
import { nameLink } from "./stations.js";

const AT_FIRST = 12;
const TONES = 3;
const ZOOM = 2;

export function sourcesStation(document, asked) {
  if (document.outcome === "derived") return null;
  if (!document.sources.length)
    return { kind: "skip", title: "Not from the checkpoint", content: [facts(document)] };
  const expert = asked.expert ? Number(asked.expert) : null;
  const shown = document.sources.filter(
    (source) => source.slices.length && (expert === null || source.expert === expert),
  );
  const parts = [...new Set(shown.map(partOf))];
  const tone = (source) => parts.indexOf(partOf(source)) % TONES;
  const items = shown.map((source) => item(source, document.shape, tone(source)));
  const content = [
    facts(document),
    expert === null ? null : onlyExpert(document, expert),
    picture(document.shape, shown, tone),
    ...folded(items),
  ];
  return { kind: "place", title: "Filled from", content: content.filter(Boolean) };
}

function partOf(source) {
  return source.part ?? source.name;
}

function facts({ dtype, shape: whole, fill, ranks: holders }) {
  const held = holders.length ? `held by ${ranks(holders)}` : "not allocated here";
  return el(
    "p",
    { class: "facts" },
    [dtype, shape(whole), `filled by ${fill}`, held].join(" · "),
  );
}

function onlyExpert(document, expert) {
  return el("p", { class: "facts" }, `expert ${expert} only · `, nameLink(document.name), " shows all");
}

function folded(items) {
  const rest = items.slice(AT_FIRST);
  const first = el("ul", { class: "sources" }, ...items.slice(0, AT_FIRST));
  if (!rest.length) return [first];
  return [
    first,
    el(
      "details",
      { class: "rest" },
      el("summary", {}, plural(rest.length, "more source")),
      el("ul", { class: "sources" }, ...rest),
    ),
  ];
}

/** The parameter of one rank with every source painted where it lands; of a stack, one slot. */
function picture(whole, shown, tone) {
  if (!shown.length) return null;
  const [{ rank, slot }] = shown[0].slices;
  const isStack = whole.length > 2;
  const here = (slice) => slice.rank === rank && slice.slot === slot;
  const boxes = shown.flatMap((source) =>
    source.slices.filter(here).map((slice) => box(source, slice, whole, tone(source))),
  );
  const caption = isStack
    ? `slot ${slot} on rank ${rank}, as its sources fill it`
    : `on rank ${rank}, as its sources fill it`;
  const strip = isStack ? drawSlots(whole[0], shown[0].slices[0].target_slice[0], ZOOM) : "";
  return el("div", { class: "pictures" }, el("div", {}, strip, drawBox(whole, boxes, caption, ZOOM)));
}

function box(source, slice, whole, tone) {
  return {
    slice: slice.target_slice,
    tone,
    label: `${partOf(source)}: ${describe(slice.target_slice, whole)}`,
  };
}

function item(source, whole, tone) {
  const isExpert = typeof source.expert === "number";
  const words = [
    source.part === null ? null : `part ${source.part}`,
    isExpert ? `expert ${source.expert}` : null,
    source.file,
  ];
  const lines = alike(source.slices).map((slice) => line(slice, source, whole));
  const rest =
    lines.length > 2
      ? [el("details", {}, el("summary", {}, plural(lines.length - 1, "other slice")), ...lines.slice(1))]
      : lines.slice(1);
  return el(
    "li",
    {},
    el("i", { class: "swatch", "data-tone": tone }),
    el(
      "div",
      {},
      nameLink(source.name),
      el("p", { class: "facts" }, words.filter(Boolean).join(" · ")),
      lines[0],
      ...rest,
    ),
  );
}

function line(slice, source, whole) {
  return el(
    "p",
    { class: "facts" },
    `${ranks(slice.ranks)}: ${describe(slice.source_slice, source.shape)} into ${describe(slice.target_slice, whole)}`,
  );
}
