"""Reads config.json into a `VoxCPMConfig`, and reports all of its faults in one error."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.voxcpm.config.config import DTYPES, VAE2Config, VAEConfig, VoxCPM2Config, VoxCPMConfig

SIZES = (
    "hidden",
    "intermediate",
    "ffn",
    "num_",
    "kv_",
    "patch_size",
    "feat_dim",
    "residual_lm_num",
    "max_",
    "vocab_size",
)
COUNTED = (
    *SIZES,
    "scalar_quantization",
    "encoder_",
    "decoder_",
    "latent_dim",
    "sample_rate",
    "out_sample_rate",
    "cond_dim",
)
STACKS = {  # each stack has these fields: its hidden size and its number of heads
    "lm_config": ("hidden_size", "num_attention_heads"),
    "encoder_config": ("hidden_dim", "num_heads"),
    "dit_config": ("hidden_dim", "num_heads"),
}
VAE = "audio_vae_config"
SCALING = "lm_config.rope_scaling"
NOISE = "such a decoder adds noise of its own, which no seed could repeat, and no release uses it"

GENERATIONS = {"voxcpm": (VoxCPMConfig, VAEConfig), "voxcpm2": (VoxCPM2Config, VAE2Config)}

Values = dict[str, Any]  # the sound values have their dotted paths, and absent keys their defaults


def parse_config(data: Any) -> VoxCPMConfig:
    """The configuration in a parsed config.json, whose `architecture` is in lower case.

    Raises one StartupError that lists all faults.
    """
    faults: list[str] = []
    values: Values = {}
    kind, codec = GENERATIONS[data["architecture"]]
    config = _read(kind, data, "", values, faults)
    if VAE in values and values[VAE] is None:  # absent or null stands for the defaults
        _read(codec, {}, VAE, values, faults)
    faults += _too_small(values)
    faults += _violations(values, one_rate=codec is VAEConfig)
    if faults or config is None:
        raise StartupError(f"config.json cannot be used: {'; '.join(faults)}. Take it from the released checkpoint")
    return config


def _read(kind: Any, value: Any, path: str, values: Values, faults: list[str]) -> Any:
    """`value` as `kind`: a dataclass, tuple[x, ...], x | None, int, float, bool or str.

    A sound value is noted under its path, a faulty one among the faults.
    """
    if isinstance(kind, types.UnionType):
        if value is None:
            values[path] = None
            return None
        return _read(typing.get_args(kind)[0], value, path, values, faults)
    if dataclasses.is_dataclass(kind):
        return _read_fields(typing.cast(type, kind), value, path, values, faults)
    before = len(faults)
    if typing.get_origin(kind) is tuple and isinstance(value, list):
        item = typing.get_args(kind)[0]
        read = tuple(_read(item, x, f"{path}[{i}]", {}, faults) for i, x in enumerate(value))
        if len(faults) == before:
            values[path] = read
        return read
    if kind is float and type(value) is int:
        value = float(value)
    elif kind is int and type(value) is float and value.is_integer():
        value = int(value)  # other tools write 2.0, and the released code reads it
    if type(value) is kind and not (kind is float and not math.isfinite(value)):
        values[path] = value
        return value
    shown = repr(value) if len(repr(value)) <= 40 else type(value).__name__
    faults.append(f"{path} is {shown}, expected {getattr(kind, '__name__', kind)}")
    return None


def _read_fields(kind: Any, value: Any, path: str, values: Values, faults: list[str]) -> Any:
    if not isinstance(value, dict):
        faults.append(f"{path or 'config.json'} is not an object")
        return None
    hints, known, before = typing.get_type_hints(kind), {}, len(faults)
    for field in dataclasses.fields(kind):
        name = f"{path}.{field.name}" if path else field.name
        if field.name in value:
            known[field.name] = _read(hints[field.name], value[field.name], name, values, faults)
        elif field.default is dataclasses.MISSING:
            faults.append(f"{name} is missing")
        else:
            values[name] = field.default
    return kind(**known) if len(faults) == before else None


def _too_small(values: Values) -> Iterator[str]:
    """The faults of counts below 1. Such a count is removed from the values, so that no rule computes with it."""
    for path, value in list(values.items()):
        name = path.rpartition(".")[2]
        counts = value if isinstance(value, tuple) else (value,)
        if not name.startswith(COUNTED) or not all(type(n) is int for n in counts):
            continue
        if not counts:
            yield f"{path} is empty, it must have an entry"
            del values[path]
        elif min(counts) < 1:
            shown = list(value) if isinstance(value, tuple) else value
            yield f"{path} is {shown}, it must be 1 or more"
            del values[path]


def _violations(values: Values, *, one_rate: bool) -> Iterator[str]:
    """Values that do not fit together, and options that this code does not support.

    A rule is a function of the values at some paths, and gives a fault or None. A rule whose values are faulty
    themselves is left out.
    """
    for paths, rule in _rules(values.get(SCALING, ...) is not None, one_rate):
        if all(path in values for path in paths) and (fault := rule(*(values[path] for path in paths))):
            yield fault


Rule = tuple[tuple[str, ...], Callable[..., str | None]]


def _rules(scaled: bool, one_rate: bool) -> Iterator[Rule]:
    """`one_rate`: the codec's output has the rate of its input."""
    yield (
        ("dtype",),
        lambda dtype: None if dtype in DTYPES else f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}",
    )
    for name, (hidden, heads) in STACKS.items():
        sizes = (f"{name}.{hidden}", f"{name}.{heads}", f"{name}.kv_channels")
        yield (f"{name}.{heads}", "lm_config.num_key_value_heads"), _heads_fault(name)
        yield sizes, _head_size_fault(name)
        for factor in ("short_factor", "long_factor") if scaled else ():
            yield (*sizes, f"{SCALING}.{factor}"), _factors_fault(name, factor)
    if scaled:
        yield (
            (f"{SCALING}.original_max_position_embeddings",),
            lambda n: None if n >= 2 else f"{SCALING}.original_max_position_embeddings is {n}, it must be 2 or more",
        )
        for factor in ("short_factor", "long_factor"):
            yield (f"{SCALING}.{factor}",), _sign_fault(factor)
    yield ("max_length", "lm_config.max_position_embeddings"), _length_fault
    yield (
        ("dit_config.hidden_dim",),
        lambda n: "dit_config.hidden_dim must be even and 4 or more" if n % 2 or n < 4 else None,
    )
    yield (
        ("feat_dim", f"{VAE}.latent_dim"),
        lambda d, n: None if d == n else f"feat_dim is {d} and {VAE}.latent_dim is {n}, they must agree",
    )
    yield (f"{VAE}.decoder_dim", f"{VAE}.decoder_rates"), _halves_fault
    if one_rate:
        yield (f"{VAE}.encoder_rates", f"{VAE}.decoder_rates"), _hops_fault
    yield (
        (f"{VAE}.use_noise_block",),
        lambda used: f"{VAE}.use_noise_block is true: {NOISE}" if used else None,
    )
    yield (f"{VAE}.sr_bin_boundaries", f"{VAE}.cond_type", f"{VAE}.cond_out_layer"), _condition_fault


