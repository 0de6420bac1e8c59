"""Write tests/goldens/qwen3_tts/codec: the results of the official codec of Qwen3-TTS with tiny checkpoints.

    OMP_NUM_THREADS=1 /tmp/qwen-oracle/bin/python tools/make_qwen3_codec_goldens.py

`qwen3_official.py` says how to make this environment. The tool takes a minute. It checks the condition of the tests: no
code of a recording is near a tie between two entries of its codebook, so that rounding does not decide.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tools import qwen3_official  # noqa: E402

qwen3_official.prepare()

import torch  # noqa: E402
from qwen_tts.core import Qwen3TTSTokenizerV2Model  # noqa: E402  # pyright: ignore[reportMissingImports]
from qwen_tts.core.models import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    configuration_qwen3_tts,
    modeling_qwen3_tts,
)
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers.models.mimi.modeling_mimi import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    MimiEuclideanCodebook,
)

from tools.make_qwen3_checkpoint import SEED, write_checkpoint  # noqa: E402
from tools.qwen3_codec_inputs import FRAMES, RATE, SECONDS, codes, recording  # noqa: E402

OUT = ROOT / "tests" / "goldens" / "qwen3_tts" / "codec"
VARIANTS = ("base06", "base17")  # a codec of two layers, and one of eight
SAMPLE_STRIDE = 61  # of the audio: it has no divisor in common with the samples of a frame
MEL_STRIDE = 29  # of the values of a spectrogram
LEAST_MARGIN = 1e-5  # between the distances of the two nearest entries, relative to them


def decoded(model: Qwen3TTSTokenizerV2Model) -> Tensor:
    """The audio of one pass of the decoder. The package's own `decode` differs from it from frame 300 on."""
    return model.decoder(torch.from_numpy(codes().T[None].copy()))[0, 0]


def encoded(model: Qwen3TTSTokenizerV2Model, waveform: Tensor) -> tuple[Tensor, float]:
    """The codes of a recording, and the least margin of a choice."""
    margins = []
    quantize = MimiEuclideanCodebook.quantize

    def record(book: MimiEuclideanCodebook, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.double(), book.embed.double()).topk(2, largest=False).values
        margins.append(((nearest[:, 1] - nearest[:, 0]) / nearest[:, 1]).min().item())
        return quantize(book, x)

    with mock.patch.object(MimiEuclideanCodebook, "quantize", record):
        found = model.encode(waveform[None], torch.ones(1, len(waveform), dtype=torch.int64), return_dict=True)
    # Only the first 16 quantizers are used.
    used = margins[: model.config.encoder_valid_num_quantizers]
    return found.audio_codes[0].to(torch.int16).contiguous(), min(used)


def spectrogram(waveform: Tensor) -> Tensor:
    bands = {"n_fft": 1024, "num_mels": 128, "hop_size": 256, "win_size": 1024, "fmin": 0, "fmax": 12000}
    return modeling_qwen3_tts.mel_spectrogram(waveform[None], sampling_rate=RATE, **bands)


def speaker_encoder(checkpoint: Path) -> nn.Module:
    config = json.loads((checkpoint / "config.json").read_text())["speaker_encoder_config"]
    prefix = "speaker_encoder."
    tensors = load_file(checkpoint / "model.safetensors")
    own = {name.removeprefix(prefix): tensor.float() for name, tensor in tensors.items() if name.startswith(prefix)}
    kind = configuration_qwen3_tts.Qwen3TTSSpeakerEncoderConfig
    encoder = modeling_qwen3_tts.Qwen3TTSSpeakerEncoder(kind(**config)).eval()
    encoder.load_state_dict(own)
    return encoder


@torch.inference_mode()
def write_goldens(variant: str, out: Path) -> dict[str, float]:
    """Write the goldens of a variant, and return the least margins of its recordings."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder)
        write_checkpoint(checkpoint, variant)
        model = Qwen3TTSTokenizerV2Model.from_pretrained(checkpoint / "speech_tokenizer", dtype=torch.float32).eval()
        speaker = speaker_encoder(checkpoint)
    audio = decoded(model)
    tensors, margins = {"audio": audio[::SAMPLE_STRIDE].clone()}, {}
    for seconds in SECONDS:
        waveform = torch.from_numpy(recording(seconds))
        mel = spectrogram(waveform)
        tensors[f"codes_{seconds:g}"], margin = encoded(model, waveform)
        tensors[f"speaker_{seconds:g}"] = speaker(mel.transpose(1, 2))[0].clone()
        margins[f"{seconds:g}"] = margin
        if margin < LEAST_MARGIN:
            raise SystemExit(f"{variant}: a code of {seconds:g} s is near a tie ({margin:.1e}); take another seed")
        if seconds == SECONDS[1]:
            tensors["mel"] = mel[0].flatten()[::MEL_STRIDE].clone()
    save_file(tensors, out / f"{variant}.safetensors", {"format": "pt"})
    print(f"{variant}: audio up to {audio.abs().max():.2f}, margins {margins}")
    return margins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write; default: %(default)s")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    manifest = {
        "versions": qwen3_official.versions(),
        "seed": SEED,
        "frames": FRAMES,
        "sample_stride": SAMPLE_STRIDE,
        "mel_stride": MEL_STRIDE,
        "margins": {variant: write_goldens(variant, out) for variant in VARIANTS},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
