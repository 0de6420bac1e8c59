"""Every backend agrees with softmax over the whole context in float64, and writes exactly the keys of the step."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from voxcpm_grpc.attention import Attention, HeadNorms, PagedKV, PagedRows, Rotation, RowNorm
from voxcpm_grpc.attention.reference import ReferenceAttention

BF16, FP32 = torch.bfloat16, torch.float32
LAYER = 1


@dataclass(frozen=True)
class Backend:
    name: str
    device: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.name}-{self.device}-{self.dtype}".replace("torch.", "")

    def make(self) -> Attention:
        if self.device == "cuda" and not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        if self.name == "triton" and self.device == "cpu" and torch.cuda.is_available():
            pytest.skip("with a GPU the kernels run there, not interpreted")
        if self.name == "reference":
            return ReferenceAttention()
        pytest.importorskip({"triton": "triton", "flash": "flash_attn"}[self.name])
        if self.name == "triton":
            from voxcpm_grpc.attention.paged_triton import TritonAttention

            return TritonAttention()
        from voxcpm_grpc.attention.flash import FlashAttention

        return FlashAttention()


def _backends():
    yield from (Backend("reference", "cpu", FP32), Backend("reference", "cpu", BF16), Backend("triton", "cpu", FP32))
    for name in ("reference", "triton", "flash"):
        yield from (pytest.param(Backend(name, "cuda", dtype), marks=pytest.mark.gpu) for dtype in (FP32, BF16))


every_backend = pytest.mark.parametrize("backend", list(_backends()), ids=str)


@dataclass(frozen=True)
class Heads:
    query: int = 4
    kv: int = 2
    size: int = 8


def dense(q, k, v):
    """The definition: the last rows of q [n, h, d] over k, v [m, g, d], row by row and head by head, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    n, m, repeat = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for r in range(n):
        seen = m - n + r + 1
        for j in range(q.shape[1]):
            scores = k[:seen, j // repeat] @ q[r, j] * q.shape[2] ** -0.5
            out[r, j] = scores.softmax(0) @ v[:seen, j // repeat]
    return out


class Cache:
    """Sequences in shuffled pages of a two-layer cache that is NaN where nothing was written."""

    def __init__(self, backend: Backend, lengths: list[int], page_size: int, heads: Heads, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.backend, self.page_size = backend, page_size
        self.q, self.k, self.v = (
            [torch.randn(n, h, heads.size, generator=generator).to(backend.dtype) for n in lengths]
            for h in (heads.query, heads.kv, heads.kv)
        )
        used = [-(-n // page_size) for n in lengths]
        pages = sum(used) + 2  # the first is scratch, the last has no owner
        order = (torch.randperm(pages - 2, generator=generator) + 1).split(used)
        self.table = torch.full((len(lengths), max(used) + 1), pages - 1, dtype=torch.int32)
        for row, mine in zip(self.table, order, strict=True):
            row[: len(mine)] = mine
        blank = torch.full((2, pages, page_size, heads.kv, heads.size), float("nan"), dtype=backend.dtype)
        self.kv = PagedKV(blank.to(backend.device), blank.clone().to(backend.device))

    def slots(self, i: int, start: int, stop: int) -> torch.Tensor:
        position = torch.arange(start, stop)
        return self.table[i, position // self.page_size].long() * self.page_size + position % self.page_size

    def fill(self, cached: list[int]) -> None:
        """Write the first positions of each sequence, as earlier steps would."""
        for i, n in enumerate(cached):
            for pages, rows in ((self.kv.k, self.k[i]), (self.kv.v, self.v[i])):
                pages[LAYER].flatten(0, 1)[self.slots(i, 0, n).to(pages.device)] = rows[:n].to(pages.device)

    def step(self, attention: Attention, start: list[int], stop: list[int]) -> list[torch.Tensor]:
        """Run attention for positions start..stop of every sequence; returns the outputs on the CPU."""
        count = [b - a for a, b in zip(start, stop, strict=True)]
        device = self.backend.device
        q, k, v = (
            torch.cat([x[i][a:b] for i, (a, b) in enumerate(zip(start, stop, strict=True))]).to(device)
            for x in (self.q, self.k, self.v)
        )
        out = attention.attend(q, k, v, LAYER, self.kv, self.rows(start, stop))
        assert out.shape == q.shape
        assert out.dtype == q.dtype
        return list(out.cpu().split(count))

    def rows(self, start: list[int], stop: list[int]) -> PagedRows:
        """The rows of positions start..stop of every sequence."""
        count, device = [b - a for a, b in zip(start, stop, strict=True)], self.backend.device
        write = torch.cat([self.slots(i, a, b) for i, (a, b) in enumerate(zip(start, stop, strict=True))])
        return PagedRows(
            cu_seqlens=torch.tensor([0, *count]).cumsum(0).to(device, torch.int32),
            context=torch.tensor(stop, dtype=torch.int32, device=device),
            block_table=self.table.to(device),
            write=write.to(device),
            max_rows=max(count),
            max_context=max(stop) + 7,
            fresh=not any(start),
        )

    def expect(self, start: list[int], stop: list[int], out: list[torch.Tensor]) -> None:
        for i, (a, b) in enumerate(zip(start, stop, strict=True)):
            self.close(out[i], dense(self.q[i][a:b], self.k[i][:b], self.v[i][:b]))

    def close(self, out: torch.Tensor, truth: torch.Tensor) -> None:
        error, limit = (out.double() - truth).norm() / truth.norm(), 1e-2 if self.backend.dtype == BF16 else 1e-5
        assert error < limit, f"relative error {error:.2e}, limit {limit}"

    def expect_stored(self, stop: list[int]) -> None:
        """Assert that layer LAYER holds exactly the keys and values up to `stop`, and that all else is unchanged."""
        for pages, rows in ((self.kv.k, self.k), (self.kv.v, self.v)):
            wanted = torch.full_like(pages.cpu(), float("nan"))
            for i, n in enumerate(stop):
                wanted[LAYER].flatten(0, 1)[self.slots(i, 0, n)] = rows[i][:n]
            torch.testing.assert_close(pages.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


RAGGED = {  # cached and new positions of each sequence
    "decode": [(0, 1), (1, 1), (15, 1), (16, 1), (40, 1)],
    "prefill": [(0, 3), (0, 1), (0, 16), (0, 50), (0, 17)],
    "chunks": [(5, 3), (16, 20), (0, 33), (31, 1), (15, 2)],
    "one": [(0, 1)],
    "long": [(700, 1), (3, 1)],
    "long-chunk": [(600, 9), (3, 70)],
}


@every_backend
@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize("case", RAGGED)
def test_ragged(backend, case, page_size):
    start = [cached for cached, _ in RAGGED[case]]
    stop = [a + b for a, b in RAGGED[case]]
    attention, cache = backend.make(), Cache(backend, stop, page_size, Heads())
    cache.fill(start)
    cache.expect(start, stop, cache.step(attention, start, stop))
    cache.expect_stored(stop)


@every_backend
@pytest.mark.parametrize("heads", [Heads(2, 2, 8), Heads(4, 2, 16), Heads(16, 2, 128), Heads(8, 1, 64)], ids=str)
@pytest.mark.parametrize("new", [1, 12])
def test_head_counts_and_sizes(backend, heads, new):
    start, stop = [0, 20], [new, 20 + new]
    attention, cache = backend.make(), Cache(backend, stop, 16, heads)
    cache.fill(start)
    cache.expect(start, stop, cache.step(attention, start, stop))


@every_backend
def test_chunk_by_chunk_equals_at_once(backend):
    lengths = [45, 23]
    attention, cache = backend.make(), Cache(backend, lengths, 16, Heads())
    cuts = [[0, 0], [20, 1], [21, 18], [44, 22], [45, 23]]
    steps = [cache.step(attention, a, b) for a, b in pairwise(cuts)]
    joined = [torch.cat(parts) for parts in zip(*steps, strict=True)]
    cache.expect([0, 0], lengths, joined)
    cache.expect_stored(lengths)


@every_backend
@pytest.mark.parametrize("new", [1, 12])
def test_norms_of_heads_come_before_the_rotation(backend, new):
    heads, start, stop = Heads(4, 2, 16), [0, 20], [new, 20 + new]
    attention, cache, rows = backend.make(), Cache(backend, stop, 16, heads), 2 * new
    cache.fill(start)
    q_gain, k_gain = ((1 + 0.3 * torch.randn(16)).to(backend.device, backend.dtype) for _ in "qk")
    norms = HeadNorms(q_gain, k_gain, 1e-6)
    angle = torch.rand(rows, 1, 8, device=backend.device)
    rotate = Rotation(angle.cos(), angle.sin())
    paged = cache.rows(start, stop)
    projection = torch.randn(rows, 8, 16).to(backend.device, backend.dtype)

    def attend(q, k, v, **options):
        kv = PagedKV(cache.kv.k.clone(), cache.kv.v.clone())
        out = attention.attend(q, k, v, LAYER, kv, paged, rotate, **options)
        return out.double(), kv.k.nan_to_num().double(), kv.v.nan_to_num().double()

    truth = attend(*norms(*projection.split([4, 2, 2], dim=1)[:2]), projection[:, 6:])
    found = attend(*projection.clone().split([4, 2, 2], dim=1), norms=norms)
    error = 1e-5 if backend.dtype == FP32 else 2e-2
    assert all((one - other).norm() <= error * other.norm() for one, other in zip(found, truth, strict=True))


@every_backend
@pytest.mark.parametrize("tokens", [5, 11])
def test_full_attention_is_bidirectional(backend, tokens):
    attention = backend.make()
    heads = Heads(16, 2, 128)
    q, k, v = (torch.randn(tokens, 3, h, heads.size).to(backend.dtype) for h in (heads.query, heads.kv, heads.kv))
    out = attention.attend_full(q.to(backend.device), k.to(backend.device), v.to(backend.device)).cpu()
    repeated = [x.double().repeat_interleave(8, dim=2) for x in (k, v)]
    weights = torch.einsum("nbhd,mbhd->bhnm", q.double(), repeated[0]).mul(heads.size**-0.5).softmax(-1)
    truth = torch.einsum("bhnm,mbhd->nbhd", weights, repeated[1])
    assert out.dtype == backend.dtype
    assert (out.double() - truth).norm() / truth.norm() < (1e-2 if backend.dtype == BF16 else 1e-5)


@every_backend
@pytest.mark.parametrize("tokens", [11, 17])
@pytest.mark.parametrize("rotated", [True, False])
def test_a_late_norm_equals_normalized_rows(backend, tokens, rotated):
    attention, heads = backend.make(), Heads(16, 2, 32)
    x = torch.randn(3 * tokens, 64) * torch.logspace(-1, 1, 3 * tokens)[:, None]
    weight = torch.randn(64, 20 * heads.size) / 8
    angle = torch.arange(tokens)[:, None, None, None] * 10 ** -torch.linspace(0, 2, heads.size // 2)
    rotate = Rotation(angle.cos().to(backend.device), angle.sin().to(backend.device)) if rotated else None

    def attend(rows, norm):
        mapped = (rows @ weight).view(tokens, 3, 20, heads.size).to(backend.device, backend.dtype)
        return attention.attend_full(*mapped.split([16, 2, 2], dim=2), rotate, norm).cpu().double()

    truth = attend(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5), None)
    out = attend(x, RowNorm(x.to(backend.device, backend.dtype), 1e-5))
    assert (out - truth).norm() / truth.norm() < (1e-2 if backend.dtype == BF16 else 1e-5)


@every_backend
@pytest.mark.parametrize("tokens", [11, 17])
@pytest.mark.parametrize("late", [True, False])
def test_wanted_tokens_equal_those_of_the_whole_result(backend, tokens, late):
    attention, heads = backend.make(), Heads(16, 2, 32)
    fused = torch.randn(tokens, 3, 20, heads.size).to(backend.device, backend.dtype)
    q, k, v = fused.split([16, 2, 2], dim=2)
    angle = torch.arange(tokens)[:, None, None, None] * 10 ** -torch.linspace(0, 2, heads.size // 2)
    rotate = Rotation(angle.cos().to(backend.device), angle.sin().to(backend.device))
    norm = RowNorm(torch.randn(tokens * 3, 64).to(backend.device, backend.dtype), 1e-5) if late else None
    whole = attention.attend_full(q, k, v, rotate, norm)
    for wanted in (range(7, 11), range(1)):
        out = attention.attend_full(q, k, v, rotate, norm, wanted)
        torch.testing.assert_close(out, whole[wanted.start : wanted.stop])


sequences = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=5)


@settings(max_examples=40)
@given(
    sequences=sequences, page_size=st.sampled_from([16, 32]), repeat=st.sampled_from([1, 2, 8]), decode=st.booleans()
)
def test_reference_on_any_batch(sequences, page_size, repeat, decode):
    start = [cached for cached, _ in sequences]
    stop = [cached + (1 if decode else new) for cached, new in sequences]
    cache = Cache(Backend("reference", "cpu", FP32), stop, page_size, Heads(2 * repeat, 2, 8), seed=sum(stop))
    cache.fill(start)
    cache.expect(start, stop, cache.step(ReferenceAttention(), start, stop))
    cache.expect_stored(stop)


def test_idle_rows_do_not_affect_others():
    cache = Cache(Backend("reference", "cpu", FP32), [20, 1, 9], 16, Heads())
    cache.fill([19, 0, 8])
    attention = ReferenceAttention()
    alone = cache.step(attention, [19, 0, 8], [20, 1, 9])
    cache.table[1] = 0  # an idle row writes to the scratch page and reads it
    idle = cache.step(attention, [19, 0, 8], [20, 1, 9])
    assert torch.equal(alone[0], idle[0])
    assert torch.equal(alone[2], idle[2])


@pytest.mark.gpu
def test_a_captured_step_follows_its_inputs():
    backend = Backend("triton", "cuda", BF16)
    attention = backend.make()
    cache = Cache(backend, [600, 600], 16, Heads(16, 2, 128))
    cache.fill([599, 599])
    q, k, v = (torch.zeros(2, h, 128, device="cuda", dtype=BF16) for h in (16, 2, 2))
    rows = PagedRows(
        cu_seqlens=torch.arange(3, device="cuda", dtype=torch.int32),
        context=torch.ones(2, device="cuda", dtype=torch.int32),
        block_table=torch.zeros_like(cache.table, device="cuda"),
        write=torch.zeros(2, device="cuda", dtype=torch.int64),
        max_rows=1,
        max_context=8192,
        fresh=False,
    )
    attention.attend(q, k, v, LAYER, cache.kv, rows)  # compiles, which is not possible during a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.attend(q, k, v, LAYER, cache.kv, rows)
    rows.block_table.copy_(cache.table)
    for stop in ([600, 31], [17, 599]):
        rows.context.copy_(torch.tensor(stop))
        rows.write.copy_(torch.cat([cache.slots(i, n - 1, n) for i, n in enumerate(stop)]))
        for target, source in ((q, cache.q), (k, cache.k), (v, cache.v)):
            target.copy_(torch.stack([x[n - 1] for x, n in zip(source, stop, strict=True)]))
        graph.replay()
        cache.expect([n - 1 for n in stop], stop, list(out.cpu().split(1)))
