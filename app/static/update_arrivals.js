// What has come, live: tensors, groups, buckets, and the halves that still wait for their partner.
import { $, breakable, el, fill, rows, show, text } from "./dom.js";
import { count, percent, plural, rate, size } from "./format.js";
import { isOpen } from "./update_words.js";

const MOST = 100; // the server names no more of them

export function mountArrivals(book) {
  return () => {
    if (!book.opened) return;
    drawCounts(book.opened);
    drawBytes(book);
    drawGroups(book.opened);
  };
}

function drawCounts(record) {
  const { plan, buckets, scope, source } = record;
  const expected = scope === "partial" ? plan.tensors_received : plan.tensors_expected;
  bar($("#tensors-bar"), plan.tensors_received, expected);
  bar($("#groups-bar"), plan.groups.complete, plan.groups.total);
  const isUpload = source.type === "upload";
  show($("[data-figure=buckets]"), isUpload);
  fill($("#arrivals"), {
    tensors: count(plan.tensors_received),
    "tensors-of": scope === "partial" ? "of a part" : `of ${count(plan.tensors_expected)}`,
    groups: count(plan.groups.complete),
    "groups-of": `of ${count(plan.groups.total)}`,
    split: `${count(plan.groups.split_across_buckets)} split across buckets`,
    buckets: count(buckets.received),
    "buckets-of": [
      buckets.last === null ? null : `last number ${buckets.last}`,
      buckets.repeated ? `${count(buckets.repeated)} came again` : null,
    ]
      .filter(Boolean)
      .join(", "),
    size: size(isUpload ? buckets.bytes : plan.bytes),
  });
}

function bar(node, value, whole) {
  node.max = whole || 1;
  node.value = value;
}

/** While bytes are loaded the events tell how far; before, no total is known. */
function drawBytes({ opened, progress }) {
  const isShown = isOpen(opened) && progress !== null && progress.of > 0 && progress.phase === opened.state;
  show($("#bytes-line"), isShown);
  if (!isShown) return;
  bar($("#bytes-bar"), progress.bytes, progress.of);
  fill($("#bytes-line"), {
    bytes: `${progress.phase} ${percent(progress.bytes, progress.of)}`,
    "bytes-of": `${size(progress.bytes)} of ${size(progress.of)}`,
    gbps: rate(progress.gbps * 1e9),
  });
}

function drawGroups(record) {
  const { open } = record.plan.groups;
  const more = open.length >= MOST ? `the first ${MOST}` : count(open.length);
  const verb = isOpen(record) ? (open.length === 1 ? "waits" : "wait") : "never became whole";
  text(
    $("#open-title"),
    open.length ? `${more} ${open.length === 1 ? "group" : "groups"} ${verb}` : "Groups that wait",
  );
  $("#open-title").parentElement.dataset.tone = open.length && !isOpen(record) ? "bad" : "calm";
  text($("#open-empty"), emptyWords(record));
  show($("#open-empty"), !open.length);
  rows($("#open-groups"), open, ({ group }) => group, "group-row", drawGroup);
}

function emptyWords({ plan, scope }) {
  if (!plan.groups.total) return "Nothing was expected, or nothing has come.";
  const { complete, total } = plan.groups;
  if (complete < total && scope === "full")
    return `No half waits for its partner; ${plural(total - complete, "group")} not begun.`;
  return "No half waits for its partner.";
}

function drawGroup(node, { group, have, waits_for: waits, since_bucket: since }) {
  const words = JSON.stringify([group, have, waits, since]);
  if (node.dataset.words === words) return;
  node.dataset.words = words;
  $("[data-f=group]", node).replaceChildren(...breakable(group));
  text($("[data-f=since]", node), `since bucket ${since}`);
  drawMembers($("[data-f=have]", node), have, group);
  drawMembers($("[data-f=waits]", node), waits, group);
}

/** Members without the part of their name that they share with their group. */
function drawMembers(list, names, group) {
  const stem = commonStem([...names, group]);
  list.replaceChildren(
    ...names.map((name) => el("li", { class: "name", title: name }, ...breakable(name.slice(stem)))),
  );
}

/** Length of the longest common beginning that ends with a dot. */
function commonStem(names) {
  const [first, ...others] = names;
  let length = first.length;
  for (const name of others) while (!name.startsWith(first.slice(0, length))) length--;
  return first.lastIndexOf(".", length - 1) + 1;
}
