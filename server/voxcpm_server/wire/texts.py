"""Parts of requests: pauses, lexicons, and the end of segments. All functions raise InvalidRequest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import ModelInfo, Sampling
from voxcpm_grpc.settings.limits import MAX_TRIM_SECONDS
from voxcpm_grpc.text.lexicon import clean, entry_fault
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values import inputs
from voxcpm_server.wire.fields import read_float, read_seconds

MAX_PAUSE_MILLISECONDS = 60_000
MAX_LEXICON = 1000
MAX_ATTEMPTS = 10
DEFAULT_ATTEMPTS = 3  # the official package has this number
MAX_RATIO = 100.0


def bare_style(style: str) -> str:
    """A style as it is written into parentheses before the text."""
    bare = " ".join(style.translate(str.maketrans("", "", "()（）")).split())
    return "".join(c for c in bare if c.isprintable())


def read_pause(pause: pb.Pause) -> inputs.Pause:
    if not 1 <= pause.milliseconds <= MAX_PAUSE_MILLISECONDS:
        raise InvalidRequest(
            f"the pause has {pause.milliseconds} milliseconds; it must have 1 to {MAX_PAUSE_MILLISECONDS}, send "
            "several pauses for a longer silence",
            field="pause.milliseconds",
        )
    return inputs.Pause(pause.milliseconds)


def read_lexicon(entries: Sequence[pb.LexiconEntry]) -> dict[str, str]:
    """Words and their spellings."""
    if len(entries) > MAX_LEXICON:
        raise InvalidRequest(
            f"the lexicon has {len(entries)} words and the limit is {MAX_LEXICON}; give longer lists to the server",
            field="lexicon",
        )
    found: dict[str, str] = {}
    for index, entry in enumerate(entries):
        word = clean(entry.word)
        if fault := entry_fault(entry.word, entry.spelling):
            raise InvalidRequest(f"the lexicon has a fault: {fault}", field=f"lexicon[{index}]")
        if word in found:
            raise InvalidRequest(
                f"the lexicon has a fault: {word!r} is there twice; send each word once", field=f"lexicon[{index}]"
            )
        found[word] = entry.spelling
    return found


def read_max_attempts(turn: pb.TurnConfig) -> int:
    """The number of generations of a segment whose speech runs on."""
    given = turn.retry_badcase_max_times if turn.HasField("retry_badcase_max_times") else DEFAULT_ATTEMPTS
    if not 1 <= given <= MAX_ATTEMPTS:
        raise InvalidRequest(
            f"retry_badcase_max_times is {given}; it must be 1 to {MAX_ATTEMPTS}", field="retry_badcase_max_times"
        )
    return given if turn.retry_badcase else 1


def check_streamed(turn: inputs.TurnConfig) -> None:
    """Raise InvalidRequest for settings of a turn that need whole segments, in a stream whose text arrives."""
    needs = {"normalize": turn.normalize, "retry_badcase": turn.max_attempts > 1}
    for field in (name for name, is_set in needs.items() if is_set):
        raise InvalidRequest(
            f"{field} needs the whole text of a segment, and SEGMENTATION_MODE_TOKENS speaks text while it arrives; "
            "leave it out, or use SEGMENTATION_MODE_SENTENCE",
            field=field,
        )


def read_ends(turn: pb.TurnConfig, sampling: Sampling, info: ModelInfo) -> Sampling:
    """Sampling parameters with those of a turn that end a segment."""
    ratio = read_float(turn, "retry_badcase_ratio_threshold", info.ends.steps_per_token)
    if not 0 < ratio <= MAX_RATIO:
        raise InvalidRequest(
            f"retry_badcase_ratio_threshold is {ratio:g}; it must be above 0, up to {MAX_RATIO:g}",
            field="retry_badcase_ratio_threshold",
        )
    silence = read_seconds(turn, "max_silence")
    steps = None if silence is None else math.ceil(silence * info.output_sample_rate / info.samples_per_step - 1e-6)
    silent = sampling.max_silent_steps if steps is None else max(1, steps)
    if (ratio, silent) == (sampling.steps_per_token, sampling.max_silent_steps):
        return sampling
    return replace(sampling, steps_per_token=ratio, max_silent_steps=silent)


def read_trim(config: pb.GenerateConfig, default: float) -> float:
    """The seconds of silence at the start of each turn that are left out at most."""
    seconds = read_seconds(config, "trim_leading_silence", or_zero=True)
    if seconds is not None and seconds > MAX_TRIM_SECONDS:
        raise InvalidRequest(
            f"trim_leading_silence is {seconds:g} s; it must be 0 to {MAX_TRIM_SECONDS:g} s",
            field="trim_leading_silence",
        )
    return default if seconds is None else seconds
