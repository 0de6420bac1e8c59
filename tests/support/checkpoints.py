"""What the tests serve: the tiny checkpoint, unless they are about speech."""

from pathlib import Path

import voxcpm_grpc

TINY = Path(__file__).parents[1] / "checkpoints" / "tiny"
"""A random one of the released layout, quick to load and to run."""
VOICE = Path(voxcpm_grpc.__file__).parent / "demo"
"""The bundled one, which speaks English."""
