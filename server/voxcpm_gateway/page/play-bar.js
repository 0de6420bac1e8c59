/** The bar under the text: play and pause, the waveform in which the listener moves, the spectrogram, and downloads. */

import { encoded, fileName, NAME_CHARS, save } from "./download.js";
import { Spectrogram } from "./spectrogram.js";
import { Waveform } from "./waveform.js";

const REDUCED_FPS = 5; // for visitors who do not want motion
const $ = (id) => document.getElementById(id);

function clock(seconds) {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

export class PlayBar {
  /**
   * @param {Conversation} conversation
   * @param {Server} server
   * @param {(error: Error) => void} fail
   */
  constructor(conversation, server, fail) {
    Object.assign(this, { conversation, server, fail });
    this.waveform = new Waveform($("wave"));
    this.spectrogram = new Spectrogram($("spectrum"));
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.drawn = ""; // what the pictures show
    this.drawnAt = 0;
    $("play").addEventListener("click", () => conversation.toggle());
    $("seek").addEventListener("input", () => {
      const { take } = conversation;
      conversation.seek(take.start + Number($("seek").value) * take.rate);
    });
    $("download").addEventListener("click", () => this.download());
  }

  get isComplete() {
    const { take, speaking, flushes, openTurn } = this.conversation;
    return Boolean(take?.seconds) && speaking === null && flushes === 0 && !openTurn?.missing;
  }

  changed() {
    const { playing, player, active, take } = this.conversation;
    const held = Boolean(player?.report.held);
    const [label, icon] = held ? ["Go on", "play"] : playing || active ? ["Pause", "pause"] : ["Play again", "play"];
    $("play").disabled = !take?.seconds;
    if ($("play").getAttribute("aria-label") !== label) {
      $("play").setAttribute("aria-label", label);
      $("play").querySelector("use").setAttribute("href", `#icon-${icon}`);
    }
    $("seek").disabled = !take?.seconds;
    $("download").disabled = !this.isComplete;
  }

  /** Draw what has changed. Call it for each frame. */
  draw() {
    const { take, position } = this.conversation;
    const expected = this.isComplete ? 0 : this.conversation.expectedSeconds;
    const now = `${take?.start} ${take?.end} ${take?.version} ${Math.round(position)} ${expected}`;
    const due = !this.calm.matches || performance.now() - this.drawnAt > 1000 / REDUCED_FPS;
    if (now === this.drawn || !due) return;
    this.drawnAt = performance.now();
    this.waveform.draw(take, position, expected);
    if (this.spectrogram.draw(take, position)) this.drawn = now;
    this.showTime(take, position, expected);
  }

  showTime(take, position, expected) {
    const seconds = take ? (position - take.start) / take.rate : 0;
    const most = Math.max(take?.seconds ?? 0, expected, 0.1);
    $("seek").max = String(most);
    $("seek").value = String(seconds);
    const shown = take?.seconds ? `${clock(seconds)} / ${clock(take.seconds)}` : "0:00";
    if ($("time").textContent === shown) return;
    $("time").textContent = shown;
    $("seek").setAttribute("aria-valuetext", `${clock(seconds)} of ${clock(take?.seconds ?? 0)}`);
  }

  async download() {
    const { take, history } = this.conversation;
    const format = $("format").value;
    $("download").disabled = true;
    try {
      save(await encoded(take, format, this.server), fileName(history.at(-1).slice(0, NAME_CHARS)), format);
    } catch (error) {
      this.fail(error);
    }
    this.changed();
  }
}
