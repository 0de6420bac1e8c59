"""Results of the official package for checkpoints that no release has, but that it reads: for make_goldens.py."""

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from golden_modules import POSITIONS, euler, locdit, locenc
from torch import Tensor
from transformers import LlamaTokenizerFast  # pyright: ignore[reportMissingImports]
from voxcpm.model.utils import mask_multichar_chinese_tokens  # pyright: ignore[reportMissingImports]
from voxcpm.modules.audiovae import AudioVAEConfigV2, AudioVAEV2  # pyright: ignore[reportMissingImports]

Tensors = dict[str, Tensor]
Load = Callable[[Path], Any]

SMALL = {
    "encoder_dim": 2,
    "encoder_rates": [2, 3],
    "latent_dim": 8,
    "decoder_dim": 8,
    "decoder_rates": [3, 2],
    "sr_bin_boundaries": [20000, 30000, 40000],
}
CODECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dense": {"depthwise": False},
    "unconditioned": {"sr_bin_boundaries": None},
    "add": {"cond_type": "add"},
    "concat": {"cond_type": "concat", "cond_dim": 5, "cond_out_layer": True},
    "out_layer": {"cond_out_layer": True},
    "boundaries": {},
}
"""The configurations of small codecs. The file of `boundaries` has other ones than its configuration."""
FILE_BOUNDARIES = [10000, 20000, 60000]

NAMES = ["<|audio_start|>", "<|audio_end|>", "<|audio_prompt_start|>", "<|audio_prompt_end|>"]
BASE = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def added(tokens: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json with these tokens alone."""
    return {"added_tokens": [{"id": int(id), **FLAGS, **token} for id, token in tokens.items()]}


FLAGS = {"single_word": False, "lstrip": False, "rstrip": False}
LISTED = {str(101 + i): {"content": name, "special": True, "normalized": False} for i, name in enumerate(NAMES)}
STRIPPING = [{"content": name, "lstrip": True, "rstrip": True, "normalized": False} for name in NAMES]
NORMALIZED = {id: token | {"normalized": True} for id, token in LISTED.items()}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "none": {"tokenizer_config.json": BASE},
    "no_files": {},
    "listed": {"tokenizer_config.json": BASE | {"added_tokens_decoder": LISTED}},
    "plain_list": {
        "tokenizer_config.json": BASE
        | {"added_tokens_decoder": {id: token | {"special": False} for id, token in LISTED.items()}}
    },
    "additional": {"tokenizer_config.json": BASE | {"additional_special_tokens": NAMES}},
    "map": {"tokenizer_config.json": BASE, "special_tokens_map.json": {"additional_special_tokens": STRIPPING}},
    "map_is_ignored": {
        "tokenizer_config.json": BASE | {"added_tokens_decoder": {}},
        "special_tokens_map.json": {"additional_special_tokens": STRIPPING},
    },
    "legacy": {
        "tokenizer_config.json": BASE,
        "added_tokens.json": {name: 101 + i for i, name in enumerate(NAMES)} | {"<new>": 300},
    },
    "split": {"tokenizer_config.json": BASE | {"added_tokens_decoder": LISTED, "split_special_tokens": True}},
    "other_unknown": {"tokenizer_config.json": BASE | {"unk_token": "</s>", "pad_token": "<pad>"}},
    "normalized": {"tokenizer_config.json": BASE | {"added_tokens_decoder": NORMALIZED}},
    "normalized_later": {
        "tokenizer.json": added(LISTED),
        "tokenizer_config.json": BASE | {"added_tokens_decoder": NORMALIZED},
    },
    "normalized_at_first": {
        "tokenizer.json": added(NORMALIZED),
        "tokenizer_config.json": BASE | {"added_tokens_decoder": LISTED},
    },
    "normalized_alone": {"tokenizer.json": added(NORMALIZED), "tokenizer_config.json": BASE},
    "normalized_roles": {
        "tokenizer_config.json": BASE,
        "special_tokens_map.json": {
            role: {"content": name, "normalized": True, "lstrip": role == "eos_token"}
            for role, name in (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
        },
    },
    "roles_in_order": {
        "tokenizer_config.json": BASE | {"pad_token": "<pad>", "mask_token": "<new>"},
        "special_tokens_map.json": {"additional_special_tokens": ["<pad>"]},
    },
    "flags_of_tokenizer": {
        "tokenizer.json": added({id: token | {"lstrip": True} for id, token in LISTED.items()}),
        "tokenizer_config.json": BASE,
        "added_tokens.json": {"<|audio_end|>": 102, "<s>": 1},
    },
}
"""The files beside a tokenizer.json that registers no audio token, or keys that it has instead."""
TEXTS = (
    "say <|audio_start|> aloud", "a<|audio_end|>b", "<s>x</s> <unk>", "你好 <|audio_prompt_start|>你好", "<new> <pad>",
    "\U0001f642",
)  # fmt: skip


@contextmanager
def edited(checkpoint: Path, change: Callable[[dict[str, Any]], object]):
    """A copy of a checkpoint with a changed config.json."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoint"
        shutil.copytree(checkpoint, folder)
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        yield folder


def variants(load: Load, checkpoint: Path) -> Tensors:
    """The tensors by their keys, for the tiny checkpoint with other configurations, and for the codecs."""
    draws = torch.Generator().manual_seed(2026)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws)

    config = json.loads((checkpoint / "config.json").read_text())
    latent, patch, d = config["feat_dim"], config["patch_size"], config["dit_config"]["hidden_dim"]
    patches, x, cond = normal(3, patch, latent), normal(1, latent, patch), normal(1, latent, patch)
    mu, t = normal(1, 2 * d), torch.tensor([0.9565])
    out: Tensors = {}
    with edited(checkpoint, lambda c: c["lm_config"].update(no_rope=True)) as folder:
        model = load(folder)
        assert model.feat_encoder.encoder.rope_emb is None
        results = locenc(model, patches) | locdit(model, x, mu, t, cond)
        out |= {f"no_rope.{key}": value for key, value in results.items()}
    with edited(checkpoint, lambda c: c["dit_config"].update(dit_mean_mode=True)) as folder:
        model = load(folder)
        assert model.feat_decoder.mean_mode
        out |= {f"mean_mode.{key}": value for key, value in euler(model, x, mu, cond).items()}
    scaling = {"type": "yarn", "original_max_position_embeddings": 4096}
    with edited(checkpoint, lambda c: c["lm_config"]["rope_scaling"].update(scaling)) as folder:
        rope = load(folder).base_lm.rope_emb
        positions = torch.tensor(POSITIONS)
        out |= {"beyond.positions": positions, "beyond.cos": rope.cos_cached[positions]}
        out |= {"beyond.sin": rope.sin_cached[positions]}
    for name, change in CODECS.items():
        out |= {f"codec.{name}.{key}": value for key, value in codec(name, SMALL | change, draws).items()}
    return out


