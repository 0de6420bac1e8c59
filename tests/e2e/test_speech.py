"""Speech of a real server is complete, repeatable, in every format and can be interrupted."""

from __future__ import annotations

import numpy as np
import pytest
from support.clients.short_speech import SHORT

from voxcpm_client import Client, Pause


def test_speech_is_repeatable_and_complete(client, info, same_audio):
    with client.speak(["Hello ", "there."], **SHORT) as stream:
        chunks = list(stream)
    assert stream.header.sample_rate == info.output_sample_rate
    assert stream.summary.total_samples == sum(chunk.sample_count for chunk in chunks) == 4 * info.samples_per_step
    assert [chunk.offset for chunk in chunks] == list(np.cumsum([0, *(c.sample_count for c in chunks)])[:-1])
    again = client.say("Hello there.", **SHORT)
    same_audio(again.samples, np.concatenate([chunk.samples for chunk in chunks]))
    assert not np.array_equal(client.say("Hello there.", **{**SHORT, "seed": 8}).samples, again.samples)


def test_every_connection_gets_the_same_audio(target, client, same_audio):
    """Several servers behind one address behave like one."""
    first = client.say("Hello there.", **SHORT)
    for _ in range(4):
        with Client(target, timeout=300) as other:
            same_audio(other.say("Hello there.", **SHORT).samples, first.samples)


def test_sentences_are_spoken_while_text_arrives(client):
    with client.session(max_steps=3, timesteps=4, seed=1) as session:
        session.send_text("One is here. Two is ")
        session.send_text("here. And")
        chunk = next(session)
        assert chunk.sample_count
        session.send_text(" three.")
        session.flush(tag="all")
        flushed = [chunk.flushed.tag for chunk in session_until(session, "flushed")]
        assert flushed == ["all"]
        session.finish()
        assert [chunk for chunk in session if chunk.sample_count] == []
    assert session.summary.segments == 3
    assert session.summary.total_samples == 9 * client.model_info().samples_per_step


def session_until(session, event: str) -> list:
    """The next chunk with this event, as a list; an empty list if the stream ends first."""
    for chunk in session:
        if getattr(chunk, event):
            return [chunk]
    return []


def test_a_conversation_can_be_interrupted(client):
    with client.session(timesteps=4, seed=1, segmentation="manual") as session:
        session.send_text("One long sentence that the interrupt cuts off before its end, after some time.")
        session.flush()
        next(session)
        session.interrupt(tag="stop")
        (answer,) = session_until(session, "interrupted")
        assert answer.interrupted.tag == "stop"
        session.send_text("Two.")
        session.finish()
        assert sum(chunk.sample_count for chunk in session) > 0


@pytest.mark.parametrize("rate", [16000, 48000])
@pytest.mark.parametrize("format", ["pcm_s16le", "pcm_f32le", "wav"])
def test_audio_in_every_format(client, info, format, rate):
    speech = client.say("Hello there.", format=format, sample_rate=rate, **SHORT)
    expected = 4 * info.samples_per_step * rate // info.output_sample_rate
    assert speech.sample_rate == rate
    assert len(speech.samples) == speech.summary.total_samples == expected
    assert np.abs(speech.samples).max() > 0


def test_a_described_voice_is_another_voice(client):
    plain, calm = client.say("Hello there.", **SHORT), client.say("Hello there.", style="a calm old man", **SHORT)
    assert not np.array_equal(plain.samples, calm.samples)


def test_a_pause_adds_exact_silence_between_the_same_speech(client, info, same_audio):
    plain = client.say(["Hello there.", Pause(0.001), "Goodbye."], **SHORT).samples
    with client.speak(["Hello there.", Pause(0.3), "Goodbye."], **SHORT) as stream:
        chunks = list(stream)
    _, finished, started, _ = [event.at_samples for chunk in chunks for event in chunk.events]
    rate = info.output_sample_rate
    assert started - finished == round(0.3 * rate)
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert not samples[finished:started].any()
    same_audio(samples[:finished], plain[:finished])
    same_audio(samples[started:], plain[finished + round(0.001 * rate) :])


def test_a_segment_that_runs_on_is_spoken_again_with_the_next_seed(client, info, same_audio):
    """With a threshold of next to nothing all speech runs on, and the limit is 10 steps."""
    options = {"timesteps": 4, "min_steps": 100, "retry_badcase_ratio_threshold": 0.001}
    second = client.say("Hello there.", seed=8, **options)
    assert second.summary.finish_reason == "max_steps"
    assert second.summary.generated_steps == 10
    retried = client.say("Hello there.", seed=7, retry_badcase=True, retry_badcase_max_times=2, **options)
    assert retried.summary.generated_steps == 20
    assert retried.summary.segments == 1
    same_audio(retried.samples, second.samples)
