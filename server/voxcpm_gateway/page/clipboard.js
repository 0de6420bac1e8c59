/** The clipboard, which browsers give to encrypted pages, and in an older way to all. */

/** @returns {Promise<boolean>} false if the browser does not let the page write */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  const focused = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}
