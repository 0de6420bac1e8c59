"""Streams of a program in C++ that are not read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
from support.engines.tolerances import IN_A_BATCH
from support.servers.running import FEW_TIMESTEPS, serving
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import Client

SEED = 7


def test_cpp_streams_that_are_not_read_leave_the_others_their_slots(call, build, tmp_path):
    """More streams than the engine has slots, with the default pacing."""
    program = build("cpp").with_source(Path(__file__).with_name("stall.cc"), "stall")
    limits = (
        "--engine.max-slots",
        "4",
        "--limits.max-lead-seconds",
        "2",
        "--limits.max-queue-seconds",
        f"{HANG_SECONDS:g}",
    )
    with (
        serving(tmp_path, *limits, model="demo", family=FEW_TIMESTEPS) as server,
        Client(server.address, timeout=None) as client,
    ):

        def speak() -> np.ndarray:
            speech = client.say(call.text, voice=call.voice, seed=SEED, max_queue_time=HANG_SECONDS)
            return speech.samples.astype(int)

        expected = speak()
        streams = 2 * client.model_info().max_slots
        words = (program.folder / "speak", server.address, str(streams), f"{call.text} " * 40)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        stalled = subprocess.Popen(words, env=program.environment, **pipes)
        try:
            assert stalled.stdout and stalled.stdout.readline() == "open\n"
            for _ in range(3):
                samples = speak()
                assert len(samples) == len(expected) > 0
                assert np.abs(samples - expected).max() <= IN_A_BATCH
            assert stalled.poll() is None
        finally:
            stalled.communicate("\n", timeout=HANG_SECONDS)
    assert stalled.returncode == 0
