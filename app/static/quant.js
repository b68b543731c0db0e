// Quantisation: per kind of module its scheme, what decided it, and whether the files agree.
import { get, query } from "./api.js";
import { $, breakable, clone, fill, show, text } from "./dom.js";
import { count, plural } from "./format.js";
import { dirty } from "./paint.js";

export function mountQuant(live) {
  const known = { asked: "" };
  return () => {
    ask(known, live);
  };
}

/** A plan never changes, so once per load is enough. */
async function ask(known, live) {
  const planned = live.loads.filter((load) => load.grid);
  const wanted = planned.map(({ load }) => load).join();
  if (known.asked === wanted) return;
  known.asked = wanted;
  const answers = await Promise.all(planned.map((load) => fetchRows(live, load)));
  if (known.asked !== wanted) return;
  draw(answers.filter(Boolean));
  dirty();
}

async function fetchRows(live, load) {
  const answer = await get(`/quant${query({ load: load.load, limit: 1000 })}`).catch(() => null);
  return answer && { ...answer, chip: live.chip(load) };
}

function draw(answers) {
  const rows = answers.flatMap(({ items, chip }) =>
    items.filter(hasScheme).map((item) => ({ ...item, chip })),
  );
  const [wrong, right] = [false, true].map((agree) => rows.filter((item) => item.agree === agree));
  text($("#quant-text"), answers.length ? about(answers[0], wrong.length) : "");
  show($("[data-empty=quant]"), !rows.length);
  $("#quant").replaceChildren(...wrong.map(row));
  $("#quant-rest ul").replaceChildren(...right.map(row));
  fill($("#quant-rest"), { count: `${plural(right.length, "kind")} of module as the headers have it` });
  show($("#quant-rest"), right.length > 0);
}

/** Norms and the like are quantised by no format: nothing was decided about them. */
function hasScheme({ scheme }) {
  return scheme !== "none";
}

/** "modelopt_fp4, 2,552 entries, 712 of them never matched; all headers agree" */
function about(format, wrong) {
  const never = format.never_matched.count;
  const total = format.entries_total;
  const entries = total ? `${count(total)} ${total === 1 ? "entry" : "entries"}` : null;
  const idle = never ? `${count(never)} of them never matched` : null;
  const verdict = wrong ? `${plural(wrong, "kind")} against the headers` : "all headers agree";
  return [format.format, entries, idle, verdict].filter(Boolean).join(", ");
}

function row(item) {
  const node = clone("quant-row");
  node.dataset.agree = item.agree;
  $("[data-f=module]", node).append(...breakable(item.module.replace("model.layers.{layer}.", "")));
  fill(node, {
    chip: item.chip,
    layers: item.layers === null ? "" : `layers ${item.layers}`,
    scheme: item.scheme,
    dtypes: item.dtypes.join(", ") || "no header",
    agree: item.agree ? "agree" : "disagree",
    decided: item.decided_by,
    wrong: item.disagreements[0] ?? "",
  });
  return node;
}
