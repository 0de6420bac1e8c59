"""Runs rounds on the device, and copies frames to the host while the language models still run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.attention import PagedKV
from voxcpm_grpc.engine.device.engine_graphs import EngineGraphs
from voxcpm_grpc.engine.device.graphs import MAX_ENTRIES
from voxcpm_grpc.engine.device.kv_cache import allocate_kv
from voxcpm_grpc.engine.device.rows import PackedChunks, pack, prefill_rows, step_rows
from voxcpm_grpc.engine.device.slots import Slots
from voxcpm_grpc.engine.device.staging import Staging, prefill_numbers
from voxcpm_grpc.engine.scheduling.round import PrefillChunk, Round
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.kernels.launch.host_copy import HostCopy, SavedSlot
from voxcpm_grpc.kernels.launch.precompile import precompile
from voxcpm_grpc.models.base import Opened, Part, SpeechModel, StepRows, upload
from voxcpm_grpc.request import Role

LIBRARY_BYTES = 512 << 20  # bytes of kernel modules and library workspaces, which PyTorch does not allocate
# Prefills on a CPU have multiples of so many rows and encoded rows, with padding. oneDNN compiles code for each number
# of rows of each product, 0.3 MB and a millisecond each, and keeps the last 1,024 of them.
CPU_ROWS, CPU_ENTRIES = 16, 4

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


class PrefillError(Exception):
    """The prefill of a round failed. The error is its `__cause__`."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched round: the sequences of each variant, and their `Frame.packed`."""

    frames: list[tuple[list[Sequence], HostCopy]]
    samples: int  # samples of a frame's audio
    generated: torch.cuda.Event | None = None  # it is recorded when all steps are generated; None: they are
    stop_flags: HostCopy | None = None  # those of the model, bool [slots], which come before late audio

    def wait_until_generated(self) -> None:
        """Wait until all steps of the round are generated."""
        if self.generated is not None:
            self.generated.synchronize()

    def read_stop_flags(self) -> None:
        """Wait until it is known which streams stop with the round, and tell them."""
        if self.stop_flags is not None:
            flags = self.stop_flags.wait()
            for sequence in (one for group, _ in self.frames for one in group if not one.ended):
                sequence.note_stop(stop=bool(flags[sequence.slot]))
            return
        for group, copy in self.frames:
            stops = (copy.wait()[:, self.samples] != 0).tolist()
            for sequence, stop in zip(group, stops, strict=True):
                sequence.note_stop(stop=stop)

    def ready(self) -> bool:
        """True if all frames have reached the host."""
        return all(copy.ready() for _, copy in self.frames)


