/** The page: connects the controls, the conversation and the pictures. */

import { Conversation } from "./conversation.js";
import { Scope } from "./scope.js";
import { Typing } from "./typing.js";
import { Voices } from "./voices.js";

const KEY = "voxcpm-key"; // of the session storage
const FIGURES_MS = 100;
const DEFAULT_RATE = 48000; // until the model is known
const EXAMPLE =
  "The lighthouse keeper climbed the stairs at dusk. Far below, the sea was calm, and the last boats came home. " +
  "She lit the lamp, opened her book, and listened to the wind.";
const $ = (id) => document.getElementById(id);

let model = null;
let key = sessionStorage.getItem(KEY) ?? "";

async function request(path, options = {}) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch(new URL(path, document.baseURI), { ...options, headers });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message ?? `the gateway answered ${response.status}`;
  throw Object.assign(new Error(message), { status: response.status, requestId: response.headers.get("x-request-id") });
}

/** Shows a text in the status line, which readers of screens read aloud. */
function announce(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

function fail({ message, request_id: id = "" }) {
  $("alert-text").textContent = message;
  $("alert-id").textContent = id ? `Request ${id}` : "";
  $("alert").hidden = false;
  if (model === null) return;
  announce("");
}

function clearFailure() {
  $("alert").hidden = true;
}

// ---- options

function number(id) {
  const text = $(id).value.trim();
  return text === "" ? undefined : Number(text);
}

function options() {
  return {
    ...(key && { key }),
    ...voices.options(),
    seed: number("seed"),
    timesteps: number("timesteps"),
    cfg_value: number("cfg"),
    temperature: number("temperature"),
    language: $("language").value.trim() || undefined,
    first_segment: $("eager").checked ? "eager" : undefined,
    format: "pcm_s16le",
  };
}

const conversation = new Conversation(options);
const scope = new Scope($("wave"), $("spectrum"));
const voices = new Voices(request, (text) => ($("voice-status").textContent = text), fail);
const typing = new Typing($("text"), {
  text: (text) => speakText(text),
  flush: () => conversation.openTurn && conversation.say("", { flush: true }),
});
window.voxcpm = { conversation, scope }; // for tests, and for the curious

// ---- speaking

/** Returns true if the options are complete. */
function prepare() {
  clearFailure();
  try {
    options();
  } catch (error) {
    fail(error);
    return false;
  }
  conversation.prepare(conversation.player?.rate ?? model?.sample_rate ?? DEFAULT_RATE);
  return true;
}

function speakText(text, rest) {
  if (!prepare()) return;
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
  if (conversation.active) conversation.stop();
  speakText(text, { endTurn: true });
}

function stop() {
  typing.skip();
  conversation.stop();
}

$("speak").addEventListener("click", speak);
$("stop").addEventListener("click", stop);
$("example").addEventListener("click", () => {
  $("text").value = EXAMPLE;
  typing.skip();
  $("text").focus();
});
$("live").addEventListener("change", () => {
  typing.skip();
  typing.enabled = $("live").checked;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape" && !$("key-dialog").open && !$("stop").disabled) {
    event.preventDefault();
    stop();
  } else if (document.activeElement === $("text") && conversation.player) {
    conversation.player.resume();
  }
});
$("alert-close").addEventListener("click", clearFailure);

// ---- what the conversation says

let fresh = true; // the next audio starts a new run
let isDrawn = true; // the picture shows all that was played
let stopped = null;
conversation.addEventListener("audio", ({ detail: { samples, offset } }) => {
  const { rate } = conversation.player;
  scope.configure(rate);
  if (fresh) scope.restart(offset);
  fresh = false;
  scope.add(samples, rate);
});
conversation.addEventListener("cut", ({ detail: { position } }) => {
  scope.cut(position);
  fresh = true;
  isDrawn = false;
});
conversation.addEventListener("heard", ({ detail: turn }) => {
  const heard = turn.points.slice(0, turn.heardEnd).join("").trim();
  const words = heard.split(/\s+/).slice(-6).join(" ");
  stopped = heard ? `Stopped. Heard up to “${words}”${turn.estimated ? " (estimated)" : ""}.` : "Stopped. Nothing was heard.";
});
conversation.addEventListener("warning", ({ detail }) => announce(`Note: ${detail.message}`));
conversation.addEventListener("failure", ({ detail }) => {
  fail(detail);
  if (detail.type === "authentication_error") askForKey();
});

const text = (element, content) => element.textContent === content || (element.textContent = content);

let lastState = null;
let wasActive = false;
function showState() {
  const { active } = conversation;
  $("stop").disabled = !active;
  const report = conversation.player?.report;
  document.body.classList.toggle("is-playing", Boolean(report?.playing));
  const state = !active
    ? stopped
    : report?.playing
      ? "Speaking."
      : conversation.openTurn && !conversation.speaking && !conversation.flushes
        ? "Waiting for the end of the sentence."
        : "Waiting for audio.";
  if (active && (report?.playing || conversation.speaking)) stopped = null;
  const now = state ?? (wasActive ? "Done." : null);
  if (now && now !== lastState) announce(now);
  lastState = now;
  wasActive = active;
}

function showFigures() {
  const { figures, ahead, player } = conversation;
  text($("first-audio"), figures.firstAudio === null ? "–" : `${Math.round(figures.firstAudio * 1000)} ms`);
  text($("first-sound"), figures.firstSound === null ? "–" : `${Math.round(figures.firstSound * 1000)} ms`);
  text($("real-time"), figures.audioSeconds ? (figures.busySeconds / figures.audioSeconds).toFixed(2) : "–");
  text($("ahead"), `${ahead.toFixed(1)} s`);
  text($("gaps"), String(player?.report.gaps ?? 0));
}

let shown = "";
function showTurns() {
  const turns = conversation.history.filter((turn) => turn.points.length).slice(-6);
  const parts = turns.map((turn) => conversation.parts(turn));
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
  add("lost", lost, turn.estimated ? " Stopped about here. Not heard: " : " Stopped here. Not heard: ");
  return element;
}

conversation.addEventListener("change", () => {
  showState();
  showTurns();
});
setInterval(showFigures, FIGURES_MS);

function frame() {
  const { player } = conversation;
  if (player && !fresh && (player.report.playing || player.report.buffered)) scope.draw(player.position);
  else if (isDrawn) return void requestAnimationFrame(frame);
  else scope.draw(scope.end, true);
  isDrawn = !(player?.report.playing || player?.report.buffered);
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);

// ---- the server

function askForKey() {
  $("key-button").hidden = false;
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

$("key-button").addEventListener("click", askForKey);
$("key-dialog").addEventListener("close", () => {
  if ($("key-dialog").returnValue !== "use") return;
  key = $("key").value.trim();
  sessionStorage.setItem(KEY, key);
  connect();
});

async function connect() {
  try {
    model = await (await request("page/model.json")).json();
    clearFailure();
    $("model").textContent = `${model.model} · ${model.sample_rate / 1000} kHz`;
    document.title = `${model.model} · voxcpm-grpc`;
    $("key-button").hidden = !key;
    const steps = model.timesteps.map((count) => new Option(String(count), String(count)));
    $("timesteps").replaceChildren(new Option(`Default (${model.default_timesteps})`, ""), ...steps);
    $("cfg").placeholder = String(model.default_cfg_value);
    voices.configure(model);
    await voices.load();
    announce("Ready.");
  } catch (error) {
    if (error.status === 401) askForKey();
    fail({ message: error.message, request_id: error.requestId ?? "" });
  }
}

connect();
