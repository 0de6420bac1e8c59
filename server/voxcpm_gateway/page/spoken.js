/** The texts that were spoken, with what was heard, what plays now, and what was not heard. The word that is heard is lit. */

const SHOWN_TURNS = 6;
const SHOWN_BEFORE = 2000; // code points of a turn before what plays now; of a whole book the rest would only cost time
const SHOWN_AFTER = 6000;
const $ = (id) => document.getElementById(id);

let shown = "";
let paragraphs = []; // {turn, pieces: [{node, start, end}]}: text nodes with their code points of the turn
let lit = null; // the word, and the paragraphs that it was lit in

/** @param {Conversation} conversation */
export function showSpoken({ history, position, playing }) {
  const turns = history.filter((turn) => turn.points.length).slice(-SHOWN_TURNS);
  const places = turns.map((turn) => turn.places(position, playing));
  const now = JSON.stringify([history.length, history[0]?.index, places, turns.map((turn) => turn.points.length)]);
  if (now === shown) return;
  shown = now;
  $("said-card").hidden = !turns.length;
  paragraphs = turns.map((turn, index) => paragraph(turn, places[index]));
  $("said").replaceChildren(...paragraphs.map(({ element }) => element));
}

/**
 * Light the word that is heard. It is a highlight over the text and no part of the document, so that a selection stays,
 * and nothing is read aloud twice. Browsers without highlights show what plays now as a whole.
 *
 * @param {Conversation} conversation
 */
export function lightWord({ history, position, playing }) {
  if (!globalThis.CSS?.highlights) return;
  const turn = playing && history.findLast(({ words }) => words.length && words[0].start <= position);
  const word = turn ? turn.wordAt(position) : null;
  if (word === (lit?.word ?? null) && (!word || lit.paragraphs === paragraphs)) return;
  lit = word && { word, paragraphs };
  const range = word && rangeOf(turn, word);
  if (range) CSS.highlights.set("word", new Highlight(range));
  else CSS.highlights.delete("word");
}

/** The place of a word in the document, or null if it is not shown. */
function rangeOf(turn, { input_start: start, input_end: end }) {
  const pieces = paragraphs.find((one) => one.turn === turn)?.pieces ?? [];
  const first = pieces.find((piece) => piece.start <= start && start < piece.end);
  const last = pieces.find((piece) => piece.start < end && end <= piece.end);
  if (!first || !last) return null;
  const range = new Range();
  range.setStart(first.node, turn.slice(first.start, start).length); // characters of JavaScript may be half a code point
  range.setEnd(last.node, turn.slice(last.start, end).length);
  return range;
}

function paragraph(turn, { heard, now, end }) {
  const element = document.createElement("p");
  const pieces = [];
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
  const show = (name, from, to) => {
    add(name, part(from, to));
    const node = element.lastChild?.firstChild;
    if (part(from, to)) pieces.push({ node, start: Math.max(first, from), end: Math.min(last, to) });
  };
  if (first) element.append("… ");
  show("heard", 0, heard);
  show("now", heard, now);
  show("waiting", now, end);
  const rest = part(end, last);
  const lost = rest.trimStart();
  element.append(rest.slice(0, rest.length - lost.length));
  const stopped = turn.estimated ? "Stopped about here. Not heard:" : "Stopped here. Not heard:";
  add("lost", lost, turn.brokenAt !== null ? " Not spoken: " : ` ${stopped} `);
  if (last < turn.points.length) element.append(" …");
  return { element, turn, pieces };
}
