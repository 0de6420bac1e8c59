"""The checkpoints of the tests."""

from pathlib import Path

import voxcpm_grpc

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
"""A random checkpoint of VoxCPM2's layout, fast to load and to run."""
OLDER = (TINY.with_name("tiny-0.5b"), TINY.with_name("tiny-1.5"))
"""Random checkpoints of the layouts of VoxCPM-0.5B and VoxCPM1.5."""
VOICE = Path(voxcpm_grpc.__file__).parent / "demo"
"""The bundled voice, which speaks English. For tests about speech."""
