// The panel a cell opens: its parameters, the experts of stacked ones, and the way to each journey.
import { get, path, query } from "./api.js";
import { $, breakable, el, fill, show, text } from "./dom.js";
import { drawExperts } from "./experts.js";
import { count, percent, plural, shape } from "./format.js";
import { isRunning } from "./words.js";

const REFRESH_MS = 1_000;
const MOST_EXPERT_GRIDS = 8;

export function mountDrill(live) {
  const drill = new Drill(live, $("#drill"));
  return (role, row, column, opener) => drill.open(role, row, column, opener);
}

class Drill {
  constructor(live, root) {
    Object.assign(this, { live, root, body: $("[data-f=body]", root), nodes: new Map() });
    $("[data-f=close]", root).addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => event.key === "Escape" && !root.hidden && this.close());
    setInterval(() => this.refresh(), REFRESH_MS);
  }

  open(role, row, column, opener) {
    Object.assign(this, { role, row, column, opener, isFinal: false });
    this.nodes.clear();
    this.body.replaceChildren(el("p", { class: "empty" }, "Fetching …"));
    const words = [/^\d+$/.test(row) ? `layer ${row}` : row, column, this.chip];
    text($("#drill-title"), words.filter(Boolean).join(" · "));
    fill(this.root, { summary: "" });
    show(this.root, true);
    $("#drill-title").focus();
    this.fetch();
  }

  get chip() {
    return this.live.chip(this.live.of(this.role));
  }

  get load() {
    return this.live.of(this.role).load;
  }

  close() {
    show(this.root, false);
    this.opener?.focus();
  }

  /** Once more after the load has ended, then never. */
  refresh() {
    if (this.root.hidden || this.isFinal || document.hidden || !this.live.state) return;
    this.isFinal = !isRunning(this.live.state);
    this.fetch();
  }

  async fetch() {
    this.request?.abort();
    this.request = new AbortController();
    const { signal } = this.request;
    try {
      const answer = await get(
        path("/coverage", this.row, this.column) + query({ load: this.load }),
        signal,
      );
      await this.draw(answer.items, signal);
    } catch (problem) {
      if (problem.name !== "AbortError")
        this.body.replaceChildren(el("p", { class: "error" }, problem.message));
    }
  }

  async draw(items, signal) {
    const written = items.reduce((sum, item) => sum + item.written, 0);
    const elements = items.reduce((sum, item) => sum + item.elements, 0);
    fill(this.root, {
      summary: `${plural(items.length, "parameter")}, ${percent(written, elements)} written`,
    });
    const nodes = items.map((item) => this.parameter(item));
    if (nodes.some((node, i) => node !== this.body.children[i]) || nodes.length !== this.body.children.length)
      this.body.replaceChildren(...nodes);
    const stacked = items.filter(isStacked).slice(0, MOST_EXPERT_GRIDS);
    for (const item of stacked) await this.experts(item, signal);
  }

  parameter(item) {
    const key = `${item.rank} ${item.name}`;
    if (!this.nodes.has(key)) this.nodes.set(key, makeParameter(item, this.chip));
    const node = this.nodes.get(key);
    $("progress", node).value = item.written;
    fill(node, { written: `${percent(item.written, item.elements)} of ${count(item.elements)} elements` });
    return node;
  }

  async experts(item, signal) {
    const url = path("/parameters", item.name, "slots") + query({ rank: item.rank, load: this.load });
    const answer = await get(url, signal);
    if (answer.items.length)
      drawExperts($(".experts", this.nodes.get(`${item.rank} ${item.name}`)), item, answer.items, this.chip);
  }
}

function isStacked(item) {
  return /\.experts\./.test(item.name);
}

function makeParameter(item, role) {
  const href = `/ui/mapping${query({ name: item.name, rank: item.rank, role })}`;
  return el(
    "section",
    { class: "cellparam" },
    el("h3", {}, el("a", { class: "name", href }, ...breakable(item.name))),
    el(
      "p",
      { class: "facts" },
      el("span", {}, `rank ${item.rank}`),
      el("span", {}, shape(item.shape)),
      el("span", {}, item.dtype),
      el("span", { "data-f": "written" }),
    ),
    el("progress", { max: item.elements || 1, value: 0, "aria-label": "elements written" }),
    el("div", { class: "experts" }),
  );
}
