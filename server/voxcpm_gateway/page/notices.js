/** What the page tells its visitor: the state, an error with a way out of it, and warnings about the text. */

import { explain } from "./errors.js";

const $ = (id) => document.getElementById(id);

/** Show the state of the speech, which readers of screens read aloud. */
export function announce(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

/**
 * Show an error. Returns what `explain` says of it.
 *
 * @param {object} error of the gateway, or an Error
 * @param {{label: string, run: () => void} | null} action that a button offers
 */
export function showError(error, action = null) {
  const found = explain(error);
  show(found.sentence, action, found.details);
  const input = found.input && $(found.input);
  if (input) {
    for (let parent = input.closest("details"); parent; parent = parent.parentElement.closest("details")) parent.open = true;
    input.setAttribute("aria-invalid", "true");
    input.addEventListener("input", () => input.removeAttribute("aria-invalid"), { once: true });
  }
  return found;
}

/** Show that the server is away, and that the page looks for it. */
export function showReconnecting(sentence) {
  show(`${sentence} Reconnecting…`, null, []);
  $("alert").dataset.reconnecting = "true";
}

export function clearReconnecting() {
  if ($("alert").dataset.reconnecting) clearError();
}

function show(sentence, action, details) {
  delete $("alert").dataset.reconnecting;
  if ($("alert-text").textContent !== sentence || $("alert").hidden) $("alert-text").textContent = sentence;
  $("alert-details").hidden = !details.length;
  $("alert-details").open = false;
  $("alert-more").textContent = details.join("\n");
  $("alert-action").hidden = !action;
  $("alert-action").textContent = action?.label ?? "";
  $("alert-action").onclick = action && (() => action.run());
  $("alert").hidden = false;
}

export function clearError() {
  delete $("alert").dataset.reconnecting;
  $("alert").hidden = true;
}

/** Add a note about the text. It stays until the next text. */
export function note(text, action = null) {
  const paragraph = document.createElement("p");
  paragraph.append(text);
  if (action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = action.label;
    button.addEventListener("click", () => action.run());
    paragraph.append(" ", button);
  }
  $("notes").append(paragraph);
  $("notes").hidden = false;
}

export function clearNotes() {
  $("notes").replaceChildren();
  $("notes").hidden = true;
}
