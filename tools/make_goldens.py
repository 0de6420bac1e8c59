"""Write tests/goldens: the results of the official `voxcpm` package with the tests' checkpoint and with the voice.

It needs an environment of its own, because the official package requires libraries that the server does not use:

    python3.11 -m venv /tmp/oracle
    /tmp/oracle/bin/pip install torch==2.13.0
    /tmp/oracle/bin/pip install --no-deps voxcpm==2.0.3
    /tmp/oracle/bin/pip install "numpy<3" "transformers<5" tokenizers huggingface_hub einops pydantic tqdm safetensors \
        soundfile librosa
    OMP_NUM_THREADS=1 /tmp/oracle/bin/python tools/make_goldens.py

Every run rewrites all files. A new checkpoint needs new goldens, and a new bundled voice needs those of `--only voice`.
The tool checks the conditions of the tests: no key is missing, no value before the rounding of the FSQ is near a
boundary, no stop decision is near a tie, and rounding errors are not amplified. A case that fails a check is repeated
with the next noise seed. tests/goldens/README.md lists the keys.
"""

import argparse
import hashlib
import importlib.machinery
import json
import os
import platform
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")

# The official package reads the recordings of its older models with torchaudio. Other libraries look for it, too.
placeholder = types.ModuleType("torchaudio")
placeholder.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
placeholder.__version__ = "0.0.0"  # type: ignore[attr-defined]
sys.modules["torchaudio"] = placeholder
OLDER = ("tiny-0.5b", "tiny-1.5")  # folders of checkpoints and of goldens

import librosa  # noqa: E402  # pyright: ignore[reportMissingImports]
import numpy as np  # noqa: E402
import soundfile  # noqa: E402  # pyright: ignore[reportMissingImports]
import torch  # noqa: E402
from golden_cases import VOICE, Case, cases, older_cases, voice_cases  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from voxcpm.model import voxcpm, voxcpm2  # noqa: E402  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).resolve().parent.parent
RATE = 16000  # of the input of VoxCPM2
STOP_MARGIN = 1e-3
TRAINING_ONLY = "audio_vae.encoder.fc_logvar."  # weights for training; a checkpoint may lack them
NOISE_ERROR, LATENT_ERROR = 1e-6, 2e-5  # a change of the noise by the first changes latents by at most the second
AUDIO_STRIDE, OLDER_STRIDE = 7, 61  # coprime to every rate: the stored samples of a long waveform have all phases

Tensors = dict[str, Tensor]
Official = Any  # VoxCPM2Model or VoxCPMModel, whose modules only exist in the other environment


def read_recording(path: str) -> tuple[Tensor, int]:
    wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return torch.from_numpy(wave.T.copy()), rate


placeholder.load = read_recording  # type: ignore[attr-defined]


@dataclass(slots=True)
class Trace:
    """The record of one generation by the official model."""

    sequence: Tensors = field(default_factory=dict)  # ids, text_mask, audio_mask
    noise: list[Tensor] = field(default_factory=list)
    stop_logits: list[Tensor] = field(default_factory=list)
    fsq_margin: float = 0.5


@contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def traced(model: Official, seed: int, noise_error: float) -> Iterator[Trace]:
    """Record a generation, and supply its noise: patch i takes the i-th draw of a generator of its own."""
    trace, draws, errors = Trace(), torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    inference = model._inference

    def randn(shape: tuple[int, ...], **_: Any) -> Tensor:
        trace.noise.append(torch.randn(shape, generator=draws))
        return trace.noise[-1] + noise_error * torch.randn(shape, generator=errors)

    def record_sequence(ids: Tensor, text_mask: Tensor, feat: Tensor, audio_mask: Tensor, **options: Any) -> Any:
        trace.sequence = {"ids": ids[0].long(), "text_mask": text_mask[0].bool(), "audio_mask": audio_mask[0].bool()}
        return inference(ids, text_mask, feat, audio_mask, **options)

    def record_margin(_: nn.Module, __: Any, out: Tensor) -> None:
        used = out[0][trace.sequence["audio_mask"]] if out.ndim == 3 else out  # the prefill quantises audio only
        if used.numel():
            levels = torch.tanh(used) * model.config.scalar_quantization_scale
            trace.fsq_margin = min(trace.fsq_margin, (levels - levels.floor() - 0.5).abs().min().item())

    def record_stop(_: nn.Module, __: Any, out: Tensor) -> None:
        trace.stop_logits.append(out[0])

    torch_in_cfm = types.SimpleNamespace(**{**vars(torch), "randn": randn})
    with (
        hooked(model.fsq_layer.in_proj, record_margin),
        hooked(model.stop_head, record_stop),
        mock.patch.object(model, "_inference", record_sequence),
        mock.patch.object(sys.modules[type(model.feat_decoder).__module__], "torch", torch_in_cfm),
    ):
        yield trace


