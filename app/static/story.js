// A journey in one or two sentences, as text nodes and bold words.
import { el } from "./dom.js";
import { plural, size } from "./format.js";
import { isRename } from "./stations.js";

export function story(document) {
  if (document.direction === "reverse") return reverse(document);
  return [...origin(document), ...(document.outcome === "skipped" ? skipped(document) : moved(document))];
}

function origin(document) {
  if (!document.file) return [];
  const [from, to] = document.byte_range;
  return [bold(size(to - from)), " in ", bold(document.file), ", "];
}

function skipped(document) {
  return ["not used: ", bold(document.reason), "."];
}

function moved(document) {
  const places = document.destinations;
  const steps = document.steps.filter(isRename).length;
  const renamed = steps ? ["renamed in ", bold(plural(steps, "step")), ", "] : ["kept under its own name, "];
  const paired = document.pair ? ["joined with its partner, "] : [];
  if (!places.length) return [...renamed, ...paired, `${document.outcome}.`];
  return [...renamed, ...paired, ...where(places), ...feeds(document)];
}

function where(places) {
  const [first] = places;
  const slot = first.expert === null || first.expert === undefined ? "" : ` slot ${first.slot} of`;
  const ranks = new Set(places.map((place) => place.rank));
  const on = ranks.size === 1 ? `rank ${first.rank}` : plural(ranks.size, "rank");
  return [`written to${slot} `, bold(first.param), " on ", bold(on)];
}

function feeds(document) {
  const names = (document.derived ?? []).map((derived) => leaf(derived.name));
  return names.length
    ? ["; ", bold(names.join(", ")), names.length === 1 ? " is derived from it." : " are derived from it."]
    : ["."];
}

function reverse(document) {
  const sources = document.sources ?? [];
  if (document.outcome === "derived")
    return [
      "Computed on the device from ",
      bold(plural(sources.length, "parameter")),
      " by ",
      bold(document.derived[0].kernel),
      ".",
    ];
  if (!sources.length)
    return [
      "No tensor of the checkpoint writes it. Its fill is ",
      bold(document.fill),
      document.reason ? `: ${document.reason}.` : ".",
    ];
  const files = new Set(sources.map((source) => source.file).filter(Boolean));
  const names = new Set(sources.map((source) => source.name));
  return [
    "Filled by ",
    bold(plural(names.size, "tensor")),
    files.size ? ` from ${plural(files.size, "file")}` : "",
    ...feeds(document),
  ];
}

export function leaf(name) {
  return name.slice(name.lastIndexOf(".") + 1);
}

function bold(words) {
  return el("b", {}, words);
}
