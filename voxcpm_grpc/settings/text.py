"""Settings of the text of all streams."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from voxcpm_grpc.settings.types import Frozen


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
