"""The choice of a replica for each request."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from support.doubles.fake_engine import INFO
from support.engines.voice_parts import voice_part

from voxcpm_grpc.pool.balancer import CACHE_BONUS_STEPS, Balancer, Room, prefix_of, work_of
from voxcpm_grpc.request import Conditioning, Request, Sampling


@dataclass(eq=False)
class Replica:
    work: float = 0.0
    room: Room = Room.SLOT


def loads(*replicas: Replica) -> dict[Replica, tuple[Room, float]]:
    return {replica: (replica.room, replica.work) for replica in replicas}


def with_text(text: str, **sampling) -> Request:
    return Request(id="a", text=text, sampling=Sampling(**sampling))


def voice(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((40, 4, 8)).astype(np.float32)


def with_voice(seed: int) -> Request:
    return Request(id="a", text="Hello.", conditioning=Conditioning(reference=voice_part(voice(seed))))


def test_work_is_the_expected_duration_of_the_speech():
    second = INFO.output_sample_rate / INFO.samples_per_step
    sentence = "The quick brown fox jumps over the lazy dog, and nobody minds."  # 4 to 5 s when read aloud
    assert 3 * second < work_of(with_text(sentence), INFO) < 7 * second
    assert 3 * second < work_of(with_text("敏捷的棕色狐狸跳过了那只懒狗,没有人介意。"), INFO) < 7 * second
    assert work_of(with_text(sentence * 3), INFO) > 2.5 * work_of(with_text(sentence), INFO)


def test_work_includes_limits_and_voices():
    assert work_of(with_text("A long text. " * 20, max_steps=7), INFO) == 7
    assert work_of(with_text("No.", min_steps=500), INFO) == 500
    plain = with_text("Hello there.")
    latents = np.zeros((640, 4, 8), np.float32)
    for conditioning in (Conditioning(reference=voice_part(latents)), Conditioning(prompt=voice_part(latents, "x"))):
        assert work_of(replace(plain, conditioning=conditioning), INFO) == work_of(plain, INFO) + 10


def test_the_replica_with_the_least_work_is_chosen_and_equal_ones_take_turns():
    replicas = [Replica(), Replica(), Replica()]
    balancer = Balancer[Replica]()
    assert {balancer.choose(loads(*replicas), None) for _ in range(3)} == set(replicas)
    replicas[0].work, replicas[1].work, replicas[2].work = 30, 10, 20
    assert balancer.choose(loads(*replicas), None) is replicas[1]


def test_a_replica_with_a_free_slot_is_chosen_before_one_with_less_work():
    short, long = Replica(work=20, room=Room.QUEUE), Replica(work=300)
    assert Balancer[Replica]().choose(loads(short, long), None) is long
    long.room = Room.NONE
    assert Balancer[Replica]().choose(loads(short, long), None) is short


def test_a_voice_stays_with_its_replica_unless_that_has_notably_more_work():
    first, other = Replica(), Replica()
    balancer, prefix = Balancer[Replica](), prefix_of(with_voice(1))
    assert prefix is not None
    assert balancer.choose(loads(first), prefix) is first
    first.work = CACHE_BONUS_STEPS - 1
    assert balancer.choose(loads(first, other), prefix) is first
    assert balancer.choose(loads(first, other), prefix_of(with_voice(2))) is other, "another voice is in no cache"
    first.work = other.work + CACHE_BONUS_STEPS + 1
    assert balancer.choose(loads(first, other), prefix) is other
    first.work = other.work = 0
    assert {balancer.choose(loads(first, other), prefix) for _ in range(2)} == {first, other}, (
        "both have it in their cache"
    )


def test_a_lost_engine_has_nothing_in_its_cache():
    first, other = Replica(), Replica()
    balancer, prefix = Balancer[Replica](), prefix_of(with_voice(1))
    balancer.choose(loads(first), prefix)
    balancer.forget(first)
    first.work = 1
    assert balancer.choose(loads(first, other), prefix) is other


def test_voices_have_different_prefixes():
    assert prefix_of(with_voice(1)) == prefix_of(with_voice(1))
    assert prefix_of(with_voice(1)) != prefix_of(with_voice(2))
    assert prefix_of(with_text("Hello.")) is None
