"""Write random LoRA adapters for a checkpoint, in the official format, for load tests.

    python tools/make_lora.py MODEL OUT --count 8 --rank 64 --targets lm

OUT/0, OUT/1 and so on are one adapter each. `lm` adapts q, k, v and o of both language models, `all` those of the
diffusion and the projections, too. The updates are small, so that speech stays in its usual range.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if this file is run as a program

from tools.checkpoint_layout import model_shapes

ATTENTION = r"\.layers\.\d+\.self_attn\.[qkvo]_proj"
TARGETS = {
    "lm": re.compile(rf"(base_lm|residual_lm){ATTENTION}"),
    "all": re.compile(
        rf"(base_lm|residual_lm|feat_decoder\.estimator\.decoder){ATTENTION}"
        "|enc_to_lm_proj|lm_to_dit_proj|res_to_dit_proj|fusion_concat_proj"
    ),
}


def write_adapter(config: dict, out: Path, rank: int, targets: str, seed: int) -> None:
    """Write one adapter for the model with this config.json."""
    draws, tensors = torch.Generator().manual_seed(seed), {}
    for name, shape in model_shapes(config):
        module = name.removesuffix(".weight")
        if module == name or not TARGETS[targets].fullmatch(module):
            continue
        outputs, inputs = shape
        tensors[f"{module}.lora_A"] = (torch.randn(rank, inputs, generator=draws) * inputs**-0.5).bfloat16()
        tensors[f"{module}.lora_B"] = (torch.randn(outputs, rank, generator=draws) * 0.01).bfloat16()
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "lora_weights.safetensors")
    whole = targets == "all"
    lora = {"enable_lm": True, "enable_dit": whole, "enable_proj": whole, "r": rank, "alpha": rank}
    (out / "lora_config.json").write_text(json.dumps({"base_model": None, "lora_config": lora}), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the checkpoint's directory")
    parser.add_argument("out", type=Path, help="the directory to write to")
    parser.add_argument("--count", type=int, default=1, help="number of adapters")
    parser.add_argument("--rank", type=int, default=64, help="their rank")
    parser.add_argument("--targets", choices=TARGETS, default="lm", help="the maps that they change")
    options = parser.parse_args()
    config = json.loads((options.model / "config.json").read_text("utf-8"))
    for index in range(options.count):
        write_adapter(config, options.out / str(index), options.rank, options.targets, index)


if __name__ == "__main__":
    main()