class Runner:
    """Launches the device work of rounds. No method waits for the device."""

    def __init__(
        self,
        model: SpeechModel,
        slots: Slots,
        kv: PagedKV,
        *,
        graph_tokens: int | None = None,
        some_graphs_later: bool = False,
    ) -> None:
        """With `graph_tokens`, steps, prefills of up to so many positions and the codec are recorded as CUDA graphs.

        With `some_graphs_later`, `capture_next` records those that a runner can do without for a while.
        """
        self.model = model
        self.slots = slots
        self.kv = kv
        self._staging = Staging(prefill_numbers(slots, model.columns, graph_tokens or 0), slots.device)
        self._content = Staging(0, slots.device)  # of new streams
        self._graphs = None
        if graph_tokens is not None:
            self._graphs = EngineGraphs(model, slots, kv, graph_tokens, self._staging, some_later=some_graphs_later)
        self._decoded: set[int | None] = set()  # the audio of these slots of the last round may still be decoded
        self.codec = model.codec if graph_tokens is None else model.codec.capture()

    @property
    def graphs_wait(self) -> bool:
        """True if graphs were left for `capture_next`."""
        return self._graphs is not None and not self._graphs.complete

    def capture_next(self) -> None:
        """Record a graph that was left for later, between two launches."""
        assert self._graphs is not None
        self._graphs.capture_next()

    @torch.inference_mode()
    def launch(self, work: Round) -> InFlight:
        """Launch a round up to its audio. `advance` must follow before the next round.

        Raises PrefillError if no step was launched and `prefill` can be called again.
        """
        self.prefill(work)
        groups: defaultdict[Hashable, list[Sequence]] = defaultdict(list)
        for sequence in work.steps:
            groups[sequence.plan.variant].append(sequence)
        self._decoded = {sequence.slot for sequence in work.steps}
        frames = [(group, self._generate(group, variant)) for variant, group in groups.items()]
        launched = InFlight(frames, self.model.info.samples_per_step)
        if not frames:
            return launched
        if self._graphs is not None:
            return replace(launched, generated=self._graphs.generated, stop_flags=self._graphs.stop_flags)
        if self.model.late_audio:
            return replace(launched, stop_flags=HostCopy(self.model.stop_flags(self.slots.state)))
        return launched

    @torch.inference_mode()
    def advance(self, steps: list[Sequence], joined: Round) -> None:
        """Run the language models on what sequences have just generated, and on the prompts of `joined`.

        Raises PrefillError if that has not happened and `prefill` and `advance` can be called again.
        """
        if joined:
            self.prefill(joined, steps)
            self.slots.count_step(steps)
            return
        slots = np.array([sequence.slot for sequence in steps])
        adapted = _adapted("advance", *steps)
        if self._graphs is not None:
            self._graphs.advance(slots, adapted=adapted)
            return
        slot, state = upload(torch.from_numpy(slots), self.slots.device), self.slots.state
        longest = max(sequence.length for sequence in steps)  # the length already includes this step
        self.model.advance(step_rows(slot, state, self.kv.page_size, longest), state, self.kv, adapted=adapted)

    @torch.inference_mode()
    def save(self, slot: int, sequence: Sequence) -> SavedSlot:
        """Copy the state of a sequence in a slot to the host. The next launch may give the slot to another sequence."""
        if self._graphs is not None:
            self._graphs.wait_for_audio()  # it updates the state, too
        return self.slots.save(slot, sequence)

    @torch.inference_mode()
    def prefill(self, work: Round, steps: Listed[Sequence] = ()) -> None:
        """Write adapters, open and restore slots, and prefill the chunks of a round.

        `steps` have just generated, and go through the language models, too. A repeated call has the same result.
        Raises PrefillError.
        """
        try:
            written = [*work.opened, *work.restored]
            if self._graphs is not None and any(
                s.slot in self._decoded or s.plan.waits_for_audio or s.plan.primes or s.resumed for s in written
            ):
                # This is the audio of the last stream in a slot, or that which uses the memory of the codec.
                self._graphs.wait_for_audio()
            for lora in work.loras:
                assert lora.weights is not None
                self.model.write_adapter(lora.bank, lora.weights)
            for sequence in work.restored:
                assert sequence.slot is not None and sequence.saved
                self.slots.restore(sequence.slot, sequence.saved, sequence.bank)
                if sequence.streams_text:  # some may have come since it had a slot
                    self.feed(sequence)
            packed = None
            if work.chunks or steps:
                packed = pack(self.model.rows, work.chunks, self.kv.page_size, steps)
            sequences = work.sequences
            numbers = self.slots.new_pages(sequences), self.slots.opening(work.opened)
            rows = () if packed is None else (self._padded(packed), packed.encoded)
            *on_device, pages, opening = self._staging.upload(*rows, *numbers)
            self.slots.write_pages(pages)
            adapted = any(sequence.lora for sequence in (*steps, *sequences))
            read = adapted or any(sequence.plan.reads_slot or sequence.resumed for sequence in work.opened)
            if read:  # the prefill reads the adapters or the state of all its slots
                self._open(work.opened, opening)
            if packed is not None:
                self._prefill_rows(packed, on_device, work.chunks, steps)
            if not read:  # a GPU prefills meanwhile
                self._open(work.opened, opening)
            self._prime(work.opened)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:
            raise PrefillError from error

    @torch.inference_mode()
    def speech(self, sequence: Sequence) -> dict[str, HostCopy]:
        """The arrays of the speech that a sequence has sent."""
        assert sequence.slot is not None
        made = self.model.speech(sequence.slot, sequence.plan, sequence.sent, self.slots.state)
        return {name: HostCopy(array) for name, array in made.items()}

    @torch.inference_mode()
    def feed(self, sequence: Sequence) -> None:
        """Write the text of a sequence, to which more was appended, to its slot."""
        assert sequence.slot is not None
        self.model.feed(sequence.slot, sequence.plan, self.slots.state)

    def _padded(self, packed: PackedChunks) -> np.ndarray:
        if self._graphs is not None:
            return self._graphs.padded(packed)
        return packed.padded(self._eager_size(len(packed), CPU_ROWS), len(packed.slot), self.slots.scratch)

    def _eager_size(self, count: int, multiple: int) -> int:
        """The number of rows or encoded rows, padding included, in which a prefill without graphs computes so many."""
        return -(-count // multiple) * multiple if self.slots.device.type == "cpu" else count

    def _open(self, sequences: list[Sequence], content: Tensor) -> None:
        if not sequences:
            return
        contents = self._content.upload(*(self.model.content(sequence.plan) for sequence in sequences))
        opened = list[Opened]()
        for sequence, own in zip(sequences, contents, strict=True):
            assert sequence.slot is not None
            opened.append(Opened(sequence.slot, sequence.plan, own))
        self.model.open(self.slots.open(content), opened, self.slots.state)
        for sequence in sequences:
            if sequence.history and sequence.slot is not None:
                self.model.resume(sequence.slot, sequence.plan, sequence.history.steps, self.slots.state)

    def _prime(self, sequences: list[Sequence]) -> None:
        """Let new streams continue the speech of their prompts. A GPU still prefills meanwhile."""
        slots = [one.slot for one in sequences if one.plan.primes and not one.history]
        if not slots:
            return
        for first in range(0, len(slots), self.model.primed_at_once):
            group = np.array(slots[first : first + self.model.primed_at_once])
            if self._graphs is not None:
                self._graphs.prime(group)
            else:
                self.model.prime(upload(torch.from_numpy(group), self.slots.device), self.slots.state)

    def _prefill_rows(
        self, packed: PackedChunks, on_device: list[Tensor], chunks: list[PrefillChunk], steps: Listed[Sequence]
    ) -> None:
        """Prefill rows, whose padded form and `encoded` are on the device."""
        flat, (index, slot, entry) = on_device
        state = self.slots.state
        adapted = _adapted("advance", *steps, *(chunk.sequence for chunk in chunks))
        results = self._encode(slot, entry, adapted=adapted) if len(index) else None
        if self._graphs is not None:
            if results is not None and self._graphs.encoded is not None:
                self._graphs.encoded.index_copy_(0, index, results)
            self._graphs.prefill(len(packed), adapted=adapted)
            return
        encoded, count = None, self._eager_size(len(packed), CPU_ROWS)
        if results is not None:
            encoded = results.new_zeros(count, *results.shape[1:]).index_copy_(0, index, results)
        rows = prefill_rows(
            flat,
            count,
            len(packed.slot),
            self.model.columns,
            state,
            self.kv.page_size,
            longest=int(packed.context.max()),
            fresh=not steps and all(chunk.start == 0 for chunk in chunks),
        )
        # The padding rows of `last` are left out, because they must not write to a slot.
        starting = len(packed.last)
        rows = replace(rows, last=rows.last[:starting], last_slot=rows.last_slot[:starting])
        self.model.prefill(rows, encoded, state, self.kv, adapted=adapted)

    def _encode(self, slot: Tensor, entry: Tensor, *, adapted: bool) -> Tensor:
        """`SpeechModel.encode` of any number of entries."""
        count = len(slot)
        if padding := self._eager_size(count, CPU_ENTRIES) - count if self._graphs is None else 0:
            slot, entry = F.pad(slot, (0, padding), value=self.slots.scratch), F.pad(entry, (0, padding))
        parts = zip(slot.split(MAX_ENTRIES), entry.split(MAX_ENTRIES), strict=True)
        if self._graphs is not None:
            return torch.cat([self._graphs.encode(*part, adapted=adapted) for part in parts])
        encoded = [self.model.encode(*part, self.slots.state, adapted=adapted) for part in parts]
        return torch.cat(encoded)[:count]

    def _generate(self, group: list[Sequence], variant: Hashable) -> HostCopy:
        """Generate and decode a step of these sequences. The copy of the frames does not wait for later launches."""
        slots = np.array([sequence.slot for sequence in group])
        adapted = _adapted("generate", *group)
        if self._graphs is not None:
            return self._graphs.generate(slots, variant, adapted=adapted)
        slot = upload(torch.from_numpy(slots), self.slots.device)
        self.model.generate(slot, variant, self.slots.state, adapted=adapted)
        return HostCopy(self.model.decode(slot, self.slots.state).packed)


def _adapted(part: Part, *sequences: Sequence) -> bool:
    """True if the adapter of a sequence changes this part of the model."""
    return any(sequence.lora and part in sequence.lora.weights.parts for sequence in sequences)


def scratch_rows(slots: Slots, page_size: int) -> StepRows:
    """The rows of a step of all slots, each on the scratch slot, with contexts in one page."""
    all_slots = torch.full((slots.scratch,), slots.scratch, device=slots.device)
    return step_rows(all_slots, slots.state, page_size, page_size)


@torch.inference_mode()
def working_memory(model: SpeechModel, slots: Slots, page_size: int, prefill_tokens: int, *, graphs: bool) -> int:
    """Bytes of GPU memory that steps, graphs and codec jobs need in addition to weights, slots and KV cache.

    Measured with a step of all slots, the largest prefill and the most streams that are primed at once, all on the
    scratch slot with a KV cache of one page, and with a codec job of two seconds. Graphs and codec jobs have memory
    pools of these sizes.
    """
    device, state, info = slots.device, slots.state, model.info
    kv = allocate_kv(model.layout, 0, page_size, device)
    scratch, adapted = slots.scratch, model.banks > 0
    all_slots = torch.full((scratch,), scratch, device=device)

    def step() -> None:
        model.step(scratch_rows(slots, page_size), model.variants[-1], state, kv, adapted=adapted)

    def decode() -> None:
        model.decode(all_slots, state)

    def prime() -> None:
        if count := min(model.primed_at_once, scratch):
            model.prime(all_slots[:count], state)

    def prefill() -> None:
        flat = torch.from_numpy(pack(model.rows, [], page_size).padded(prefill_tokens, 1, scratch)).to(device)
        rows = prefill_rows(flat, prefill_tokens, 1, model.columns, state, page_size, page_size, fresh=False)
        encoded = None
        if model.encodes:
            entry = torch.zeros(min(prefill_tokens, MAX_ENTRIES), dtype=torch.int64, device=device)
            encoded = model.encode(entry + scratch, entry, state, adapted=adapted)
            encoded = encoded.new_zeros(prefill_tokens, *encoded.shape[1:])
        model.prefill(rows, encoded, state, kv, adapted=adapted)

    def convert() -> None:
        for name, array in model.codec.encode(np.zeros(2 * info.input_sample_rate, np.float32), Role.REFERENCE):
            if name in info.tracks:
                for _ in model.codec.decode({name: array.cpu().numpy()}):
                    pass

    steps = max(_peak(step, device), _peak(prefill, device))
    audio, codec = max(_peak(decode, device), _peak(prime, device)), _peak(convert, device)
    torch.cuda.empty_cache()  # graphs have pools of their own and would not use the memory that PyTorch keeps
    return steps + (steps + audio if graphs else 0) + codec + LIBRARY_BYTES


def compile_all(model: SpeechModel, slots: Slots, page_size: int, prefill_tokens: int, key: str) -> None:
    """Compile all kernels of an engine with CUDA graphs. For `key` see `precompile`."""

    def launch_all() -> None:
        working_memory(model, slots, page_size, prefill_tokens, graphs=True)
        Runner(model, slots, allocate_kv(model.layout, 0, page_size, slots.device), graph_tokens=prefill_tokens)

    # This compiles the kernel that locates rows, so that it runs in `launch_all`, where others use the addresses.
    scratch_rows(slots, page_size)
    precompile(launch_all, key)


def _peak(call: Callable[[], None], device: torch.device) -> int:
    """The maximum of the bytes that a call has allocated at the same time."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
