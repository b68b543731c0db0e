// Cancel and roll back: asked for once more, and a refusal is told in words.
import { Problem, path, post } from "./api.js";
import { $, show, text } from "./dom.js";
import { sentence } from "./format.js";
import { isStoppable } from "./update_words.js";

const ACTIONS = {
  cancel: {
    title: (record) => `Cancel the update to ${record.version}?`,
    text: (record, served) =>
      `What has come is thrown away and the weights stay as they are${served?.current ? `: ${served.current.version} is served on` : ""}. The sender has to open a new update.`,
    button: "Cancel the update",
    run: (record) => remove(path("/reloads", record.id)),
    curl: (record, origin) => `curl -X DELETE ${origin}/reloads/${record.id}`,
  },
  rollback: {
    title: (record) => `Put ${record.previous ?? "the version before"} back in place of ${record.version}?`,
    text: () =>
      "The old weights come back out of memory; no file is read. Weights cannot be read for that moment. The new ones are gone then: to have them again, send them again.",
    button: "Roll back",
    run: (record) => post(path("/reloads", record.id, "rollback")),
    curl: (record, origin) =>
      `curl -X POST ${origin}/reloads/${record.id}/rollback -H 'content-type: application/json' -d '{}'`,
  },
};

export function mountActions(book, { acted }) {
  const dialog = $("#confirm");
  const asked = { action: null, record: null };
  $("#cancel").addEventListener("click", () => ask(dialog, asked, ACTIONS.cancel, book));
  $("#rollback").addEventListener("click", () => ask(dialog, asked, ACTIONS.rollback, book));
  $("#confirm-no").addEventListener("click", () => dialog.close());
  $("#confirm-form").addEventListener("submit", (event) => {
    event.preventDefault();
    act(dialog, asked, acted);
  });
  return () => {
    show($("#cancel"), Boolean(book.opened) && isStoppable(book.opened));
    show($("#rollback"), Boolean(book.opened?.can_roll_back));
  };
}

function ask(dialog, asked, action, { opened: record, served }) {
  Object.assign(asked, { action, record });
  text($("#confirm-title"), action.title(record));
  text($("#confirm-text"), action.text(record, served));
  text($("#confirm-yes"), action.button);
  show($("#confirm-error"), false);
  dialog.showModal();
}

async function act(dialog, { action, record }, acted) {
  const button = $("#confirm-yes");
  button.disabled = true;
  try {
    acted(await action.run(record));
    dialog.close();
  } catch (problem) {
    const curl = problem.status === 401 ? action.curl(record, $("#raw").dataset.origin) : null;
    text($("#confirm-message"), refusal(problem));
    show($("#confirm-curl"), curl !== null);
    text($("#confirm-curl"), `${curl} -H 'Authorization: Bearer KEY'`);
    show($("#confirm-error"), true);
  }
  button.disabled = false;
}

function refusal({ status, message, body }) {
  if (status === 401)
    return "The server takes this only with its key, which a page does not have. From a shell:";
  if (status === undefined) return "The server could not be reached; nothing was asked of it.";
  return body.fix ? `${sentence(message)} What to do: ${body.fix}.` : sentence(message);
}

async function remove(url) {
  const response = await fetch(url, { method: "DELETE", headers: { Accept: "application/json" } });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, body);
  return body;
}
