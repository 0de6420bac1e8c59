"""Standard streams that the caller has closed, as `serve <&- >&- 2>&-` does."""

from __future__ import annotations

import os
import sys


def hold_closed() -> None:
    """Open the null device in the place of each closed standard stream, before another file gets its number.

    Libraries print to the numbers 0 to 2, and end the process if these are theirs: they would write into a connection.
    `sys.stdin` and `sys.stdout` stay None, by which Python marks a closed stream: `print` and `click.echo` then write
    nothing, and commands that need the stream say so. Libraries write to `sys.stderr` without asking, so it gets one.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open until the process ends
