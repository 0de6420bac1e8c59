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

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
DEFAULTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = "additional_special_tokens"
FROM_SENTENCEPIECE = ("add_prefix_space", "from_slow")  # transformers ignores tokenizer.json with either of them
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
        tokens, roles = _listed(config, directory)
        added = _to_add(bpe, tokens, roles)
    except (TypeError, ValueError, AttributeError) as error:
        raise StartupError(
            f"the special tokens in {CONFIG}, {SPECIAL_MAP} or {ADDED} of {directory} cannot be read ({error}); "
            "download the checkpoint again"
        ) from error
    present = {token.content: token for token in bpe.get_added_tokens_decoder().values()}
    room = vocab_size - 1 - max(bpe.get_vocab().values(), default=-1)
    for token in added:
        is_new = bpe.token_to_id(token.content) is None
        if is_new and room <= 0:
            continue
        room -= is_new
        if (old := present.get(token.content)) is not None:
            token = _again(token, old)
        present[token.content] = token
        bpe.add_tokens([token])
    bpe.encode_special_tokens = bool(config.get("split_special_tokens", False))
    return str(roles["unk_token"] or DEFAULTS["unk_token"])


def _listed(config: dict[str, Any], directory: Path) -> tuple[dict[int, AddedToken], dict[str, Any]]:
    """The listed tokens by their ids, and the tokens of each role, those that are listed with their flags.

    Without a list in `config`, the older files count, and so does the list in tokenizer.json.
    """
    roles: dict[str, Any] = {role: config[role] for role in (*ROLES, EXTRA) if role in config}
    listed: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in config:
        listed = {int(id): _token(value) for id, value in config["added_tokens_decoder"].items()}
        flagged = list(listed.values())
    else:
        for role, value in _read(directory / SPECIAL_MAP).items():
            if role == EXTRA:
                extra = roles.get(EXTRA) or []
                roles[EXTRA] = [*extra, *(new for one in value if (new := _special(one)) not in extra)]
            elif role in ROLES:
                roles[role] = _special(value)
        names = set(map(str, _all(roles)))  # the objects of `config` are left out, as in the released code
        for name, id in _read(directory / ADDED).items():
            listed[id] = AddedToken(name, normalized=name not in names, special=name in names)
        flagged = [_token(value) for value in _read(directory / TOKENIZER).get("added_tokens", ())]
        ids = (value["id"] for value in _read(directory / TOKENIZER).get("added_tokens", ()))
        listed |= dict(zip(ids, flagged, strict=True))
    flags = {token.content: token for token in flagged}
    typed = {role: _typed(value) for role, value in roles.items()}
    return listed, DEFAULTS | {role: flags.get(str(value), value) for role, value in typed.items()}


def _to_add(bpe: Tokenizer, listed: dict[int, AddedToken], roles: dict[str, Any]) -> list[AddedToken]:
    """The listed tokens and those of roles, in the order of the released code, which also registers some again."""
    added: list[Any] = [token for _, token in sorted(listed.items(), key=lambda one: one[0])]
    names = {token.content for token in (*bpe.get_added_tokens_decoder().values(), *added)}
    special: dict[str, Any] = {}
    for one in _all(roles):
        special.setdefault(str(one), one)
    added += [one for one in special.values() if (one not in names if isinstance(one, str) else one not in added)]
    return [_flagged(one, is_special=str(one) in special) for one in added]


def _flagged(value: str | AddedToken, *, is_special: bool) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=is_special)
    value.special = value.special or is_special
    return value


def _again(token: AddedToken, old: AddedToken) -> AddedToken:
    """A token as it is found after `old` of the same content was registered.

    The goldens come from the library tokenizers 0.22, for which `normalized` of a special token is that of its first
    registration, and other tokens are found in the text as it is if one of their registrations says so. Since 0.23 the
    last registration counts.
    """
    flags = {flag: getattr(token, flag) for flag in FLAGS}
    flags["normalized"] = old.normalized and (old.special or token.normalized)
    flags["special"] = old.special or token.special
    return AddedToken(token.content, **flags)


def _all(roles: dict[str, Any]) -> list[Any]:
    """The tokens of all roles, strings or AddedToken."""
    return [value for role in ROLES if (value := roles.get(role)) is not None] + list(roles.get(EXTRA) or [])


def _typed(value: Any) -> Any:
    """A value of tokenizer_config.json, in which tokens are strings or objects."""
    if isinstance(value, list):
        return [_typed(one) for one in value]
    return _token(value) if isinstance(value, dict) else value


def _special(value: Any) -> Any:
    """A value of special_tokens_map.json."""
    return _token({**value, "special": True}) if isinstance(value, dict) else value


def _token(value: dict[str, Any]) -> AddedToken:
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
