// What was compared with what, and the digest of everything, to be compared by the reader.
import { $, fill, show } from "./dom.js";
import { count, plural } from "./format.js";
import { mountCopy } from "./update_copy.js";
import { drawNames } from "./update_names.js";
import { isOpen } from "./update_words.js";

const LEVELS = {
  none: "none: nothing was compared",
  headers: "headers: names, dtypes and shapes",
  bytes: "bytes: all hashed before the first copy",
  loaded: "loaded: hashed before the first copy, read back after the last",
};

export function mountVerify(book) {
  mountCopy($("#verify"));
  return () => {
    if (book.opened) draw(book.opened);
  };
}

function draw(record) {
  const { verify } = record;
  const wrong = verify.mismatched.length;
  fill($("#verify"), {
    level: LEVELS[verify.level],
    algorithm: verify.algorithm,
    checked: plural(verify.checked, "tensor"),
    mismatched: wrong ? plural(wrong, "tensor") : "none",
    loaded: loadedWords(record),
    "not-comparable": verify.not_comparable
      ? `${count(verify.not_comparable)}: a conversion changed them on their way`
      : "none",
  });
  $("[data-f=mismatched]", $("#verify")).parentElement.dataset.tone = wrong ? "bad" : "calm";
  show($("#digest-line"), verify.overall !== null);
  fill($("#digest-line"), { overall: verify.overall ?? "" });
  drawNames($("#verify .names"), verify.mismatched);
}

function loadedWords(record) {
  const equal = record.verify.loaded_equal;
  if (equal !== null) return equal ? "equal to what came" : "differs from what came";
  return isOpen(record) && record.verify.level === "loaded" ? "not yet" : "not asked for";
}
