// What went wrong, before anything else: code, names, what to do, what the weights are now.
import { $, el, fill, rows, show, text } from "./dom.js";
import { count, plural } from "./format.js";
import { drawNameLists, drawNames } from "./update_names.js";
import { STATES } from "./update_words.js";

const FEW = 3; // names of a failure that is not open
const MANY = 20;
const WEIGHTS = {
  unchanged: "unchanged: nothing was written",
  rolled_back: "rolled back: the version before stands again, byte for byte",
  poisoned: "poisoned: touched parameters hold a mixture; only a full update repairs them",
  new: "new",
  pending: "not switched",
};

export function mountFailures(book) {
  return () => {
    const { fresh, earlier } = book.failures;
    const draw = (node, record) => drawFailure(node, record, record.id === book.openedId);
    show($("#failures"), fresh.length + earlier.length > 0);
    rows($("#failed"), fresh, ({ id }) => id, "failed-row", draw);
    show($("#failed-earlier"), earlier.length > 0);
    text(
      $("#failed-earlier summary"),
      `${plural(earlier.length, "earlier failure")}, answered by a later update`,
    );
    rows($("#failed-earlier ul"), earlier, ({ id }) => id, "failed-row", draw);
  };
}

function drawFailure(node, record, isOpened) {
  const { failure, id, version, state, weights } = record;
  node.dataset.state = state;
  const link = $("[data-f=link]", node);
  Object.assign(link, { href: `/ui/updates/${id}` });
  link.dataset.update = id;
  fill(node, {
    link: `${version} (${id})`,
    word: STATES[state],
    message: failure?.message ?? "The reason is not on record.",
    fix: failure?.fix ?? "",
  });
  show($(".fix", node), Boolean(failure?.fix));
  drawFacts($("dl", node), facts(failure ?? {}, weights));
  const names = failure?.names ?? [];
  drawNames($(".names", node), names, { most: isOpened ? MANY : FEW, total: total(record) });
  drawNameLists($(".touched", node), isOpened ? touchedLists(record.touched) : []);
}

function facts({ code, phase, bucket, expected, got }, weights) {
  return [
    ["weights", WEIGHTS[weights]],
    ["code", code],
    ["phase", phase],
    ["bucket", bucket],
    ["expected", expected],
    ["got", got],
  ].filter(([, value]) => value !== null && value !== undefined);
}

function drawFacts(list, wanted) {
  const words = JSON.stringify(wanted);
  if (list.dataset.words === words) return;
  list.dataset.words = words;
  list.replaceChildren(
    ...wanted.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, String(value)))),
  );
}

/** How many names there are; the failure itself lists the first twenty. */
function total({ failure, plan, verify }) {
  const all = {
    missing_tensor: plan.missing.length,
    unknown_tensor: plan.unknown.length,
    checksum_mismatch: verify.mismatched.length,
    open_group: plan.groups.open.reduce((sum, group) => sum + group.waits_for.length, 0),
  };
  return all[failure?.code] ?? failure?.names.length ?? 0;
}

/** {"target": {"0": ["model.norm.weight"]}} -> one list per role and rank */
function touchedLists({ names }) {
  return Object.entries(names).flatMap(([role, ranks]) =>
    Object.entries(ranks).map(([rank, touched]) => ({
      title: `${count(touched.length)} ${touched.length === 1 ? "parameter" : "parameters"} touched, ${role} rank ${rank}`,
      names: touched,
      role,
    })),
  );
}
