// What a rule changed in a name: whole segments between dots, compared in order.
import { el } from "./dom.js";

/** Two lists of nodes: the name before with what went marked, the name after with what came. */
export function changes(before, after) {
  const [a, b] = [segments(before), segments(after)];
  const kept = common(a, b);
  return [marked(a, new Set(kept.map(([i]) => i)), "del"), marked(b, new Set(kept.map(([, j]) => j)), "ins")];
}

function segments(name) {
  return name.split(/(?<=\.)/);
}

/** Index pairs of the longest common subsequence. */
function common(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i][j] =
        bare(a[i]) === bare(b[j]) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const pairs = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (bare(a[i]) === bare(b[j])) pairs.push([i++, j++]);
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return pairs;
}

function bare(segment) {
  return segment.replace(/\.$/, "");
}

function marked(parts, kept, tag) {
  return parts.flatMap((part, i) => {
    const node = kept.has(i) ? part : el(tag, {}, part);
    return i ? [document.createElement("wbr"), node] : [node];
  });
}
