/** The measurements of the speech. */

const $ = (id) => document.getElementById(id);

function show(id, content) {
  if ($(id).textContent !== content) $(id).textContent = content;
}

const milliseconds = (seconds) => (seconds === null ? "–" : `${Math.round(seconds * 1000)} ms`);

/** @param {Conversation} conversation */
export function showMeasurements({ first, pace, wanted, ahead, player }) {
  show("first-audio", milliseconds(first.audio));
  show("first-sound", milliseconds(first.sound));
  show("real-time", pace.factor === null ? "–" : pace.factor.toFixed(2));
  show("start-buffer", wanted ? `${wanted.toFixed(1)} s` : "–");
  show("ahead", `${ahead.toFixed(1)} s`);
  show("gaps", String(player?.report.gaps ?? 0));
}
