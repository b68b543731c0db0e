// Keyed lists whose nodes stay where they are: a node that is put in again loses focus and selection.
import { clone } from "./dom.js";

/** One child per item, in order; the node of a key stays as long as the key does. */
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
  wanted.forEach((node, i) => {
    const there = container.children[i] ?? null;
    if (node !== there) container.insertBefore(node, there);
  });
}