def voice(seconds: float, rate: int = RATE, channels: int = 1, seed: int = 0) -> np.ndarray:
    """A synthetic voice: harmonics of a varying pitch with the envelope of syllables, and noise. [samples, channels]"""
    random = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate))[:, None] / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 1.7 * t + np.arange(channels))
    phase = 2 * np.pi * np.cumsum(pitch, axis=0) / rate
    tone = sum(np.sin(k * phase) / k for k in range(1, 20))
    wave = (0.12 * tone + 0.02 * random.standard_normal((len(t), channels))) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    return wave.astype(np.float32)


def load_model(checkpoint: Path, dtype: str = "float32") -> Official:
    """The official model. Checks that its loader, which ignores missing keys, found all of them."""
    results = []
    load = nn.Module.load_state_dict

    def strict(module: nn.Module, state: Tensors, strict: bool = True, assign: bool = False) -> Any:
        results.append(load(module, state, strict=False, assign=assign))
        return results[-1]

    with tempfile.TemporaryDirectory() as folder:
        for file in filter(Path.is_file, checkpoint.iterdir()):
            (Path(folder) / file.name).write_bytes(file.read_bytes())
        config = json.loads((checkpoint / "config.json").read_text())
        (Path(folder) / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
        with mock.patch.object(nn.Module, "load_state_dict", strict):
            newer = config.get("architecture") == "voxcpm2"
            kind = voxcpm2.VoxCPM2Model if newer else voxcpm.VoxCPMModel
            model = kind.from_local(folder, optimize=False, device="cpu")
    missing = [key for result in results for key in (*result.missing_keys, *result.unexpected_keys)]
    missing = [key for key in missing if not key.startswith(TRAINING_ONLY)]
    assert results and not missing, f"the checkpoint and the official model have different keys: {missing}"
    return model


def run(model: Official, case: Case, seed: int, folder: Path, noise_error: float = 0.0) -> tuple[Tensors, Trace]:
    """One generation by the official package, offline."""
    waves = {"prompt": case.prompt, "reference": case.reference}
    out, paths = {}, {}
    for i, (role, seconds) in enumerate(waves.items()):
        if case.preset:
            paths[role] = str(VOICE / "presets" / case.preset)
        elif seconds is not None:
            rate = model.audio_vae.sample_rate
            wave = voice(seconds, rate, seed=i)[:, 0]
            paths[role] = str(folder / f"{role}.wav")
            soundfile.write(paths[role], wave, rate, subtype="FLOAT")
            if case.recordings:
                out[f"{role}_waveform"] = torch.from_numpy(wave)
    cache = None
    if paths:
        given = [case.prompt_text, paths.get("prompt"), paths.get("reference")]
        cache = model.build_prompt_cache(*(given if hasattr(model, "fusion_concat_proj") else given[:2]))
        names = {"audio_feat": "prompt_latents", "ref_audio_feat": "reference_latents"}
        out |= {new: cache[old] for old, new in names.items() if old in cache}
    with traced(model, seed, noise_error) as trace:
        audio, _, latents = model.generate_with_prompt_cache(
            case.text,
            cache,
            min_len=case.min_len,
            max_len=case.max_len,
            inference_timesteps=case.timesteps,
            cfg_value=case.cfg_value,
        )
    latents = latents[-len(trace.noise) :]  # the older models put patches of the prompt before them
    out |= trace.sequence | {"latents": latents, "audio": audio[0]}
    out |= {"noise": torch.cat(trace.noise), "stop_logits": torch.stack(trace.stop_logits)}
    if case.vae_context == "whole prompt":
        history = torch.cat([out["prompt_latents"], latents]).flatten(0, 1).T[None]
        out["audio"] = model.audio_vae.decode(history)[0, 0, -len(out["audio"]) :]
    return out, trace


def cap(model: Official, case: Case) -> int:
    return min(int(len(model.text_tokenizer(case.text)) * 6.0 + 10), case.max_len)


def ending(model: Official, case: Case, out: Tensors) -> str:
    patches, last = len(out["latents"]), out["stop_logits"][-1]
    if patches - 1 > case.min_len and last.argmax() == 1:
        return "stop"
    assert patches == cap(model, case)
    return "max_len" if patches == case.max_len else "cap"


def objections(model: Official, case: Case, out: Tensors, trace: Trace) -> Iterator[str]:
    """Yield the reasons for which a seed cannot be a golden."""
    patches = len(out["latents"])
    if ending(model, case, out) != case.ended_by or not case.min_patches <= patches <= case.max_patches:
        yield f"{patches} patches, ended by {ending(model, case, out)}"
    if case.name == "min_len" and out["stop_logits"][case.min_len].argmax() != 1:
        yield f"the stop predictor does not fire at step {case.min_len}, where min_len must suppress it"
    if trace.fsq_margin < case.fsq_margin:
        yield f"a value before rounding is {trace.fsq_margin:.1e} from a boundary"
    if (margin := out["stop_logits"].diff().abs().min().item()) < STOP_MARGIN:
        yield f"a stop decision is {margin:.1e} from a tie"


def instability(model: Official, case: Case, seed: int, out: Tensors, folder: Path) -> Iterator[str]:
    """Yield a reason if the rounding errors of another correct implementation would change the result."""
    moved, _ = run(model, case, seed, folder, NOISE_ERROR)
    if moved["latents"].shape != out["latents"].shape:
        yield "rounding changes the length"
    elif (error := (moved["latents"] - out["latents"]).abs().max().item()) > LATENT_ERROR:
        yield f"a change of the noise by {NOISE_ERROR:.0e} changes latents by {error:.1e}"


def golden(model: Official, case: Case, path: Path, stride: int = AUDIO_STRIDE) -> dict[str, Any]:
    """Write the first seed of a case that passes all checks, and return its entry in the manifest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(case.seed, case.seed + 200):
            out, trace = run(model, case, seed, folder)
            reasons = list(objections(model, case, out, trace)) or list(instability(model, case, seed, out, folder))
            if not reasons:
                break
            print(f"{case.name}: seed {seed} fails: {'; '.join(reasons)}", file=sys.stderr)
        else:
            raise AssertionError(f"no seed passes the checks of case {case.name}")
    rms = out["audio"].square().mean().sqrt().item()
    assert 0.05 < rms < 0.3, f"{case.name}: audio has RMS {rms}"
    modes = {(False, False): "zero_shot", (True, False): "prompt", (False, True): "reference", (True, True): "hifi"}
    mode = modes[case.prompt is not None or case.preset != "", case.reference is not None or case.preset != ""]
    entry = asdict(case) | {
        "file": f"{path.parent.name}/{path.name}" if path.parent.name == "cases" else path.name,
        "mode": "design" if case.text.startswith("(") else mode,
        "seed": seed,
        "patches": len(out["latents"]),
        "cap": cap(model, case),
        "samples": len(out["audio"]),
        "audio_stride": 1 if case.whole_audio else stride,
        "audio_rms": round(rms, 4),
        "fsq_margin": trace.fsq_margin,
        "stop_margin": out["stop_logits"].diff().abs().min().item(),
    }
    out["audio"] = out["audio"][:: entry["audio_stride"]]
    write(path, out)
    for internal in ("whole_audio", "recordings", "min_patches", "max_patches", "preset"):
        del entry[internal]
    return entry


def write(path: Path, tensors: Tensors) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, tensor in tensors.items():
        assert not tensor.is_floating_point() or tensor.isfinite().all(), f"{path.name}: {name} is not finite"
    widened = {k: t.detach().float() if t.dtype == torch.bfloat16 else t.detach() for k, t in tensors.items()}
    save_file({name: tensor.contiguous().clone() for name, tensor in widened.items()}, path)
    path.chmod(0o644)


def resample(path: Path) -> None:
    wave = voice(0.5, 44100, channels=2, seed=7)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stereo.wav"
        soundfile.write(file, wave, 44100, subtype="FLOAT")
        loaded, _ = librosa.load(file, sr=RATE, mono=True)
    write(path, {"input": torch.from_numpy(wave.T.copy()), "output": torch.from_numpy(loaded)})


TEXTS = (
    "Hello from VoxCPM, spoken over gRPC.", "hello world", "(a warm old voice)Hello.", "ALL CAPS and ing tion",
    "你好世界", "你好", "hello 你好 hello", "今天天气很好。", "你", "你 好", "我们", "好，好，", "龘龘",
    "我们在中国学习语音合成，谢谢！", "Hello, 世界! 今天 is 2025-01-01.", "ＡＢＣ１２３，（全角）",
    "\U0001f642", "a\U0001f44d\U0001f3fdb \U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1f3", "\u4f60\ufe00好",
    "naïve café \u2013 \u201cquotes\u201d \u2026 €", "mc² ≈ 3.14 × 10⁻²", "㐀㐁 \U00020000\U00020001 \uf900",
    "日本語のテスト", "한국어", "  two  spaces   three ", "line\nbreak\r\nand\ttab", " ", "", "▁", "a▁b ▁▁你好", "▁ ▁",
    "\u200bzero\u00a0width\u3000space", "\x00\x7f", "e\u0301", "say <|audio_start|> aloud", "<s>",
)  # fmt: skip


def tokenizer(model: Official, path: Path) -> None:
    wrapper = model.text_tokenizer
    rows = [{"text": text, "tokens": wrapper.tokenize(text), "ids": wrapper(text)} for text in TEXTS]
    assert max(i for row in rows for i in row["ids"]) < model.config.lm_config.vocab_size
    path.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n", encoding="utf-8")


def write_manifest(folder: Path, command: str, entries: list[dict[str, Any]], checkpoint: Path) -> None:
    packages = ("voxcpm", "torch", "transformers", "tokenizers", "librosa", "soxr", "numpy")
    weights = sorted(checkpoint.glob("*.safetensors"))
    manifest = {
        "command": f"OMP_NUM_THREADS=1 python {command}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "weights": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in weights},
        "cases": entries,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def older(folder: Path, checkpoint: Path, modules: Callable[..., Tensors]) -> None:
    """Write the goldens of an older model."""
    model, bf16, mixed = load_model(checkpoint), *(load_model(checkpoint, "bfloat16") for _ in range(2))
    write(folder / "modules.safetensors", modules(model, bf16, mixed.float()))
    patch = model.patch_size * model.chunk_size / model.audio_vae.sample_rate
    entries = [golden(model, c, folder / "cases" / f"{c.name}.safetensors", OLDER_STRIDE) for c in older_cases(patch)]
    write_manifest(folder, "tools/make_goldens.py --only older", entries, checkpoint)


def main() -> None:
    # In this folder; they need the official package too.
    from golden_modules import modules
    from golden_variants import CODECS, SMALL, tokenizers, variants

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "tests" / "checkpoints" / "tiny")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "goldens")
    parser.add_argument("--only", choices=("modules", "cases", "voice", "variants", "older"), help="write one part")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        if args.only in ("voice", None):
            folder = args.out / "voice"
            voice = load_model(VOICE)
            entries = [golden(voice, case, folder / f"{case.name}.safetensors") for case in voice_cases()]
            write_manifest(folder, "tools/make_goldens.py --only voice", entries, VOICE)
        if args.only == "voice":
            return
        if args.only in ("older", None):
            for name in OLDER:
                older(args.out / name, args.checkpoint.parent / name, modules)
        if args.only == "older":
            return
        if args.only in ("variants", None):
            write(args.out / "variants.safetensors", variants(load_model, args.checkpoint))
            found: dict[str, Any] = {"codecs": {name: SMALL | change for name, change in CODECS.items()}}
            found["tokenizers"] = tokenizers(args.checkpoint)
            text = json.dumps(found, indent=1, ensure_ascii=False)
            (args.out / "variants.json").write_text(text + "\n", encoding="utf-8")
        if args.only == "variants":
            return
        model = load_model(args.checkpoint)
        if args.only != "cases":
            bf16, mixed = (load_model(args.checkpoint, "bfloat16") for _ in range(2))
            write(args.out / "modules.safetensors", modules(model, bf16, mixed.float()))
            tokenizer(model, args.out / "tokenizer.json")
            resample(args.out / "resample.safetensors")
        if args.only == "modules":
            return
        entries = [golden(model, case, args.out / "cases" / f"{case.name}.safetensors") for case in cases()]
    stops = sum(entry["ended_by"] == "stop" for entry in entries)
    assert stops >= 5, f"only {stops} cases end by stop"
    write_manifest(args.out, "tools/make_goldens.py", entries, args.checkpoint)


if __name__ == "__main__":
    main()
