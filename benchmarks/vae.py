"""Measure the codec's decoder alone: one patch of every stream in one captured graph, and its error against float32.

    python -m benchmarks.vae [--streams 1,8,16,32,64] [--dtype float16]

The weights are random and of the released size. At each replay they are outside the cache, as they are in a step after
the language models. The floor is the larger of two times: to move weights and states once, and to compute the products
at the rate that an H200 reaches with large matrices.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.measuring.flags import command_parser, integers
from tools import make_checkpoint
from voxcpm_grpc.layers.weights import Weights
from voxcpm_grpc.models.voxcpm.backend import choose_decoder
from voxcpm_grpc.models.voxcpm.codec.vae import Decoder, StreamingDecoder, build_decoder
from voxcpm_grpc.models.voxcpm.config.config import VAE2Config

PRODUCTS = 2.83e9  # floating-point operations of the products of a patch
WEIGHTS = 45.5e6  # of the products
BANDWIDTH, RATE = 4.2e12, 687e12  # bytes and operations a second
CACHE = 256 << 20  # bytes that fill the cache


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--streams", type=integers, default=[1, 8, 16, 32, 64], help="numbers of streams")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16", help="of the decoder")
    parser.add_argument("--repeats", type=int, default=20, help="replays of a graph, of which the median counts")
    args = parser.parse_args()
    net = random_decoder()
    decoder = choose_decoder(net, getattr(torch, args.dtype))
    ratio, peak = distance(decoder, net)
    print(f"{args.dtype}: signal over error {ratio:.1f} dB, largest error {peak:.4f} of the signal's rms")
    print("| streams | ms | floor ms | nodes |\n|---:|---:|---:|---:|")
    for streams in args.streams:
        milliseconds, nodes = time_step(decoder, streams, args.repeats)
        print(f"| {streams} | {milliseconds:.3f} | {floor(decoder, net, streams):.3f} | {nodes} |", flush=True)


def random_decoder() -> StreamingDecoder:
    config = make_checkpoint.config(True, "float32")["audio_vae_config"]
    tensors = make_checkpoint.vae_tensors(config, make_checkpoint.Random(1, "cuda"))
    weights = Weights("random", tensors, torch.device("cuda"), torch.float32, torch.float32)
    return build_decoder(VAE2Config(), weights)


def memory(decoder: Decoder, slots: int) -> Tensor:
    return torch.zeros(slots, decoder.memory, dtype=decoder.dtype, device="cuda")


@torch.inference_mode()
def distance(decoder: Decoder, truth: Decoder, streams: int = 4, patches: int = 12) -> tuple[float, float]:
    """The signal over the error of a decoder in dB, and its largest error over the signal's rms."""
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
    """The median time of a step in a graph, in ms, and the number of its nodes."""
    latents = torch.randn(streams, 1, 4, 64, device="cuda").bfloat16()
    state, slot = memory(decoder, streams + 1), torch.arange(streams, device="cuda")
    other = torch.empty(CACHE, dtype=torch.uint8, device="cuda")
    alone, nodes = captured(lambda: other.fill_(1))
    both, more = captured(lambda: (other.fill_(1), decoder.decode(latents, state, slot)))
    return median(both, repeats) - median(alone, repeats), more - nodes


def captured(work: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int]:
    """The graph of a piece of device work, and the number of its nodes."""
    work()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        work()
    graph.instantiate()
    from cuda.bindings import runtime  # part of PyTorch's CUDA builds

    _, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(init_value=graph.raw_cuda_graph()))
    return graph, count


def median(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    """The median time of a replay, in ms."""
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
    """The least time of a step, in ms."""
    size = decoder.dtype.itemsize
    moved = WEIGHTS * size + streams * 2 * net.memory * size
    return 1e3 * max(moved / BANDWIDTH, streams * PRODUCTS / RATE)


if __name__ == "__main__":
    main()
