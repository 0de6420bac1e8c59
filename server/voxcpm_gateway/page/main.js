/** The page: connects the controls, the conversation, the server and the pictures. */

import { Code } from "./code.js";
import { Conversation } from "./conversation.js";
import { copy } from "./clipboard.js";
import { keep, kept, link, linked } from "./draft.js";
import { EXAMPLES } from "./examples.js";
import { asNote } from "./errors.js";
import { describeFields, restoreFields, savedFields, settingsOfStream, watchFields } from "./fields.js";
import { announce, clearError, clearNotes, isReconnecting, note, showError } from "./notices.js";
import { PlayBar } from "./play-bar.js";
import { Samples } from "./samples.js";
import { Server } from "./server.js";
import { showMeasurements } from "./measurements.js";
import { lightWord, showSpoken } from "./spoken.js";
import { state } from "./status.js";
import { Typing } from "./typing.js";
import { Voices } from "./voices.js";

const FIGURES_MS = 100;
const DEFAULT_RATE = 48000; // until the model is known
const STREAM = { format: "pcm_s16le", word_timestamps: true };
const $ = (id) => document.getElementById(id);

const server = new Server();
const samples = new Samples(server);
const voices = new Voices(server, samples);
const conversation = new Conversation(() => ({ ...(server.key && { key: server.key }), ...options(), ...STREAM }));
const playBar = new PlayBar(conversation, server, fail);
const typing = new Typing($("text"), {
  text: (text) => speakText(text),
  flush: () => conversation.openTurn && conversation.say("", { flush: true }),
});
window.voxcpm = { conversation, server }; // for tests, and for the curious

// ---- errors

/** The options of a stream. Throws an Error if they are incomplete or wrong. */
function options() {
  return { ...server.modelOptions, ...voices.options(), ...settingsOfStream() };
}

function fail(error) {
  const found = showError(error);
  if (found.key) askForKey();
  if (found.lost) server.look();
}

// ---- speaking

/** Returns true if the options are complete. */
function prepare() {
  clearError();
  const { length, most } = lengths();
  try {
    options();
    if (length > most) throw new Error(`The text is longer than ${most.toLocaleString("en")} characters. Shorten it.`);
  } catch (error) {
    fail(error);
    return false;
  }
  samples.stop();
  conversation.prepare(server.model?.sample_rate ?? conversation.player?.rate ?? DEFAULT_RATE);
  return true;
}

function speakText(text, rest) {
  if (!prepare()) return;
  if (!conversation.openTurn) clearNotes();
  conversation.say(text, rest).catch(fail);
}

function speak() {
  const text = $("text").value;
  if (!text.trim()) {
    announce("Type some text first.");
    $("text").focus();
    return;
  }
  const rest = typing.rest;
  typing.skip();
  if (conversation.openTurn) {
    speakText(rest, { endTurn: true });
    return;
  }
  if (!prepare()) return;
  if (conversation.active) conversation.stop();
  speakText(text, { endTurn: true });
}

function stop() {
  typing.skip();
  conversation.stop();
}

$("speak").addEventListener("click", speak);
$("stop").addEventListener("click", stop);
for (const [id, { text, hint }] of Object.entries(EXAMPLES)) {
  $(id).addEventListener("click", () => {
    setText(text);
    keepDraft();
    $("text").focus({ preventScroll: true });
    clearNotes();
    if (hint) note(hint);
  });
}
$("live").addEventListener("change", () => {
  typing.skip();
  typing.enabled = $("live").checked;
});
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape" && !$("stop").disabled) {
    event.preventDefault();
    stop();
  } else if (document.activeElement === $("text") && conversation.player) {
    conversation.player.resume();
  }
});
$("alert-close").addEventListener("click", clearError);

// ---- the text and the settings, which survive a reload

function setText(text) {
  $("text").value = text;
  typing.skip();
  count();
}

/** The length of the text in code points, as the server counts it, and the most that it takes. */
function lengths() {
  const text = $("text").value;
  const length = text.length - (text.match(/[\uD800-\uDBFF]/g)?.length ?? 0);
  return { length, most: server.model?.max_text_chars ?? Infinity };
}

function count() {
  const { length, most } = lengths();
  const limit = length > most ? `; the limit is ${most.toLocaleString("en")}` : "";
  $("count").textContent = `${length.toLocaleString("en")} ${length === 1 ? "character" : "characters"}${limit}`;
  $("count").classList.toggle("fault", Boolean(limit));
}

function keepDraft() {
  keep({
    text: $("text").value,
    live: $("live").checked,
    source: voices.source,
    voice: voices.list.value,
    fields: savedFields(),
    format: $("format").value,
    model: server.wanted,
  });
}

$("text").addEventListener("input", () => {
  count();
  keepDraft();
});
for (const id of ["live", "format"]) $(id).addEventListener("change", keepDraft);
watchFields(keepDraft);
voices.addEventListener("change", keepDraft);
voices.addEventListener("failure", ({ detail }) => fail(detail));
samples.addEventListener("failure", ({ detail }) => fail(detail));
samples.addEventListener("change", () => {
  if (samples.voice && conversation.playing) conversation.toggle(); // a sample is heard alone
});
$("play").addEventListener("click", () => samples.stop());
$("seek").addEventListener("input", () => samples.stop());

