"""Signals to a whole server."""

from __future__ import annotations

import signal

import pytest
from support.servers import serving
from support.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until


@pytest.mark.parametrize("fronts", [1, 2])
@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_neither_ctrl_c_nor_a_second_signal_waits_for_the_drain_delay(tmp_path, fronts, signals):
    never = f"{NEVER_SECONDS:g}"
    flags = ("--fronts", str(fronts), "--drain-seconds", never, "--drain-delay-seconds", never)
    with serving(tmp_path, *flags) as server:
        for number, after in zip(signals, ("", "new calls are served for another"), strict=False):
            wait_until(lambda after=after: after in server.log)
            server.process.send_signal(number)
        assert server.process.wait(HANG_SECONDS) == 0
