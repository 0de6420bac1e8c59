"""Copy a checkpoint with weights rounded to 8-bit floats, to judge what such weights would do to its speech.

    python -m tools.voice.round_weights voxcpm_grpc/demo build/voice/rounded --parts lm
    python -m tools.voice.evaluate HELD_OUT RECORDINGS --model build/voice/rounded --out build/voice/rounded-result

The linear maps of the layers are rounded to float8_e4m3fn with a scale for each output, and stored in their old type:
`lm` those of both language models, as the setting engine.quantization does, `flow` those of the diffusion and the patch
encoder, `all` both. Other weights, and all activations, stay as they are.
"""

import argparse
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from voxcpm_grpc.layers.linear import Linear

LAYERS = r"layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight"
PARTS = {
    "lm": re.compile(rf"(base_lm|residual_lm)\.{LAYERS}"),
    "flow": re.compile(rf"(feat_encoder\.encoder|feat_decoder\.estimator\.decoder)\.{LAYERS}"),
    "all": re.compile(rf".*\.{LAYERS}"),
}


def rounded(weight: Tensor) -> Tensor:
    """The weight [o, i] with the precision of float8_e4m3fn and a scale for each output, in its own type."""
    return Linear(weight).quantized().dequantized(weight.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the checkpoint's directory, with model.safetensors")
    parser.add_argument("out", type=Path, help="the directory to write")
    parser.add_argument("--parts", choices=PARTS, default="all", help="the weights to round")
    options = parser.parse_args()
    weights = load_file(options.model / "model.safetensors")
    names = [name for name in weights if PARTS[options.parts].fullmatch(name)]
    if not names:
        raise SystemExit(f"{options.model} has no weights of the part {options.parts}")
    shutil.copytree(options.model, options.out)
    save_file(weights | {name: rounded(weights[name]) for name in names}, options.out / "model.safetensors")
    print(f"{len(names)} of {len(weights)} weights rounded")


if __name__ == "__main__":
    main()
