"""Parts of a work for several processes, such as one on each GPU."""

import argparse


def share(text: str) -> tuple[int, int]:
    """An argument such as 1/2, the first part of two."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no share; the first of two is 1/2")
    return int(part), int(parts)
