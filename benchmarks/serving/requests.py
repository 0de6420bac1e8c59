"""The requests of a load: users in a closed loop, random arrivals, and listeners.

Times are in seconds on the host's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from voxcpm_client.values.options import SegmentationMode


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """The parameters that all requests of a load share.

    steps: of each request, or the most if lengths are mixed. timesteps: flow-matching steps, None for a model without.
    chars: length of each text. min_steps: the fewest steps of mixed lengths. pieces: share of the texts that arrive
    word by word. segmentation: that of the texts. voices: stored or built-in voices that requests take turns with.
    uploads: share of the requests that store a recording instead of speaking.
    """

    steps: int
    timesteps: int | None
    chars: int
    segmentation: SegmentationMode = "sentence"
    min_steps: int | None = None
    pieces: float = 0.0
    voices: tuple[str, ...] = ()
    uploads: float = 0.0

    def mixed(self, serial: int, draws: random.Random, at: float | None = None) -> PlannedRequest:
        """A request of a random length, whose text may arrive in pieces, or which may be an upload."""
        steps = self.steps if self.min_steps is None else draws.randint(self.min_steps, self.steps)
        in_pieces, upload = draws.random() < self.pieces, draws.random() < self.uploads
        return PlannedRequest(serial=serial, steps=steps, at=at, in_pieces=in_pieces, upload=upload)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request, and when it is due.

    serial: number of its text. at: when it is due, after the start of the load; None: when the request before it has
    ended. after_playback: with `at` None, due when playback of the request before it has ended instead. counts: False
    for a request that only warms up. in_pieces: True if its text is sent word by word. upload: True if it stores a
    recording of its own instead of speaking.
    """

    serial: int
    steps: int
    at: float | None = None
    after_playback: bool = False
    counts: bool = True
    in_pieces: bool = False
    upload: bool = False


@dataclass(slots=True, kw_only=True)
class Call:
    """The outcome of a request.

    due, sent: when it should have been sent, and when it was; both are the last word's time if a text is in pieces.
    times: the arrival of each chunk with audio. seconds: the length of its audio. server_ttfb: time to first audio by
    the server's clock. silent: time from the first chunk to the first sound that a listener hears, by the same clock; 0
    without a sound. upload: seconds in which a recording was stored, None for speech. code: status of the call.
    """

    due: float
    sent: float
    counts: bool
    times: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    server_ttfb: float = 0.0
    silent: float = 0.0
    upload: float | None = None
    code: str = "OK"


UserRequests = Sequence[PlannedRequest]
"""The requests of one user, in order."""


def closed_loop(count: int, requests: int, shape: RequestShape, *, first: int, seed: int) -> list[UserRequests]:
    """Users who send each request as soon as the one before it has ended.

    Each of `count` users sends `requests` requests that count, after one of random length that does not count, so that
    the users do not run in step. `first` is the number of the first text.
    """
    lengths = random.Random(seed)
    users, serial = [], first
    for _ in range(count):
        warm_up = PlannedRequest(serial=serial, steps=lengths.randint(1, shape.steps), counts=False)
        counted = [shape.mixed(serial + 1 + index, lengths) for index in range(requests)]
        users.append([warm_up, *counted])
        serial += 1 + requests
    return users


def open_loop(rate: float, requests: int, shape: RequestShape, *, first: int, seed: int) -> list[UserRequests]:
    """One request each of `requests` users, at random times (Poisson), `rate` a second on average."""
    gaps, shapes, at, users = random.Random(seed), random.Random(seed + 1), 0.0, []
    for index in range(requests):
        users.append([shape.mixed(first + index, shapes, at)])
        at += gaps.expovariate(rate)
    return users


def listeners(
    count: int, shape: RequestShape, utterance: float, *, settle: float, seconds: float, first: int, seed: int
) -> list[UserRequests]:
    """Users who play speech without a pause: each request is due when playback of the one before it has ended.

    utterance: length of a request's audio. Each user starts at a random point of an utterance, so that requests come at
    random times and at the lasting rate from the start. Requests count if they are due in the `seconds` that follow
    `settle` seconds, provided that nothing is late.
    """
    starts, users, serial = random.Random(seed), [], first
    for _ in range(count):
        at = starts.uniform(0, utterance)
        requests: list[PlannedRequest] = []
        while at < settle + seconds:
            request = PlannedRequest(serial=serial, steps=shape.steps, after_playback=True, counts=at >= settle)
            requests.append(request if requests else replace(request, at=at))
            at += utterance
            serial += 1
        users.append(requests)
    return users
