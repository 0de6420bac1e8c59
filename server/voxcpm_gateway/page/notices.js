/** Messages for the visitor: the state of the speech, an error with its remedy, and notes about the text. */

import { explain } from "./errors.js";

const $ = (id) => document.getElementById(id);

/** Show the state of the speech, which readers of screens read aloud. */
export function announce(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

/**
 * Show an error, and mark its field. Returns what `explain` says of it.
 *
 * @param {object} error of the gateway, or an Error of the page
 */
export function showError(error) {
  const found = explain(error);
  show(found.lost ? `${found.sentence} Reconnecting…` : found.sentence, found.details);
  if (found.lost) $("alert").dataset.reconnecting = "true";
  const input = found.input && $(found.input);
  if (input) {
    for (let parent = input.closest("details"); parent; parent = parent.parentElement.closest("details")) parent.open = true;
    input.setAttribute("aria-invalid", "true");
    input.addEventListener("input", () => input.removeAttribute("aria-invalid"), { once: true });
  }
  return found;
}

/** True while an error says that the page looks for the server. */
export function isReconnecting() {
  return "reconnecting" in $("alert").dataset;
}

function show(sentence, details) {
  delete $("alert").dataset.reconnecting;
  if ($("alert-text").textContent !== sentence || $("alert").hidden) $("alert-text").textContent = sentence;
  $("alert-details").hidden = !details.length;
  $("alert-details").open = false;
  $("alert-more").textContent = details.join("\n");
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
