"""Write tests/goldens/lora*: random adapters of the tests' checkpoint, and the official package's results with them.

It needs the environment of `make_goldens.py`:

    OMP_NUM_THREADS=1 /tmp/oracle/bin/python tools/make_lora_goldens.py

Every run rewrites all files.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from golden_cases import HIFI, PROMPT, REFERENCE, ZERO_SHOT, Case
from make_goldens import ROOT, golden, load_model, write, write_manifest
from voxcpm.model import voxcpm2  # pyright: ignore[reportMissingImports]

GOLDENS = ROOT / "tests" / "goldens"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
CONFIG: dict[str, Any] = {
    "enable_lm": True,
    "enable_dit": True,
    "enable_proj": True,
    "r": 4,
    "alpha": 6,
    "dropout": 0.0,
    "target_modules_lm": [*ATTENTION, *MLP],
    "target_modules_dit": [*ATTENTION, "in_proj", "linear_1"],
    "target_proj_modules": ["enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj", "fusion_concat_proj"],
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": CONFIG,  # to be merged: requests cannot choose an adapter of in_proj and linear_1
    "lora_layers": CONFIG | {"target_modules_dit": [*ATTENTION, *MLP], "r": 5},
    "lora_attention": CONFIG
    | {"enable_dit": False, "enable_proj": False, "target_modules_lm": ATTENTION, "r": 12, "alpha": 24},
}


def cases() -> tuple[Case, ...]:
    """Generations in several modes, each ended by its limit of patches."""
    short = {"ended_by": "max_len", "max_len": 9, "max_patches": 9, "min_len": 8}
    return (
        replace(ZERO_SHOT, name="zero_shot", timesteps=4, **short),
        replace(PROMPT, name="prompt", timesteps=10, **short),
        replace(REFERENCE, name="reference", cfg_value=3.0, timesteps=4, **short),
        replace(HIFI, name="hifi", cfg_value=1.0, timesteps=4, **short),
    )


def write_adapter(model: Any, config: dict[str, Any], folder: Path) -> None:
    """Random matrices for all LoRA layers of the official model, in the official files."""
    draws, tensors = torch.Generator().manual_seed(0), {}
    for name, tensor in sorted(model.get_lora_state_dict().items()):
        size = tensor.shape[1] ** -0.5 if name.endswith("lora_A") else 0.1
        tensors[name] = size * torch.randn(tensor.shape, generator=draws)
    write(folder / "lora_weights.safetensors", tensors)
    content = {"base_model": None, "lora_config": config}
    (folder / "lora_config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    checkpoint = ROOT / "tests" / "checkpoints" / "tiny"
    torch.set_num_threads(1)
    for name, config in ADAPTERS.items():
        out = GOLDENS / name
        model = load_model(checkpoint)
        model.lora_config = voxcpm2.LoRAConfig(**config)
        model._apply_lora()
        model.eval()
        with torch.inference_mode():
            write_adapter(model, config, out / "adapter")
            loaded, skipped = model.load_lora_weights(str(out / "adapter"))
            assert loaded and not skipped, f"the official package skips {skipped}"
            entries = [golden(model, case, out / f"{case.name}.safetensors") for case in cases()]
        write_manifest(out, "tools/make_lora_goldens.py", entries, checkpoint)


if __name__ == "__main__":
    main()
