"""Write a trained codec and model as a checkpoint of the official layout, in half precision.

    python -m tools.voice.export CODEC MODEL OUT

CODEC or MODEL may be a checkpoint, which then gets another model or another codec with the same latents. The checkpoint
computes in float32, as its config.json says; half precision only makes the files smaller.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.voice import tokens
from tools.voice.model import trained_weights
from tools.voice.start import codec_of

LIMIT = 60_000_000  # bytes of all files
TEMPERATURE = 0.7  # the default of requests: less noise than the official 1 sounds better, see README.md
TEXTS = {"card.md": "README.md", "NOTICE": "NOTICE"}  # files of this folder that go with a checkpoint


def export(codec: Path, model: Path, out: Path) -> int:
    """Write the checkpoint, and return its size in bytes. Raises ValueError if a weight exceeds half precision."""
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    config["audio_vae_config"], _ = codec_of(codec)
    tensors = {name: tensor.to(torch.float16) for name, tensor in trained_weights(model).items()}
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} is not finite in half precision; train again at a lower --rate")
    save_file(tensors, out / "model.safetensors")
    shutil.copyfile(codec / "audiovae.safetensors", out / "audiovae.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "languages.json").write_text('["en"]\n')
    (out / "generation_config.json").write_text(json.dumps({"temperature": TEMPERATURE}) + "\n")
    tokens.write(out)
    for name, written in TEXTS.items():
        shutil.copyfile(Path(__file__).with_name(name), out / written)
    return sum(path.stat().st_size for path in out.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("codec", type=Path, help="folder written by tools.voice.train_vae, or a checkpoint")
    parser.add_argument("model", type=Path, help="folder written by tools.voice.train_model, or a checkpoint")
    parser.add_argument("out", type=Path, help="folder to write")
    args = parser.parse_args()
    size = export(args.codec, args.model, args.out)
    print(f"{args.out}: {size:,} bytes", flush=True)
    if size > LIMIT:
        raise SystemExit(f"{size:,} bytes are more than the {LIMIT:,} that fit into the package; choose smaller shapes")


if __name__ == "__main__":
    main()
