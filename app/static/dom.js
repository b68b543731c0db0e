// Elements and texts. Text goes in by textContent only: tensor names come from strangers' files.
export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const SVG = "http://www.w3.org/2000/svg";

/** el("a", {href: "…", class: "name"}, "text", child) */
export function el(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Writes only what changed, so that a selection in the page survives ten updates a second. */
export function text(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Texts into the slots marked data-f. */
export function fill(root, values) {
  for (const [slot, value] of Object.entries(values)) text($(`[data-f="${slot}"]`, root), value);
}

export function clone(templateId) {
  return document.getElementById(templateId).content.firstElementChild.cloneNode(true);
}

/** Keeps one child per item, in order, reusing the node of the same key. */
export function rows(container, items, keyOf, templateId, update) {
  const known = new Map([...container.children].map((node) => [node.dataset.key, node]));
  const wanted = items.map((item) => {
    const key = String(keyOf(item));
    const node = known.get(key) ?? clone(templateId);
    node.dataset.key = key;
    update(node, item);
    return node;
  });
  const kept = new Set(wanted);
  for (const node of [...container.children]) if (!kept.has(node)) node.remove();
  // a node that is put in again loses focus and selection
  wanted.forEach((node, i) => {
    const there = container.children[i] ?? null;
    if (node !== there) container.insertBefore(node, there);
  });
}

/** A name that may break after a dot or an underscore. */
export function breakable(name) {
  const parts = String(name).split(/(?<=[._])/);
  return parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

export function show(node, isShown) {
  node.hidden = !isShown;
}

export function store(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch {
    // storage may be forbidden: the choice then lasts as long as the page
  }
  return value ?? null;
}
