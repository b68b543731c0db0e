// Skips by reason: how many, how big, whether expected, and what the reason means.
import { get, query } from "./api.js";
import { $, el, fill, rows, show, text } from "./dom.js";
import { count, sentence, size } from "./format.js";
import { dirty } from "./paint.js";

export function mountSkips(live) {
  const known = { asked: "", meanings: new Map() };
  return () => {
    const skips = Object.entries(live.state.skips).sort(
      ([, a], [, b]) => a.expected - b.expected || b.count - a.count,
    );
    learn(known, live.load, skips);
    show($("[data-empty=skips]"), !skips.length);
    rows(
      $("#skips"),
      skips,
      ([reason]) => reason,
      "skip-row",
      (node, [reason, skip]) => drawSkip(node, reason, skip, known),
    );
  };
}

/** Meanings and examples are not in the stream: asked for once per set of reasons. */
async function learn(known, load, skips) {
  const wanted = `${load} ${skips.map(([reason]) => reason).sort()}`;
  if (!skips.length || known.asked === wanted) return;
  known.asked = wanted;
  const answer = await get(`/skips${query({ load })}`).catch(() => ({ items: [] }));
  for (const skip of answer.items) known.meanings.set(skip.reason, skip);
  dirty();
}

function drawSkip(node, reason, skip, known) {
  node.dataset.expected = skip.expected;
  $("[data-f=link]", node).href = `/ui/mapping${query({ outcome: "skipped", reason })}`;
  fill(node, {
    reason,
    badge: skip.expected ? "expected" : "unexpected",
    count: count(skip.count),
    size: size(skip.bytes),
  });
  const meaning = known.meanings.get(reason);
  const words = $("[data-f=meaning]", node);
  if (!meaning || words.childElementCount) return;
  text(words, sentence(meaning.meaning));
  const example = meaning.examples?.[0];
  if (example)
    words.append(
      " For example ",
      el("a", { class: "name", href: `/ui/mapping${query({ name: example })}` }, example),
    );
}
