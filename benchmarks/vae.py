"""Time of the codec's decoder, one patch of every stream in one captured graph, and its distance from the truth.

    python -m benchmarks.vae [--streams 1,8,16,32,64] [--dtype float16]

Random weights of the released size; every replay finds the weights outside the cache, as it does after the language
models of a step. The floor is the larger of two times: weights and memories moved once, and the products at the rate
that an H200 reaches with large matrices.
"""

from __future__ import annotations

import runpy
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measuring.flags import command_parser
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm2.backend import choose_decoder
from voxcpm_grpc.models.voxcpm2.config import VAEConfig
from voxcpm_grpc.models.voxcpm2.vae import Decoder, StreamingDecoder, build_decoder

TOOL = Path(__file__).parents[1] / "tools" / "make_checkpoint.py"
PRODUCTS = 2.83e9  # floating-point operations of the products of a patch
WEIGHTS = 45.5e6  # of the products
BANDWIDTH, RATE = 4.2e12, 687e12  # bytes and operations a second
CACHE = 256 << 20  # bytes that push everything else out of it


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--streams", default="1,8,16,32,64")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    net = random_decoder()
    decoder = choose_decoder(net, getattr(torch, args.dtype))
    ratio, peak = distance(decoder, net)
    print(f"{args.dtype}: signal over error {ratio:.1f} dB, largest error {peak:.4f} of the signal's rms")
    print("| streams | ms | floor ms | nodes |\n|---:|---:|---:|---:|")
    for streams in map(int, args.streams.split(",")):
        milliseconds, nodes = time_step(decoder, streams, args.repeats)
        print(f"| {streams} | {milliseconds:.3f} | {floor(decoder, net, streams):.3f} | {nodes} |", flush=True)


def random_decoder() -> StreamingDecoder:
    tool = runpy.run_path(str(TOOL))
    tensors = tool["vae_tensors"](tool["config"](True, "float32")["audio_vae_config"], tool["Random"](1, "cuda"))
    weights = Weights("random", tensors, torch.device("cuda"), torch.float32, torch.float32)
    return build_decoder(VAEConfig(), weights)


def memory(decoder: Decoder, slots: int) -> Tensor:
    return torch.zeros(slots, decoder.memory, dtype=decoder.dtype, device="cuda")


@torch.inference_mode()
def distance(decoder: Decoder, truth: Decoder, streams: int = 4, patches: int = 12) -> tuple[float, float]:
    """Signal over error in dB, and the largest error over the signal's rms."""
    latents = torch.randn(streams, patches, 4, 64, device="cuda")
    slot = torch.arange(streams, device="cuda")
    exact, ours = (
        torch.cat([net.decode(x, state, slot) for x in latents.split(1, dim=1)], 1)
        for net, state in ((net, memory(net, streams)) for net in (truth, decoder))
    )
    error, level = ours - exact, exact.square().mean().sqrt()
    ratio = 20 * torch.log10(level / error.square().mean().sqrt().clamp(min=1e-12))
    return float(ratio), float(error.abs().max() / level)


@torch.inference_mode()
def time_step(decoder: Decoder, streams: int, repeats: int) -> tuple[float, int]:
    """Median milliseconds of a step in a graph, and the graph's nodes."""
    latents = torch.randn(streams, 1, 4, 64, device="cuda").bfloat16()
    state, slot = memory(decoder, streams + 1), torch.arange(streams, device="cuda")
    other = torch.empty(CACHE, dtype=torch.uint8, device="cuda")
    alone, nodes = captured(lambda: other.fill_(1))
    both, more = captured(lambda: (other.fill_(1), decoder.decode(latents, state, slot)))
    return median(both, repeats) - median(alone, repeats), more - nodes


def captured(work: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int]:
    work()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        work()
    graph.instantiate()
    from cuda.bindings import runtime  # counts the nodes; part of PyTorch's CUDA builds

    _, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(init_value=graph.raw_cuda_graph()))
    return graph, count


def median(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


def floor(decoder: Decoder, net: StreamingDecoder, streams: int) -> float:
    """Milliseconds."""
    size = decoder.dtype.itemsize
    moved = WEIGHTS * size + streams * 2 * net.memory * size
    return 1e3 * max(moved / BANDWIDTH, streams * PRODUCTS / RATE)


if __name__ == "__main__":
    main()
