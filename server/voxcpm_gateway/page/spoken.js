/** The texts that were spoken, with what was heard, what plays now, and what was not heard. */

const SHOWN_TURNS = 6;
const $ = (id) => document.getElementById(id);

let shown = "";

/** @param {Conversation} conversation */
export function showSpoken({ history, position, playing }) {
  const turns = history.filter((turn) => turn.points.length).slice(-SHOWN_TURNS);
  const parts = turns.map((turn) => turn.parts(position, playing));
  const now = JSON.stringify(parts);
  if (now === shown) return;
  shown = now;
  $("said-card").hidden = !turns.length;
  $("said").replaceChildren(...turns.map((turn, index) => paragraph(turn, parts[index])));
}

function paragraph(turn, parts) {
  const element = document.createElement("p");
  const add = (name, content, label) => {
    if (!content) return;
    const span = document.createElement(name === "lost" ? "del" : "span");
    span.className = name;
    span.textContent = content;
    if (label) {
      const hidden = document.createElement("span");
      hidden.className = "visually-hidden";
      hidden.textContent = label;
      element.append(hidden);
    }
    element.append(span);
  };
  add("heard", parts.heard);
  add("now", parts.now);
  add("waiting", parts.waiting);
  const lost = parts.lost.trimStart();
  element.append(parts.lost.slice(0, parts.lost.length - lost.length));
  const place = turn.brokenAt !== null ? "Not spoken: " : turn.estimated ? "Stopped about here. Not heard: " : "Stopped here. Not heard: ";
  add("lost", lost, ` ${place}`);
  return element;
}
