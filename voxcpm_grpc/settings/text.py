"""Settings of text and of the times of its words."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from voxcpm_grpc.settings.types import Frozen, Positive


class TextSettings(Frozen):
    """The preparation of text."""

    lexicon: Path | None = Field(
        default=None,
        description="file with words and the spellings that are spoken instead of them, in JSON or TOML, read at the "
        "start; the lexicon of a request precedes it; default: none",
    )
    start_normalizer: bool = Field(
        default=True,
        description="start the process that normalises text with the server, if the extra `normalize` is installed, so "
        "that the first normalised text is as fast as the others; false: the first such text starts it, and waits some "
        "seconds. The process takes 0.13 GB of memory",
    )
    style_in_text: bool = Field(
        default=False,
        description="let text that begins with a description in parentheses steer the voice, unless a request says "
        "otherwise; only for servers whose callers write all of their texts themselves",
    )


class WordSettings(Frozen):
    """The aligners, which find words in speech for streams with word_timestamps."""

    aligners: tuple[str, ...] = Field(
        default=("english",),
        description="aligners, of which the first one that serves a language finds its words: english (of the extra "
        "`align`; without it, times are estimated), the name of an entry point of the group voxcpm_grpc.aligners, or "
        "module:Class; several with commas between them; empty: all times are estimated",
    )
    processes: Positive = Field(
        default=1,
        description="processes of each front that align; one keeps up with 60 streams in real time if each has a "
        "processor core, and takes 0.1 GB of memory",
    )
    start_aligners: bool = Field(
        default=False,
        description="start the processes with the server, so that the words of the first stream come as soon as those "
        "of others; false: the first stream with word_timestamps starts them, and gets its first words a second later",
    )
