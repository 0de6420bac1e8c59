"""A record of launches leaves out passes and layers, and meets all kernels that a start then launches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
from contextlib import nullcontext
from support.engines.gpus import GPUS
from support.engines.kernel_launches import QWEN, RELEASED, Start, find_variants
from voxcpm_grpc.kernels.launch.precompile import first_passes_only

MODELS = {
    "VoxCPM2": Start(RELEASED, {"max_slots": 2, "prefill_tokens": 16, "timesteps": (18,)}, layers=6),
    "Qwen3-TTS": Start(QWEN[0], {"max_slots": 1, "prefill_tokens": 16}, layers=6),
}

def found(context):
    with context:
        return {(one.name, one.specialization) for one in find_variants(GPUS["sm_90"], (MODELS[sys.argv[1]],))}

every, recorded = found(nullcontext()), found(first_passes_only())
print(len(every) > 20, every - recorded, recorded - every)
"""


@pytest.mark.parametrize("model", ["VoxCPM2", "Qwen3-TTS"])
def test_the_first_passes_launch_all_kernels(tmp_path, model):
    script = tmp_path / "recorded.py"
    script.write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    done = subprocess.run([sys.executable, script, model], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "True set() set()\n", done.stderr
