// Per role: what was written, and whether the tensors derived from it were made anew.
import { $, fill, rows, show } from "./dom.js";
import { count } from "./format.js";

export function mountRoles(book) {
  return () => {
    if (!book.opened) return;
    const roles = Object.entries(book.opened.roles);
    rows($("#roles"), roles, ([role]) => role, "role-row", drawRole);
    show($("#roles-table"), roles.length > 0);
    show($("#roles-empty"), !roles.length);
  };
}

function drawRole(node, [role, facts]) {
  const link = $("[data-f=load]", node);
  show(link, facts.load !== null);
  if (facts.load !== null) link.href = `/ui/loads/${facts.load}`;
  fill(node, {
    role,
    load: `load ${facts.load}`,
    tensors: count(facts.tensors),
    parameters: count(facts.parameters),
    refreshed: count(facts.derived_refreshed),
    kept: count(facts.derived_kept),
    reason: facts.post_processed
      ? ""
      : `no data: not post-processed${facts.reason ? ` (${facts.reason})` : ""}`,
  });
}
