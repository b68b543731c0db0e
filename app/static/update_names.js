// Lists of tensor names: the first ones, each a link to its mapping, and how many more there are.
import { query } from "./api.js";
import { $, breakable, el, rows, show, text } from "./dom.js";
import { count } from "./format.js";

/** root: an element made from the template of names; `total` may be more than are named. */
export function drawNames(root, names, { most = 20, total = names.length, role = null } = {}) {
  const shown = names.slice(0, most);
  show(root, shown.length > 0);
  rows(
    $("ul", root),
    shown,
    (name) => name,
    "name-row",
    (node, name) => drawName(node, name, role),
  );
  const rest = Math.max(total, names.length) - shown.length;
  show($(".more", root), rest > 0);
  text($(".more", root), `and ${count(rest)} more`);
}

function drawName(node, name, role) {
  if (node.dataset.name === name) return;
  node.dataset.name = name;
  node.replaceChildren(
    el("a", { class: "name", href: `/ui/mapping${query({ name, role })}` }, ...breakable(name)),
  );
}

/** One list per heading; lists of headings that are gone go too. */
export function drawNameLists(root, lists) {
  rows(
    root,
    lists,
    ({ title }) => title,
    "name-list",
    (node, list) => {
      text($("summary", node), list.title);
      drawNames($(".names", node), list.names, list);
    },
  );
}
