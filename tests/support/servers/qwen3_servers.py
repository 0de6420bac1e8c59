"""Servers of tiny Qwen3-TTS checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.engines.checkpoints import VOICE
from support.servers.running import Server, serving

from tools.make_qwen3_checkpoint import write_checkpoint

QWEN3 = "qwen3-"
"""The beginning of the names of these checkpoints; the rest is a variant of tools/qwen3_checkpoint_layout.py."""
CLONES = f"{QWEN3}base"


@contextmanager
def qwen3_serving(folder: Path, name: str) -> Iterator[Server]:
    """Serve a checkpoint, until the end of the block.

    One that speaks with recordings has the presets of the bundled voice, and one of them as its default voice, because
    it refuses streams without a voice.

    folder: for the checkpoint and the voices
    """
    model, family = folder / "tiny", ()
    write_checkpoint(model, name.removeprefix(QWEN3))
    if name.startswith(CLONES):
        shutil.copytree(VOICE / "presets", model / "presets")
        family = ("--voices.default", "miles")
    with serving(folder / "voices", model=model, family=family) as running:
        yield running