/** Take over what was typed before a reload. */
function restore() {
  const draft = kept();
  if (draft.live !== undefined) $("live").checked = typing.enabled = draft.live;
  if (draft.format) $("format").value = draft.format;
  restoreFields(draft.fields ?? {});
  conversation.earlierFactor = draft.factor ?? null;
  voices.source = draft.source;
  voices.list.wanted = draft.voice ?? "";
  server.wanted = draft.model ?? "";
  setText(draft.text ?? "");
}

/** Take over what the address carries, if it is a link. */
function follow() {
  const given = linked();
  if (given?.text) setText(given.text);
  if (given?.voice) voices.source = "list";
  if (given?.model && given.model !== server.model?.model) {
    chooseModel(given.model, given.voice ?? "");
  } else if (given?.voice) chooseVoice(given.voice);
}

/** Choose a voice that may be on another server only. */
function chooseVoice(wanted) {
  if (!voices.list.choose(wanted) && server.model) note(`This server has no voice “${wanted}”; another one is chosen.`);
}

addEventListener("hashchange", follow);

$("link").addEventListener("click", async () => {
  try {
    const address = link({ text: $("text").value, voice: voices.linkedName, ...server.modelOptions });
    const done = await copy(address);
    announce(done ? "The link is copied. It carries the text and the voice." : `Copy this link: ${address}`);
  } catch (error) {
    fail(error);
  }
});

const code = new Code(() => {
  const { grpc } = server.model ?? {};
  const here = location.hostname;
  return {
    text: $("text").value,
    options: options(),
    format: $("format").value,
    keyed: Boolean(server.key),
    http: location.origin + location.pathname.replace(/\/$/, ""),
    grpc: { address: `${here}:${grpc?.port ?? 50051}`, tls: grpc?.tls ?? false, known: Boolean(grpc) },
  };
});
$("code").addEventListener("click", () => {
  try {
    code.open();
  } catch (error) {
    fail(error);
  }
});

// ---- what the conversation says

conversation.addEventListener("warning", ({ detail }) => note(asNote(detail)));
conversation.addEventListener("failure", ({ detail }) => {
  fail(detail);
  const { rest } = conversation;
  if (!rest) return;
  typing.skip();
  note("A part of the text was not spoken.", { label: "Speak the rest", run: () => speakText(rest, { endTurn: true }) });
});

let lastState = null;
conversation.addEventListener("change", () => {
  $("stop").disabled = !conversation.active;
  document.body.classList.toggle("is-playing", conversation.playing);
  const now = state(conversation);
  if (now && now !== lastState) announce(now);
  lastState = now;
  showSpoken(conversation);
  playBar.changed();
});
setInterval(() => {
  showMeasurements(conversation);
  const factor = conversation.pace.factor ?? conversation.earlierFactor;
  if (factor !== null && !conversation.active && kept().factor !== factor) keep({ factor });
}, FIGURES_MS);

function frame() {
  playBar.draw();
  lightWord(conversation);
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);

// ---- the server

/** Show the name of the model, or a choice if the server has several. */
function showModel({ model, models, sample_rate: rate }) {
  const several = models.length > 1;
  $("models").replaceChildren(...models.map((name) => new Option(name, name, false, name === model)));
  $("models").hidden = !several;
  $("model").textContent = `${several ? "" : `${model} · `}${rate / 1000} kHz`;
  document.title = `${model} · voxcpm-grpc`;
}

function chooseModel(name, voice = "") {
  if (server.model) stop();
  samples.stop();
  voices.list.leave(voice);
  server.wanted = name;
  keepDraft();
  server.connect();
}

$("models").addEventListener("change", () => chooseModel($("models").value));

function askForKey() {
  $("key-button").hidden = false;
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

$("key-button").addEventListener("click", askForKey);
$("key-dialog").addEventListener("close", () => {
  if ($("key-dialog").returnValue !== "use") return;
  server.use($("key").value.trim());
  clearError();
  server.connect();
});

server.addEventListener("away", ({ detail }) => {
  if (!isReconnecting()) showError({ message: detail.message, request_id: detail.request_id, code: "unavailable" });
  server.look();
});
server.addEventListener("missing", ({ detail }) => {
  keepDraft();
  note(`This server has no model “${detail}”; its default model speaks.`);
});
server.addEventListener("refused", ({ detail }) => fail(detail));
server.addEventListener("ready", async () => {
  const { model } = server;
  const again = isReconnecting();
  if (again) clearError();
  showModel(model);
  $("key-button").hidden = !server.key;
  for (const option of $("format").options) option.hidden = option.disabled = !model.formats.includes(option.value);
  if ($("format").selectedOptions[0]?.disabled) $("format").value = "wav";
  describeFields(model);
  restoreFields(kept().fields ?? {});
  count();
  try {
    const { wanted } = voices.list;
    await voices.load(model);
    if (model !== server.model) return; // another one was chosen meanwhile
    if (wanted) chooseVoice(wanted);
    announce(again ? "Connected again." : "Ready.");
  } catch (error) {
    fail(error);
  }
});

restore();
follow();
server.connect();
