// The list of names: debounced by the page, the newest question wins, more on demand.
import { get, query } from "./api.js";
import { $, $$, breakable, clone, el, fill, show, text } from "./dom.js";
import { count, plural, shape, size } from "./format.js";
import { outcomeTone } from "./words.js";

const PAGE = 60;

export class Search {
  /** open({name, rank}) is called for a chosen name. */
  constructor(open) {
    Object.assign(this, { open, list: $("#results"), filters: {}, next: null, marked: null });
    $("#more").addEventListener("click", () => this.more());
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("click", (event) => this.click(event));
  }

  /** Without any filter, names near an open one are listed rather than all 92,000. */
  run(filters, role, near = null) {
    this.isNear = near !== null && !Object.values(filters).some(Boolean);
    this.filters = { ...(this.isNear ? { q: neighbourhood(near) } : filters), role };
    this.fetch(null);
    show($("#clear"), Object.values(filters).some(Boolean));
  }

  more() {
    this.fetch(this.next);
  }

  mark(name) {
    this.marked = name;
    for (const link of $$("a", this.list)) link.toggleAttribute("aria-current", link.dataset.name === name);
  }

  focusFirst(event) {
    event.preventDefault();
    $("a", this.list)?.focus();
  }

  async fetch(cursor) {
    this.request?.abort();
    this.request = new AbortController();
    const started = performance.now();
    try {
      const answer = await get(
        `/mapping/search${query({ ...this.filters, limit: PAGE, cursor })}`,
        this.request.signal,
      );
      this.draw(answer, cursor !== null, performance.now() - started);
    } catch (problem) {
      if (problem.name !== "AbortError") this.refuse(problem);
    }
  }

  draw(answer, isMore, took) {
    this.next = answer.next;
    const items = answer.items.map((item) => result(item, chip(answer.role)));
    if (isMore) this.list.append(...items);
    else this.list.replaceChildren(...items);
    show($("#more"), answer.next !== null);
    const isNone = !this.list.childElementCount;
    if (isNone)
      this.list.append(
        el("li", { class: "empty" }, "No name matches. Clear the filters, or use part of a name."),
      );
    text(
      $("#found"),
      isNone
        ? ""
        : `${plural(answer.total, "name")}${this.isNear ? " near it" : ""}, ${count(this.list.childElementCount)} shown, ${Math.round(took)} ms`,
    );
    this.mark(this.marked);
  }

  refuse(problem) {
    this.list.replaceChildren(el("li", { class: "error" }, problem.message));
    show($("#more"), false);
    text($("#found"), "");
  }

  click(event) {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.open({ name: link.dataset.name });
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const links = $$("a", this.list);
    const to = links.indexOf(document.activeElement) + step;
    (links[to] ?? (to < 0 ? $("#find") : null))?.focus();
  }
}

/** "model.layers.4.input_layernorm.weight" -> "model.layers.4.", which layer 40 does not match. */
function neighbourhood(name) {
  const parts = name.split(".").slice(0, -2);
  return parts.map((part) => `${part}.`).join("");
}

/** Where a target alone is served, its name would say nothing. */
function chip(role) {
  return role === "draft" || $("#role").options.length > 1 ? role : "";
}

function result(item, role) {
  const node = clone("result-row");
  const link = $("a", node);
  link.href = `/ui/mapping${query({ name: item.name, role })}`;
  link.dataset.name = item.name;
  $(".name", node).append(...breakable(item.name));
  const badge = $(".badge", node);
  badge.dataset.tone = item.kind === "parameter" ? "busy" : outcomeTone(item.outcome);
  const facts = [item.dtype, item.shape && shape(item.shape), item.bytes ? size(item.bytes) : null];
  fill(node, { outcome: word(item), chip: role, what: facts.filter(Boolean).join(" · ") });
  return node;
}

function word(item) {
  if (item.kind === "parameter") return "parameter";
  return item.reason ? `${item.outcome} · ${item.reason}` : item.outcome;
}
