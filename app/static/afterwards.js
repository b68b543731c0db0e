// The last stations: what is derived from the tensor, and what the log says happened.
import { get, query } from "./api.js";
import { el } from "./dom.js";
import { count, plural, seconds, size } from "./format.js";
import { nameLink } from "./stations.js";

const MOST_EVENTS = 50;

export function derivedStation({ derived, outcome }) {
  if (!derived.length) return null;
  if (outcome === "derived")
    return {
      kind: "derive",
      title: "Computed from",
      content: [
        el("ul", { class: "derived" }, ...derived[0].inputs.map((name) => el("li", {}, nameLink(name)))),
      ],
    };
  const items = derived.map((item) =>
    el(
      "li",
      {},
      nameLink(item.name),
      el("p", { class: "facts" }, `by ${item.kernel} from `, ...inputs(item.inputs)),
    ),
  );
  return {
    kind: "derive",
    title: "Feeds derived tensors",
    content: [el("ul", { class: "derived" }, ...items)],
  };
}

function inputs(names) {
  return names.flatMap((name, i) => [i ? ", " : "", nameLink(name)]);
}

export function eventsStation(document) {
  const numbers = document.events ?? [];
  const list = el("ol", { class: "events" });
  if (!numbers.length) list.append(el("li", { class: "muted" }, "Nothing has happened to it yet."));
  else fetchEvents(document, list);
  const title = numbers.length ? `What happened: ${plural(numbers.length, "event")}` : "What happened";
  return {
    kind: "events",
    title: document.load ? `${title}, load ${document.load}` : title,
    content: [list],
  };
}

async function fetchEvents(document, list) {
  const answer = await get(
    `/events${query({ load: document.load, name: document.name, limit: MOST_EVENTS })}`,
  ).catch(() => null);
  const items = answer?.items ?? document.events.slice(0, MOST_EVENTS).map((seq) => ({ seq }));
  const first = items[0]?.t;
  list.replaceChildren(...items.map((event) => row(event, first)));
}

/** A read or a copy fetches a whole run of tensors; a half has a partner. */
function more({ kind, detail }) {
  if (kind === "read") return [detail?.file];
  if (kind === "copied") return [detail?.tensors > 1 ? `${count(detail.tensors)} tensors in one run` : null];
  if (kind === "half_held") return [detail?.waits_for && `waits for ${detail.waits_for}`];
  return [kind === "paired" && detail?.waits_for ? `with ${detail.waits_for}` : null];
}

function row(event, first) {
  const facts = [
    event.rank === null || event.rank === undefined ? null : `rank ${event.rank}`,
    event.rule,
    event.reason,
    event.bytes ? size(event.bytes) : null,
    event.seconds ? seconds(event.seconds) : null,
    ...more(event),
  ];
  return el(
    "li",
    {},
    el("span", { class: "muted" }, `#${count(event.seq)}`),
    el("span", { class: "muted" }, event.t === undefined ? "" : `+${seconds(event.t - first)}`),
    el("b", {}, event.kind?.replace("_", " ") ?? ""),
    el("span", { class: "name" }, facts.filter(Boolean).join(" · ")),
  );
}
