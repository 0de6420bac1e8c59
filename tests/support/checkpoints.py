"""What the tests serve unless they are about speech."""

from pathlib import Path

TINY = Path(__file__).parents[1] / "checkpoints" / "tiny"
"""A random checkpoint of the released layout, quick to load and to run."""
