"""The audio that the page has: pictures, pause, replay, seeking, files, and the start of the playback."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page

from voxcpm_grpc.audio.uploads import decode

pytestmark = pytest.mark.usefixtures("quiet_console")
SENTENCE = "The quick brown fox jumps over the lazy dog near the river. "
CONVERSATION = "window.voxcpm.conversation"
STATUS = "document.getElementById('status').textContent"
HEARD = f"(({CONVERSATION}.position - {CONVERSATION}.take?.start) / {CONVERSATION}.player?.rate)"
# Note the first place that is heard, in seconds, with what the slider says of it.
WATCH = f"""(() => {{
  window.first = null;
  const look = () => {{
    if ({CONVERSATION}.playing)
      window.first = {{heard: {HEARD}, said: document.getElementById('seek').getAttribute('aria-valuetext')}};
    else requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}})()"""
# The share of the columns of the spectrogram before the playhead that show more than the ground.
DRAWN = """(() => {
  const canvas = document.getElementById('spectrum');
  const {data, width, height} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const level = (x, y) => data[4 * (y * width + x)] + data[4 * (y * width + x) + 1];
  let drawn = 0;
  const columns = Math.floor(width * 0.6);
  for (let x = 0; x < columns; x++) {
    const levels = Array.from({length: height}, (_, y) => level(x, y));
    drawn += Math.max(...levels) - Math.min(...levels) > 60;
  }
  return drawn / columns;
})()"""


def spoken(page: Page, text: str) -> None:
    """Speak a text to its end."""
    page.fill("text", text)
    page.click("speak")
    page.until(f"{STATUS} === 'Done.'")


def requests(page: Page) -> int:
    """The texts that the page has sent, on all of its streams."""
    return page.run("window.sent")


def count_texts(page: Page) -> None:
    page.run(
        "(() => { window.sent = 0; const send = WebSocket.prototype.send; WebSocket.prototype.send = function (data) {"
        " if (JSON.parse(data).type === 'text') window.sent += 1; return send.call(this, data); }; })()"
    )


def test_the_spectrogram_follows_what_is_heard_however_much_has_arrived(quick: Page):
    quick.run("document.getElementById('live').click()")
    quick.fill("text", SENTENCE * 40)
    quick.click("speak")
    quick.until(f"{CONVERSATION}.ahead > 60")
    quick.until_played(8)
    quick.until(f"{DRAWN} > 0.9")
    quick.click("stop")


def test_speech_is_paused_and_goes_on_at_the_same_place(quick: Page):
    quick.fill("text", SENTENCE * 3)
    quick.click("speak")
    quick.until_played(1)
    quick.click("play")
    quick.until(f"{STATUS} === 'Paused.'")
    quick.until(f"{CONVERSATION}.player.report.held && {CONVERSATION}.ahead > 9")
    held = quick.report["position"]
    quick.click("play")
    quick.until(f"{CONVERSATION}.position > {held + quick.rate}")
    report = quick.report
    assert report["position"] == report["playedSamples"]  # nothing was left out or played twice
    assert report["gaps"] == 0
    quick.click("stop")


def test_a_text_is_heard_again_from_any_place_without_being_spoken_again(quick: Page):
    count_texts(quick)
    spoken(quick, SENTENCE)
    sent = requests(quick)
    length = quick.run(f"{CONVERSATION}.take.seconds")
    assert quick.find("play").get_attribute("aria-label") == "Play again"
    quick.run(WATCH)
    quick.click("play")
    assert quick.until("window.first")["heard"] < 1
    quick.until(f"{STATUS} === 'Playing again.'")
    assert quick.find("stop").get_attribute("disabled")  # nothing is left to interrupt
    quick.run(
        "(() => { const seek = document.getElementById('seek'); seek.value = arguments[0];"
        " seek.dispatchEvent(new Event('input')); })()".replace("arguments[0]", str(length - 1))
    )
    quick.until(f"{HEARD} > {length - 1}")
    quick.until(f"{STATUS} === 'Done.'")
    assert requests(quick) == sent


def test_the_waveform_is_a_slider_for_the_keyboard(quick: Page):
    spoken(quick, SENTENCE)
    quick.run("document.getElementById('seek').focus()")
    quick.run(WATCH)
    quick.press("Home")
    first = quick.until("window.first")
    assert first["heard"] < 1 and first["said"].startswith("0:00 of 0:04")


def test_a_place_that_was_heard_stays_heard_after_going_back(quick: Page):
    quick.events()
    quick.fill("text", SENTENCE * 20)
    quick.click("speak")
    quick.until_played(5)
    quick.run(f"{CONVERSATION}.seek(0)")
    quick.until(f"{CONVERSATION}.playing && {HEARD} < 5")
    quick.click("stop")
    answer = quick.until("window.events.find((one) => one.type === 'interrupted')")
    assert answer["heard_input_end"] >= len(SENTENCE)


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus"])
def test_a_text_is_saved_without_being_spoken_again(quick: Page, tmp_path: Path, format: str):
    count_texts(quick)
    spoken(quick, SENTENCE)
    sent = requests(quick)
    quick.run(f"void (document.getElementById('format').value = '{format}')")
    saved = quick.download(tmp_path)
    assert saved.name == f"the-quick-brown-fox-jumps-over-the-lazy.{format}"
    found = decode(saved.read_bytes(), target_rate=48000, max_seconds=60, max_bytes=1 << 30)
    assert len(found.waveform) / 48000 == pytest.approx(quick.run(f"{CONVERSATION}.take.seconds"), abs=0.06)
    assert abs(found.waveform).max() > 0.4  # the tone of the engine
    assert requests(quick) == sent


def test_a_slow_server_is_waited_for_and_then_speaks_without_gaps(browser: Chrome, slow_address: str):
    page = Page(browser, slow_address).ready()
    spoken(page, SENTENCE * 2)
    assert page.report["gaps"] == 0
    assert page.run(f"{CONVERSATION}.pace.factor") > 1
    assert float(page.text("start-buffer").removesuffix(" s")) > 0.8
    assert float(page.text("real-time")) > 1


@pytest.mark.parametrize(
    ("factor", "expected", "seconds"),
    [
        (0.05, 60, 0.1),  # a GPU: as little as possible
        (0.25, 60, 0.1),
        (0.5, 60, 0.3),
        (1, 60, 0.7),
        (1.25, 10, 0.7 + 2),  # a fifth of the ten seconds is late at their end
        (1.25, 0, 0.7),
        (4, 600, 10),
    ],
)
def test_the_start_buffer_grows_with_the_pace_of_the_server(page: Page, factor: float, expected: float, seconds: float):
    found = page.driver.execute_async_script(
        "const [factor, expected, done] = arguments;"
        " import('/page/start-buffer.js').then(({startSeconds}) => done(startSeconds(factor, expected)));",
        factor,
        expected,
    )
    assert found == pytest.approx(seconds)


def test_the_pace_of_a_server_is_remembered_for_the_next_visit(browser: Chrome, slow_address: str):
    page = Page(browser, slow_address).ready()
    spoken(page, "Only a few words.")
    page.until("JSON.parse(sessionStorage.getItem('voxcpm-draft')).factor > 1")
    page.reload()
    assert page.run(f"{CONVERSATION}.earlierFactor") > 1
