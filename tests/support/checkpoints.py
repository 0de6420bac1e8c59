"""The checkpoints of the tests."""

from pathlib import Path

import voxcpm_grpc

TINY = Path(__file__).parents[1] / "checkpoints" / "tiny"
"""A random checkpoint of the released layout, fast to load and to run."""
VOICE = Path(voxcpm_grpc.__file__).parent / "demo"
"""The bundled voice, which speaks English. For tests about speech."""
