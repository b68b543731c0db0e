// The experts of one stacked parameter as a square of cells, each by its elements written.
import { query } from "./api.js";
import { el, text } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { scaled } from "./heatpaint.js";
import { palette, shade } from "./palette.js";

const ROOM_FOR_NUMBER = 22;
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const pictures = new WeakMap();

/** Draws into a container; the same container keeps its canvas and its pointer. */
export function drawExperts(container, item, slots, role) {
  if (!pictures.has(container)) pictures.set(container, new Experts(container, item, role));
  pictures.get(container).draw(slots);
}

class Experts {
  constructor(container, item, role) {
    Object.assign(this, { container, item, role, slots: [], at: null });
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "application",
      "aria-label": "Experts. Arrow keys move, Enter opens the expert's journey.",
    });
    this.caption = el("p", { class: "readout", role: "status" });
    container.append(this.canvas, this.caption);
    this.canvas.addEventListener("pointermove", (event) => this.move(this.under(event)));
    this.canvas.addEventListener("pointerleave", () => this.move(null));
    this.canvas.addEventListener("click", () => this.open());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("themechange", () => requestAnimationFrame(() => this.paint()));
  }

  draw(slots) {
    this.slots = slots;
    this.across = Math.max(1, Math.ceil(Math.sqrt(slots.length)));
    this.side = Math.max(14, Math.min(40, this.container.clientWidth / this.across));
    requestAnimationFrame(() => this.paint());
  }

  paint() {
    const context = scaled(
      this.canvas,
      this.across * this.side,
      Math.ceil(this.slots.length / this.across) * this.side,
    );
    this.slots.forEach((slot, i) => {
      const [x, y] = this.corner(i);
      context.fillStyle = shade(slot.written, slot.total);
      context.fillRect(x + 1, y + 1, this.side - 2, this.side - 2);
      if (this.side >= ROOM_FOR_NUMBER) this.number(context, slot, x + this.side / 2, y + this.side / 2);
    });
    if (this.at !== null) this.mark(context);
    text(this.caption, this.words());
  }

  number(context, slot, x, y) {
    const isDeep = slot.written * 2 >= slot.total;
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = isDeep ? palette().surface : palette().muted;
    context.fillText(slot.expert, x, y + 0.5);
  }

  mark(context) {
    const [x, y] = this.corner(this.at);
    context.strokeStyle = palette().ink;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, this.side - 2, this.side - 2);
  }

  corner(i) {
    return [(i % this.across) * this.side, Math.floor(i / this.across) * this.side];
  }

  words() {
    const full = this.slots.filter((slot) => slot.written >= slot.total).length;
    if (this.at === null) return `${count(full)} of ${plural(this.slots.length, "expert")} full`;
    const slot = this.slots[this.at];
    return `expert ${slot.expert}, slot ${slot.slot}: ${percent(slot.written, slot.total)}, ${count(slot.written)} of ${count(slot.total)} elements`;
  }

  under(event) {
    const i = Math.floor(event.offsetY / this.side) * this.across + Math.floor(event.offsetX / this.side);
    return i < this.slots.length ? i : null;
  }

  move(at) {
    if (at === this.at) return;
    this.at = at;
    this.paint();
  }

  key(event) {
    const step = STEPS[event.key] ?? { ArrowUp: -this.across, ArrowDown: this.across }[event.key];
    if (event.key === "Enter") return this.open();
    if (!step) return;
    event.preventDefault();
    const to = this.at === null ? 0 : this.at + step;
    if (to >= 0 && to < this.slots.length) this.move(to);
  }

  open() {
    if (this.at === null) return;
    const { expert } = this.slots[this.at];
    const { name, rank } = this.item;
    location.href = `/ui/mapping${query({ name, rank, expert, role: this.role })}`;
  }
}
