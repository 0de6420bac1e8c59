"""Processes that their parent starts and ends."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.helper_process import READY, SPAWN, HelperProcess


def answer(pipe: Connection) -> None:
    pipe.send_bytes(READY)
    while True:
        pipe.send_bytes(pipe.recv_bytes())


def test_ctrl_c_never_interrupts_a_process_not_even_while_it_starts():
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=answer, args=(theirs,), daemon=True)
    process.start()
    assert process.pid
    os.kill(process.pid, signal.SIGINT)  # before its first line
    assert ours.poll(HANG_SECONDS)
    assert ours.recv_bytes() == READY
    os.kill(process.pid, signal.SIGINT)
    ours.send_bytes(b"still here")
    assert ours.recv_bytes() == b"still here"
    process.kill()
    process.join()


def test_a_start_leaves_the_signals_of_its_thread_as_they_were():
    helper = HelperProcess(answer, name="helper")
    assert helper.start(HANG_SECONDS) == READY
    helper.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
