// One name's journey, told in order: file, renames, partner, slices, derived tensors, events.
import { get, query } from "./api.js";
import { $, $$, breakable, el, svg } from "./dom.js";
import { derivedStation, eventsStation } from "./afterwards.js";
import { placesStation } from "./places.js";
import { sourcesStation } from "./sources.js";
import { fileStation, pairStation, renameStation, skipStation } from "./stations.js";
import { story } from "./story.js";
import { outcomeTone } from "./words.js";

const NOT_FOUND = "No tensor and no parameter has this name.";

export class Journey {
  /** open({name, rank}) follows a link inside the story. */
  constructor(root, open) {
    Object.assign(this, { root, openName: open, asked: null, blank: $("#journey-empty") });
    root.addEventListener("click", (event) => this.follow(event));
  }

  refresh() {
    this.open(this.asked);
  }

  async open(asked) {
    this.request?.abort();
    this.asked = asked;
    if (!asked) return this.root.replaceChildren(this.blank);
    this.request = new AbortController();
    const url = `/mapping${query({ name: asked.name, role: asked.role, rank: asked.rank })}`;
    try {
      this.draw(await get(url, this.request.signal), url);
    } catch (problem) {
      if (problem.name !== "AbortError") this.root.replaceChildren(...unknown(asked.name, problem));
    }
  }

  draw(document, url) {
    const isReverse = document.direction === "reverse";
    const stations = isReverse
      ? [sourcesStation(document, this.asked)]
      : [
          fileStation(document),
          renameStation(document),
          pairStation(document),
          skipStation(document),
          placesStation(document),
        ];
    const told = [...stations, derivedStation(document), eventsStation(document)].filter(Boolean);
    const stationed = el("ol", { class: "stations" }, ...told.map(station));
    this.root.replaceChildren(head(document, url, this.asked), stationed);
    if (this.asked.role) keepRole(this.root, this.asked.role);
  }

  follow(event) {
    const link = event.target.closest("a[data-name]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.openName({ name: link.dataset.name, rank: link.dataset.rank });
  }
}

/** Names inside the story belong to the same model. */
function keepRole(root, role) {
  for (const link of $$("a[data-name]", root)) {
    const { name, rank } = link.dataset;
    link.href = `/ui/mapping${query({ name, rank, role })}`;
  }
}

function head(document, url, asked) {
  const isReverse = document.direction === "reverse";
  const outcome = isReverse
    ? document.outcome === "derived"
      ? "derived"
      : "parameter"
    : document.reason
      ? `${document.outcome}: ${document.reason}`
      : document.outcome;
  return el(
    "header",
    { class: "title" },
    el("a", { class: "back", href: `/ui/mapping${query({ role: asked.role })}` }, "← all names"),
    el(
      "p",
      {},
      el(
        "span",
        { class: "badge", "data-tone": isReverse ? "busy" : outcomeTone(document.outcome) },
        outcome,
      ),
      document.role === "draft" || asked.role
        ? el("span", { class: "badge role" }, document.role)
        : null,
      asWritten(document),
    ),
    el("h2", { class: "name" }, ...breakable(document.name)),
    el("p", { class: "story" }, ...story(document)),
    el(
      "div",
      { class: "tools" },
      copyButton("Copy name", document.name),
      copyButton("Copy as curl", `curl '${location.origin}${url}'`),
    ),
  );
}

/** A half-renamed name out of a log line is found under its full name: say so. */
function asWritten(document) {
  if (!document.query || document.query === document.name) return null;
  return el("span", { class: "muted" }, " found for ", el("span", { class: "name" }, document.query));
}

function station({ title, kind, content }) {
  return el("li", { "data-kind": kind }, el("h3", {}, title), ...content);
}

function copyButton(label, words) {
  const copy = async (event) => {
    const button = event.currentTarget;
    await navigator.clipboard.writeText(words);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1_200);
  };
  return el("button", { type: "button", click: copy }, copyIcon(), label);
}

function copyIcon() {
  return svg(
    "svg",
    { viewBox: "0 0 20 20", "aria-hidden": "true" },
    svg("path", { d: "M7 7V3h10v10h-4M3 7h10v10H3z" }),
  );
}

function unknown(name, problem) {
  const close = problem.body?.suggestions ?? [];
  const links = close.map((other) =>
    el(
      "li",
      {},
      el(
        "a",
        { class: "name", "data-name": other, href: `/ui/mapping${query({ name: other })}` },
        ...breakable(other),
      ),
    ),
  );
  return [
    el(
      "header",
      { class: "title" },
      el("a", { class: "back", href: "/ui/mapping" }, "← all names"),
      el("h2", { class: "name" }, ...breakable(name)),
      el("p", { class: "story" }, links.length ? NOT_FOUND : problem.message),
    ),
    links.length
      ? el(
          "section",
          { class: "card" },
          el("h3", {}, "Did you mean"),
          el("ul", { class: "suggestions" }, ...links),
        )
      : el("p"),
  ];
}
