/** The texts that were spoken, with what was heard, what plays now, and what was not heard. */

const SHOWN_TURNS = 6;
const SHOWN_BEFORE = 2000; // code points of a turn before what plays now; of a whole book the rest would only cost time
const SHOWN_AFTER = 6000;
const $ = (id) => document.getElementById(id);

let shown = "";

/** @param {Conversation} conversation */
export function showSpoken({ history, position, playing }) {
  const turns = history.filter((turn) => turn.points.length).slice(-SHOWN_TURNS);
  const places = turns.map((turn) => turn.places(position, playing));
  const now = JSON.stringify([history.length, history[0]?.index, places, turns.map((turn) => turn.points.length)]);
  if (now === shown) return;
  shown = now;
  $("said-card").hidden = !turns.length;
  $("said").replaceChildren(...turns.map((turn, index) => paragraph(turn, places[index])));
}

function paragraph(turn, { heard, now, end }) {
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
  const first = Math.max(0, heard - SHOWN_BEFORE);
  const last = Math.min(turn.points.length, now + SHOWN_AFTER);
  const part = (from, to) => turn.slice(Math.max(first, from), Math.min(last, to));
  if (first) element.append("… ");
  add("heard", part(0, heard));
  add("now", part(heard, now));
  add("waiting", part(now, end));
  const rest = part(end, last);
  const lost = rest.trimStart();
  element.append(rest.slice(0, rest.length - lost.length));
  const stopped = turn.estimated ? "Stopped about here. Not heard:" : "Stopped here. Not heard:";
  add("lost", lost, turn.brokenAt !== null ? " Not spoken: " : ` ${stopped} `);
  if (last < turn.points.length) element.append(" …");
  return element;
}
