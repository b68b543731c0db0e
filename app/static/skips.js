// Skips by reason: how many, how big, whether expected, and what the reason means.
import { get, query } from "./api.js";
import { $, el, fill, rows, show, text } from "./dom.js";
import { count, sentence, size } from "./format.js";
import { dirty } from "./paint.js";

export function mountSkips(live) {
  const known = { asked: "", meanings: new Map() };
  return () => {
    const skips = live.loads
      .flatMap((load) => byCount(load, live.chip(load)))
      .sort((a, b) => a.expected - b.expected);
    learn(known, live.loads);
    show($("[data-empty=skips]"), !skips.length);
    rows(
      $("#skips"),
      skips,
      ({ chip, reason }) => `${chip} ${reason}`,
      "skip-row",
      (node, skip) => drawSkip(node, skip, known),
    );
  };
}

function byCount({ load, state }, chip) {
  return Object.entries(state.skips)
    .map(([reason, skip]) => ({ ...skip, reason, load, chip }))
    .sort((a, b) => b.count - a.count);
}

/** Meanings and examples are not in the stream: asked for once per set of reasons. */
async function learn(known, loads) {
  const skipping = loads.filter(({ state }) => Object.keys(state.skips).length);
  const wanted = skipping.map(({ load, state }) => `${load} ${Object.keys(state.skips).sort()}`).join();
  if (!wanted || known.asked === wanted) return;
  known.asked = wanted;
  for (const { load } of skipping) {
    const answer = await get(`/skips${query({ load })}`).catch(() => ({ items: [] }));
    for (const skip of answer.items) known.meanings.set(`${load} ${skip.reason}`, skip);
  }
  dirty();
}

function drawSkip(node, skip, known) {
  const { reason, chip } = skip;
  node.dataset.expected = skip.expected;
  $("[data-f=link]", node).href = `/ui/mapping${query({ outcome: "skipped", reason, role: chip })}`;
  fill(node, {
    reason,
    chip,
    badge: skip.expected ? "expected" : "unexpected",
    count: count(skip.count),
    size: size(skip.bytes),
  });
  const meaning = known.meanings.get(`${skip.load} ${reason}`);
  const words = $("[data-f=meaning]", node);
  if (!meaning || words.childElementCount) return;
  text(words, sentence(meaning.meaning));
  const example = meaning.examples?.[0];
  if (example)
    words.append(
      " For example ",
      el("a", { class: "name", href: `/ui/mapping${query({ name: example, role: chip })}` }, example),
    );
}
