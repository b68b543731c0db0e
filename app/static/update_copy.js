// Buttons that put a text beside them on the clipboard.
import { $, text } from "./dom.js";

const SAID_MS = 2_000;

/** Every button with data-copy="id" copies the text of that element. */
export function mountCopy(root) {
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button) copy(button, document.getElementById(button.dataset.copy));
  });
}

async function copy(button, source) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    say(button, "Copied");
  } catch {
    // not allowed, or no clipboard on a plain address: marked, so that one key press copies it
    getSelection().selectAllChildren(source);
    say(button, "Marked");
  }
}

function say(button, word) {
  text(button, word);
  text($("#announce"), `${word}.`);
  setTimeout(() => text(button, "Copy"), SAID_MS);
}
