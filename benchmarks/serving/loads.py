"""One load after another on a server, and the flags that shape their requests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from benchmarks.measuring.flags import words
from benchmarks.serving import requests
from benchmarks.serving.clients import ClientProcesses, default_processes
from benchmarks.serving.recordings import recording
from benchmarks.serving.requests import Call, RequestShape, UserRequests
from voxcpm_client import Client
from voxcpm_client.values.options import SegmentationMode

MIN_EACH = 4  # requests of each user of a closed loop
VOICE_TIMEOUT = 60.0  # seconds


@dataclass(slots=True, kw_only=True)
class LoadRunner:
    """Runs one load after another on a server, each with texts that the server has not had before."""

    clients: ClientProcesses
    shape: RequestShape
    seed: int = 1
    first: int = 0  # number of the next text

    def warm_up(self, engines: int = 1) -> None:
        self._run(requests.closed_loop(2 * engines, 1, self.shape, first=self.first, seed=self.seed))

    def closed(self, users: int, each: int = MIN_EACH) -> list[Call]:
        """A closed loop, in which `each` requests of each user count."""
        return self._run(requests.closed_loop(users, each, self.shape, first=self.first, seed=self.seed))

    def open(self, rate: float, count: int) -> list[Call]:
        """`count` random arrivals, `rate` a second."""
        return self._run(requests.open_loop(rate, count, self.shape, first=self.first, seed=self.seed))

    def listening(self, count: int, utterance: float, *, settle: float, seconds: float) -> list[Call]:
        """Listeners; the parameters are those of `requests.listeners`."""
        window = {"settle": settle, "seconds": seconds, "first": self.first, "seed": self.seed + self.first}
        return self._run(requests.listeners(count, self.shape, utterance, **window))

    def _run(self, users: Sequence[UserRequests]) -> list[Call]:
        self.first += sum(map(len, users))
        return self.clients.run(users, self.shape)


def request_shape(options: argparse.Namespace) -> RequestShape:
    """The shape that the flags of `add_flags` give."""
    return RequestShape(steps=options.steps, timesteps=options.timesteps or None, chars=options.chars)


def mixed(shape: RequestShape, options: argparse.Namespace) -> RequestShape:
    """The shape with what the flags of `add_mix_flags` give. The clones must be stored by `store_voices`."""
    return replace(
        shape,
        min_steps=options.min_steps,
        pieces=options.pieces,
        segmentation=options.segmentation,
        voices=(*clones(options), *options.speakers),
        uploads=options.uploads,
    )


def clones(options: argparse.Namespace) -> tuple[str, ...]:
    """The names of the cloned voices."""
    return tuple(f"benchmark-{index}" for index in range(options.voices))


def add_mix_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that make requests less alike."""
    parser.add_argument("--min-steps", type=int, help="mixed lengths: each request has from so many to --steps steps")
    parser.add_argument("--pieces", type=float, default=0.0, help="share of the texts that arrive word by word")
    parser.add_argument(
        "--segmentation", choices=get_args(SegmentationMode), default="sentence", help="how texts are cut"
    )
    parser.add_argument("--voices", type=int, default=0, help="cloned voices, with which requests take turns")
    parser.add_argument(
        "--speakers", type=words, default=[], help="built-in voices, likewise, by their names, separated by commas"
    )
    parser.add_argument("--uploads", type=float, default=0.0, help="share of the requests that store a recording")


def store_voices(target: str, names: Sequence[str]) -> None:
    """Store a recording as the reference of each of these voices."""
    with Client(target, timeout=VOICE_TIMEOUT) as client:
        for index, name in enumerate(names):
            client.add_reference(recording(index), name=name)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the requests' shape and of the client processes."""
    parser.add_argument("--steps", type=int, default=60, help="steps of each request")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps; 0 for a model without")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--clients", type=int, default=default_processes(), help="client processes")
