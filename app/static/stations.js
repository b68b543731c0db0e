// The first stations of a journey: the bytes in their file, the renames, the partner, the skip.
import { get, query } from "./api.js";
import { breakable, el, svg, text } from "./dom.js";
import { count, sentence, shape, size } from "./format.js";
import { changes } from "./renames.js";
import { drawBox } from "./slices.js";

export function fileStation(document) {
  if (!document.file) return null;
  const [from, to] = document.byte_range;
  const facts = el(
    "p",
    { class: "facts" },
    `${document.dtype} · ${shape(document.shape)} · ${size(to - from)} · bytes ${count(from)} to ${count(to)}`,
  );
  // where it is written, it is drawn with its slices
  const picture = document.destinations.length
    ? null
    : el("div", { class: "pictures" }, drawBox(document.shape, [], "the tensor"));
  return {
    kind: "file",
    title: "In its file",
    content: [el("p", { class: "name" }, document.file), shardBar(document), facts, picture].filter(Boolean),
  };
}

/** The shard from its first to its last byte, the tensor's part marked. */
function shardBar({ file, byte_range: [from, to], file_bytes: whole }) {
  if (!whole) return null;
  const width = Math.max(0.4, ((to - from) / whole) * 100);
  const x = Math.min((from / whole) * 100, 100 - width);
  const label = `${file}, ${size(whole)}: this tensor starts at ${size(from)}`;
  const bar = svg(
    "svg",
    { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "shard", role: "img", "aria-label": label },
    svg("rect", { width: 100, height: 10, class: "whole" }),
    svg("rect", { x, width, height: 10, class: "part" }),
  );
  return el(
    "figure",
    { class: "shardbar" },
    bar,
    el(
      "figcaption",
      {},
      el("span", {}, "0"),
      startLabel(`starts at ${size(from)}`, x + width / 2),
      el("span", {}, size(whole)),
    ),
  );
}

/** Under its mark, but clear of both ends; a style attribute would be against the page's policy. */
function startLabel(words, percent) {
  const label = el("span", { class: "start-at" }, words);
  label.style.left = `clamp(5.5em, ${percent}%, 100% - 9em)`;
  return label;
}

export function renameStation({ steps, outcome, convert }) {
  if (!steps.length || outcome === "skipped") return null;
  const renames = steps.filter(isRename).length;
  const title = renames > 1 ? `Renamed in ${renames} steps` : renames ? "Renamed" : "Keeps its name";
  const converted = convert
    ? el("p", { class: "facts" }, "on its way converted by ", el("code", {}, convert))
    : null;
  return {
    kind: "rename",
    title,
    content: [el("ol", { class: "renames" }, ...steps.map(rename)), converted].filter(Boolean),
  };
}

export function isRename(step) {
  return step.before !== step.after;
}

function rename(step) {
  const rule = el("p", { class: "rule" }, "by rule ", el("code", { class: "name" }, ...breakable(step.rule)));
  if (!isRename(step)) return el("li", {}, rule, line("as", breakable(step.after)));
  const [before, after] = changes(step.before, step.after);
  return el("li", {}, rule, line("from", before), line("to", after));
}

function line(word, content) {
  return el(
    "p",
    { class: `change ${word}` },
    el("span", { class: "side" }, word),
    el("span", { class: "name" }, ...content),
  );
}

export function pairStation({ pair, outcome }) {
  if (!pair || outcome === "skipped") return null;
  const partners = [pair.with].flat().flatMap((name, i) => [i ? ", " : "", nameLink(name)]);
  const how =
    pair.axis === null
      ? " converted together; nothing is written before both are there"
      : ` joined along dim ${pair.axis}; the parameter is whole only with both`;
  const tone = pair.state === "complete" ? "good" : "warn";
  return {
    kind: "pair",
    title: "Meets its partner",
    content: [
      el("p", {}, ...partners),
      el(
        "p",
        { class: "facts" },
        el("span", { class: "badge", "data-tone": tone }, pair.state),
        how,
      ),
    ],
  };
}

export function skipStation({ outcome, reason, steps, load, role }) {
  if (outcome !== "skipped") return null;
  const meaning = el("p");
  explain(reason, load, meaning);
  const rules = steps.map((step) =>
    el("p", { class: "facts" }, "by rule ", el("code", { class: "name" }, ...breakable(step.rule))),
  );
  const more = el(
    "p",
    {},
    el(
      "a",
      { href: `/ui/mapping${query({ outcome: "skipped", reason, role })}` },
      "All tensors skipped for this reason",
    ),
  );
  return { kind: "skip", title: `Skipped: ${reason}`, content: [meaning, ...rules, more] };
}

async function explain(reason, load, node) {
  const answer = await get(`/skips${query({ reason, load })}`).catch(() => ({ items: [] }));
  const skip = answer.items.find((item) => item.reason === reason);
  if (skip)
    text(
      node,
      `${sentence(skip.meaning)} This is ${skip.expected ? "expected" : "not expected: something in the checkpoint or the rules is wrong"}.`,
    );
}

export function nameLink(name, rank = null) {
  return el(
    "a",
    { class: "name", "data-name": name, "data-rank": rank, href: `/ui/mapping${query({ name, rank })}` },
    ...breakable(name),
  );
}