def codec(name: str, config: dict[str, Any], draws: torch.Generator) -> Tensors:
    """The weights of a random codec, and its results for an input."""
    vae = AudioVAEV2(AudioVAEConfigV2(**config))
    weights = {
        key: 0.6 * torch.randn(value.shape, generator=draws) if value.is_floating_point() else value
        for key, value in vae.state_dict().items()
    }
    weights = {key: value.abs() + 0.5 if key.endswith("alpha") else value for key, value in weights.items()}
    if name == "boundaries":
        weights["decoder.sr_bin_boundaries"] = torch.tensor(FILE_BOUNDARIES, dtype=torch.int32)
    vae.load_state_dict(weights)
    wave, latents = 0.1 * torch.randn(60, generator=draws), torch.randn(8, 9, generator=draws)
    return {
        **{f"weights.{key}": value for key, value in weights.items()},
        "wave": wave,
        "latents": latents,
        "encoded": vae.encode(wave[None], vae.sample_rate)[0],
        "decoded": vae.decode(latents[None])[0, 0],
    }


def tokenizers(checkpoint: Path) -> list[dict[str, Any]]:
    """The ids of TEXTS for each entry of TOKENIZERS."""
    bare = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    bare["added_tokens"] = [token for token in bare["added_tokens"] if token["content"] not in NAMES]
    found = []
    for name, files in TOKENIZERS.items():
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = bare | files.get("tokenizer.json", {})
            for file, content in {**files, "tokenizer.json": tokenizer}.items():
                (Path(folder) / file).write_text(json.dumps(content), "utf-8")
            tokenize = mask_multichar_chinese_tokens(LlamaTokenizerFast.from_pretrained(folder))
            rows = [{"text": text, "ids": tokenize(text)} for text in TEXTS]
        found.append({"name": name, "files": files, "rows": rows})
    return found
