"""The parts of a model that are compiled: evaluations of the diffusion, and the codec's decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from voxcpm_grpc.models.voxcpm.codec.vae import Decoder, StreamingDecoder
from voxcpm_grpc.models.voxcpm.compiled.decoder import CompiledDecoder, load_decoder
from voxcpm_grpc.models.voxcpm.compiled.evaluation import load_evaluation
from voxcpm_grpc.models.voxcpm.compiled.files import Compiled
from voxcpm_grpc.models.voxcpm.flow.cpu_flow import Evaluation
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT

MOST_SEQUENCES = 8
EVALUATIONS = {f"flow-{count}": count for count in range(1, MOST_SEQUENCES + 1)}  # a part for each number of sequences
DECODERS = {"decoder-1": 1, "decoder-n": 2}  # a part, and the number of streams in its example


def parts(most: int) -> list[str]:
    """The parts for up to `most` streams, in the order in which they are compiled."""
    counts = EVALUATIONS | DECODERS
    return sorted((part for part in counts if counts[part] <= most), key=counts.__getitem__)


def loaders(
    dit: LocDiT, decoder: StreamingDecoder, patch: tuple[int, int]
) -> dict[str, Callable[[Path], Compiled | None]]:
    """The loader of each part, for patches of (P, D)."""
    evaluations = {
        part: partial(load_evaluation, dit=dit, patch=patch, sequences=count) for part, count in EVALUATIONS.items()
    }
    decoders = {
        part: partial(load_decoder, net=decoder, patch=patch, streams=count) for part, count in DECODERS.items()
    }
    return {**evaluations, **decoders}


def evaluations_of(found: Mapping[str, Compiled]) -> dict[int, Evaluation]:
    """The evaluations among the parts that were found, by number of sequences."""

    def only(compiled: Compiled) -> Evaluation:
        return lambda *arguments: compiled(*arguments)[0]

    return {count: only(found[part]) for part, count in EVALUATIONS.items() if part in found}


def decoder_of(found: Mapping[str, Compiled], decoder: StreamingDecoder) -> Decoder:
    """The decoder with the parts that were found."""
    one, several = (found.get(part) for part in DECODERS)
    return CompiledDecoder(decoder, one, several) if one or several else decoder
