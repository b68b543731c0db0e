// The first two seconds: one sentence, the versions that are served, four answers.
import { $, fill, rows, text } from "./dom.js";
import { count, moment, plural, seconds } from "./format.js";
import { duration } from "./update_book.js";
import { sentence } from "./update_sentence.js";
import { STATES, brokenWords, isOpen, share, small, tone } from "./update_words.js";

const ANNOUNCE_MS = 5_000; // four times a second nobody can listen to

export function mountVerdict(book) {
  let announcedAt = -ANNOUNCE_MS;
  return () => {
    drawVersions(book.served);
    const words = book.opened ? drawOpened(book) : drawNothing(book);
    text($("#verdict"), words);
    if (performance.now() - announcedAt < ANNOUNCE_MS || $("#announce").textContent === words) return;
    announcedAt = performance.now();
    text($("#announce"), words);
  };
}

function drawOpened({ opened, served }) {
  const root = $("#status");
  Object.assign(root.dataset, { status: opened.state, tone: tone(opened) });
  const isOver = !isOpen(opened);
  fill(root, {
    word: STATES[opened.state],
    id: opened.id,
    when: `opened ${moment(opened.opened_t)}`,
    took: `${isOver ? "took" : "for"} ${seconds(duration(opened))}${isOver ? "" : " so far"}`,
  });
  drawAnswers(opened, served);
  document.title = `${opened.version} ${STATES[opened.state].toLowerCase()} · loadscope`;
  return sentence(opened, served);
}

function drawNothing({ missing, total }) {
  const root = $("#status");
  const isEmpty = total === 0;
  Object.assign(root.dataset, { status: "none", tone: "calm" });
  fill(root, { word: missing || isEmpty ? "No update" : "Fetching", id: "", when: "", took: "" });
  if (missing) return missing;
  return isEmpty ? "No update is on record yet." : "Fetching the newest update …";
}

/** "target 128", "draft 127", "pending 129 receiving" */
function drawVersions(served) {
  if (!served) return;
  const chips = Object.entries(served.roles).map(([role, { version, state }]) => ({
    key: role,
    words: `${role} ${version ?? "–"}${state === "ready" ? "" : ` ${state}`}`,
    tone: state === "poisoned" ? "bad" : state === "writing" ? "busy" : version === null ? "calm" : "good",
  }));
  const { pending } = served;
  if (pending)
    chips.push({ key: "pending", words: `pending ${pending.version} ${pending.state}`, tone: "busy" });
  rows(
    $("#versions"),
    chips,
    ({ key }) => key,
    "version-chip",
    (node, chip) => {
      node.dataset.tone = chip.tone;
      text(node, chip.words);
    },
  );
}

function drawAnswers(record, served) {
  const all = {
    arrived: arrived(record),
    equal: equal(record),
    change: change(record),
    weights: weights(record, served),
  };
  for (const [name, [family, word, detail]] of Object.entries(all)) {
    const tile = $(`[data-answer=${name}]`);
    tile.dataset.tone = family;
    fill(tile, { word, detail });
  }
}

function arrived(record) {
  const { plan, scope, buckets, state, source } = record;
  const waiting = plan.groups.open.length;
  const parts = [
    scope === "partial"
      ? plural(plan.tensors_received, "tensor")
      : `${count(plan.tensors_received)} of ${plural(plan.tensors_expected, "tensor")}`,
    waiting
      ? `${plural(waiting, "group")} incomplete`
      : `${count(plan.groups.complete)} of ${plural(plan.groups.total, "group")}`,
    source.type === "upload" ? plural(buckets.received, "bucket") : null,
  ];
  const detail = parts.filter(Boolean).join(", ");
  const isEarly = ["queued", "receiving"].includes(state);
  if (isEarly || (isOpen(record) && !plan.tensors_expected)) return ["busy", "Not yet", detail];
  if (!plan.tensors_expected) return ["calm", "Not planned", "nothing was looked at"];
  const lacks = waiting || plan.missing.length || plan.unknown.length;
  if (lacks || (scope === "full" && plan.tensors_received < plan.tensors_expected))
    return ["bad", "No", detail];
  return ["good", scope === "partial" ? "Yes, a part" : "Yes", detail];
}

function equal(record) {
  const { verify, state, source, buckets, origin } = record;
  const wrong = verify.mismatched.length;
  if (wrong) return ["bad", "No", `${plural(wrong, "tensor")} of ${count(verify.checked)} differ`];
  if (verify.loaded_equal)
    return [
      "good",
      "Yes",
      `${plural(verify.checked, "tensor")} hashed, and read back equal${uncompared(verify)}`,
    ];
  if (verify.checked)
    return ["good", "Yes", `${plural(verify.checked, "tensor")} hashed, none differs; not read back`];
  if (isOpen(record) && ["bytes", "loaded"].includes(verify.level))
    return ["busy", "Not yet", bucketsAgree(source, buckets) || "bytes are hashed before the first copy"];
  if (isOpen(record) || ["active", "retired"].includes(state))
    return [
      origin === "native" ? "warn" : "calm",
      "Not checked",
      `verify level ${verify.level}: no byte was compared`,
    ];
  return ["calm", "Not checked", bucketsAgree(source, buckets) || "it ended before that"];
}

function bucketsAgree(source, { received }) {
  return source.type === "upload" && received ? `the digests of ${plural(received, "bucket")} agree` : "";
}

function uncompared({ not_comparable: number }) {
  return number ? `; ${count(number)} were converted` : "";
}

function change(record) {
  const { delta, weights } = record;
  if (delta) {
    const detail = `rms ${small(delta.rms)}, at most ${small(delta.max_abs)}, ${brokenWords(delta)}`;
    const family = delta.nan || delta.inf ? "bad" : weights === "new" || isOpen(record) ? "good" : "calm";
    return [family, share(delta.elements_changed_pct), detail];
  }
  if (isOpen(record)) return ["busy", "Not yet", "measured before the switch"];
  if (weights === "poisoned") return ["bad", "Unknown", "it ended before that was measured"];
  if (weights !== "new") return ["calm", "Nothing", "the old values stand"];
  return [
    "calm",
    "Not measured",
    record.previous === null ? "no weights were there before" : "stats: none, or no old values at hand",
  ];
}

function weights(record, served) {
  const stood = record.stopped_serving_s
    ? `not serving for ${seconds(record.stopped_serving_s)}`
    : "serving did not stop";
  const now = served?.current?.version;
  if (record.state === "interrupted") return ["warn", "Not switched", "its process ended before"];
  if (record.state === "retired") return ["calm", "Replaced", now ? `${now} is served` : "by a later update"];
  const known = {
    new: ["good", "New", stood],
    unchanged: ["calm", "Unchanged", now ? `${now} is served` : stood],
    rolled_back: [
      record.failure ? "bad" : "warn",
      "Put back",
      `${now ?? "the version before"} is served; ${stood}`,
    ],
    poisoned: ["bad", "Poisoned", `${plural(record.touched.count, "parameter")} hold a mixture`],
    pending: ["busy", "As before", now ? `${now} is served` : "nothing is served yet"],
  };
  return known[record.weights];
}
