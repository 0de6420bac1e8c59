"""Which engine gets a request."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from support.fake_engine import INFO

from voxcpm_grpc.pool.balancer import KNOWN_STEPS, Balancer, prefix_of, work_of
from voxcpm_grpc.request import Conditioning, Prompt, Request, Sampling


@dataclass(eq=False)
class Engine:
    work: float = 0.0
    full: bool = False


def said(text: str, **sampling) -> Request:
    return Request(id="a", text=text, sampling=Sampling(**sampling))


def voice(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((40, 4, 8)).astype(np.float32)


def in_voice(seed: int) -> Request:
    return Request(id="a", text="Hello.", conditioning=Conditioning(reference=voice(seed)))


def test_work_is_the_speech_that_a_text_will_be():
    second = INFO.output_sample_rate / INFO.samples_per_step
    sentence = "The quick brown fox jumps over the lazy dog, and nobody minds."  # 4 to 5 s when read aloud
    assert 3 * second < work_of(said(sentence), INFO) < 7 * second
    assert 3 * second < work_of(said("敏捷的棕色狐狸跳过了那只懒狗,没有人介意。"), INFO) < 7 * second
    assert work_of(said(sentence * 3), INFO) > 2.5 * work_of(said(sentence), INFO)


def test_limits_and_voices_count():
    assert work_of(said("A long text. " * 20, max_steps=7), INFO) == 7
    assert work_of(said("No.", min_steps=500), INFO) == 500
    plain = said("Hello there.")
    latents = np.zeros((640, 4, 8), np.float32)
    for conditioning in (Conditioning(reference=latents), Conditioning(prompt=Prompt(text="x", latents=latents))):
        assert work_of(replace(plain, conditioning=conditioning), INFO) == work_of(plain, INFO) + 10


def test_least_work_wins_and_equals_take_turns():
    engines = [Engine(), Engine(), Engine()]
    chooser = Balancer()
    assert {chooser.choose(engines, None) for _ in range(3)} == set(engines)
    engines[0].work, engines[1].work, engines[2].work = 30, 10, 20
    assert chooser.choose(engines, None) is engines[1]


def test_who_has_a_slot_comes_before_who_has_less_work():
    short, long = Engine(work=20, full=True), Engine(work=300)
    assert Balancer().choose([short, long], None) is long
    long.full = True
    assert Balancer().choose([short, long], None) is short


def test_a_voice_stays_where_it_is_known_unless_there_is_notably_more_to_do():
    known, other = Engine(), Engine()
    chooser, prefix = Balancer(), prefix_of(in_voice(1))
    assert prefix is not None
    assert chooser.choose([known], prefix) is known
    known.work = KNOWN_STEPS - 1
    assert chooser.choose([known, other], prefix) is known
    assert chooser.choose([known, other], prefix_of(in_voice(2))) is other, "another voice has no reason to wait"
    known.work = other.work + KNOWN_STEPS + 1
    assert chooser.choose([known, other], prefix) is other
    known.work = other.work = 0
    assert {chooser.choose([known, other], prefix) for _ in range(2)} == {known, other}, "both know it now"


def test_a_lost_engine_knows_nothing_any_more():
    known, other = Engine(), Engine()
    chooser, prefix = Balancer(), prefix_of(in_voice(1))
    chooser.choose([known], prefix)
    chooser.forget(known)
    known.work = 1
    assert chooser.choose([known, other], prefix) is other


def test_voices_are_told_apart():
    assert prefix_of(in_voice(1)) == prefix_of(in_voice(1))
    assert prefix_of(in_voice(1)) != prefix_of(in_voice(2))
    assert prefix_of(said("Hello.")) is None
