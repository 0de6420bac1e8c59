/** The state of the speech in one sentence. */

/** @returns {string | null} null while nothing was spoken */
export function state(conversation) {
  const { player, history } = conversation;
  if (!history.length) return null;
  if (player?.report.held) return "Paused.";
  if (conversation.active) return busy(conversation);
  if (conversation.playing) return "Playing again.";
  return outcome(history);
}

function busy(conversation) {
  if (conversation.playing) return "Speaking.";
  if (conversation.openTurn && !conversation.speaking && !conversation.flushes) {
    return conversation.openTurn.missing ? "Waiting for the end of the sentence." : "Waiting for more text.";
  }
  return conversation.ahead > 0 ? "Buffering, to play without gaps." : "Waiting for audio.";
}

/** How the last text ended. Only a text that was spoken to its end is done. */
function outcome(history) {
  const last = history.at(-1);
  if (last.heardEnd !== null) {
    const heard = history.filter((turn) => turn.stream === last.stream && turn.heardEnd).at(-1);
    if (!heard) return "Stopped. Nothing was heard.";
    return `Stopped. Heard up to “${heard.wordsBefore(heard.heardEnd)}”${heard.estimated ? " (estimated)" : ""}.`;
  }
  if (last.brokenAt !== null) {
    return last.brokenAt ? `Stopped early, after “${last.wordsBefore(last.brokenAt)}”.` : "Nothing was spoken.";
  }
  if (!last.segments.length) return "Nothing was spoken: the text has neither letters nor digits.";
  if (last.limited !== null) return "Stopped early: the model did not come to an end of a sentence.";
  return "Done.";
}