def _heads_fault(name: str) -> Callable[[int, int], str | None]:
    def rule(heads: int, kv_heads: int) -> str | None:
        return f"{name}: {heads} attention heads are no multiple of {kv_heads} KV heads" if heads % kv_heads else None

    return rule


def _head_size_fault(name: str) -> Callable[[int, int, int | None], str | None]:
    def rule(hidden: int, heads: int, channels: int | None) -> str | None:
        if channels is None and hidden % heads:
            return f"{name}: hidden size {hidden} is no multiple of {heads} heads and kv_channels is not given"
        size = channels or hidden // heads
        return f"{name}: head size {size} is odd, positions need pairs" if size % 2 else None

    return rule


def _factors_fault(name: str, factor: str) -> Callable[[int, int, int | None, tuple[float, ...]], str | None]:
    def rule(hidden: int, heads: int, channels: int | None, factors: tuple[float, ...]) -> str | None:
        need = (channels or hidden // heads) // 2
        return None if len(factors) == need else f"{SCALING}.{factor} has {len(factors)} entries, {name} needs {need}"

    return rule


def _sign_fault(factor: str) -> Callable[[tuple[float, ...]], str | None]:
    return lambda factors: f"{SCALING}.{factor}: factors must be positive" if min(factors, default=1) <= 0 else None


def _length_fault(length: int, positions: int) -> str | None:
    if length <= positions:
        return None
    return f"max_length {length} exceeds lm_config.max_position_embeddings {positions}"


def _halves_fault(channels: int, rates: tuple[int, ...]) -> str | None:
    if channels % 2 ** len(rates) == 0:
        return None
    return f"{VAE}.decoder_dim {channels} cannot be halved {len(rates)} times"


def _hops_fault(encoder: tuple[int, ...], decoder: tuple[int, ...]) -> str | None:
    into, out = math.prod(encoder), math.prod(decoder)
    if into != out:
        return f"{VAE}: encoder_rates make a frame of {into} samples and decoder_rates make {out}, they must agree"
    return f"{VAE}.encoder_rates has a rate of 1, it must be 2 or more" if 1 in encoder else None


def _condition_fault(boundaries: tuple[int, ...] | None, kind: str, out_layer: bool) -> str | None:
    if boundaries is None:
        return None
    if kind not in ("scale_bias", "scale_bias_init", "add", "concat"):
        return f"{VAE}.cond_type is {kind!r}, expected scale_bias, scale_bias_init, add or concat"
    if kind == "concat" and not out_layer:
        return f"{VAE}.cond_type is 'concat', which needs cond_out_layer true"
    return None
