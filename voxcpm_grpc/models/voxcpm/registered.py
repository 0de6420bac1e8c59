"""The tokens of a tokenizer that stand beside its vocabulary, in files of their own.

The released code loads the tokenizer with the package transformers, which registers the tokens of tokenizer.json and
those of tokenizer_config.json, special_tokens_map.json and added_tokens.json. A registered token is found in a text as
a whole before all other tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from voxcpm_grpc.errors import StartupError

CONFIG, SPECIAL_MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
DEFAULTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = "additional_special_tokens"
FROM_SENTENCEPIECE = ("add_prefix_space", "from_slow")  # with either, transformers ignores tokenizer.json
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def register_tokens(bpe: Tokenizer, directory: Path, vocab_size: int) -> str:
    """Register the tokens of the files beside tokenizer.json. Returns the unknown token. Raises StartupError.

    A token for which the `vocab_size` tokens of the model have no room is left out: the released code fails at a text
    with such a token, and this server spells it.
    """
    config = _read(directory / CONFIG)
    for name in FROM_SENTENCEPIECE:
        if config.get(name) not in (None, *([False] if name == "from_slow" else [])):
            raise StartupError(
                f"{directory / CONFIG} sets {name}: the released code then makes a tokenizer of tokenizer.model, which "
                "this server does not read. Save the tokenizer as tokenizer.json, and remove the key"
            )
    try:
        roles = DEFAULTS | {role: config[role] for role in (*ROLES, EXTRA) if role in config}
        listed = [_token(value) for _, value in sorted(_by_id(config, directory, roles).items())]
        known = {repr(token) for token in bpe.get_added_tokens_decoder().values()}
        special = [_token(value) for value in _special(roles)]
    except (TypeError, ValueError, AttributeError) as error:
        raise StartupError(
            f"the special tokens in {CONFIG}, {SPECIAL_MAP} or {ADDED} of {directory} cannot be read ({error}); "
            "download the checkpoint again"
        ) from error
    names = {token.content for token in special}
    tokens = [token for token in listed if repr(token) not in known]
    present = {token.content for token in (*bpe.get_added_tokens_decoder().values(), *tokens)}
    for token in special:
        if token.content not in present:
            present.add(token.content)
            tokens.append(token)
    for token in tokens:
        token.special = token.special or token.content in names
        if bpe.token_to_id(token.content) is not None or bpe.get_vocab_size() < vocab_size:
            bpe.add_tokens([token])
    bpe.encode_special_tokens = bool(config.get("split_special_tokens", False))
    unknown = roles.get("unk_token")
    return _token(unknown).content if unknown is not None else DEFAULTS["unk_token"]


def _by_id(config: dict[str, Any], directory: Path, roles: dict[str, Any]) -> dict[int, Any]:
    """The listed tokens by their ids. Without a list in `config`, the older files count, and add to `roles`."""
    if "added_tokens_decoder" in config:
        return {int(id): value for id, value in config["added_tokens_decoder"].items()}
    for role, value in _read(directory / SPECIAL_MAP).items():
        if role == EXTRA:
            value = [*(roles.get(EXTRA) or []), *value]
        elif role not in ROLES:
            continue
        roles[role] = {**value, "special": True} if isinstance(value, dict) else value
    names = {_token(value).content for value in _special(roles)}
    return {
        int(id): {"content": name, "normalized": name not in names, "special": name in names}
        for name, id in _read(directory / ADDED).items()
    }


def _special(roles: dict[str, Any]) -> list[Any]:
    return [value for role in ROLES if (value := roles.get(role)) is not None] + list(roles.get(EXTRA) or [])


def _token(value: Any) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, normalized=False, special=True)
    return AddedToken(value["content"], **{flag: bool(value[flag]) for flag in FLAGS if flag in value})


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read ({error}); download the checkpoint again") from error
    if not isinstance(content, dict):
        raise StartupError(f"{path} holds no JSON object; download the checkpoint again")
    return content
