from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields, is_dataclass

import msgspec
import numpy as np
import pytest
from support.doubles.fake_engine import INFO
from support.engines.voice_parts import voice_part

from voxcpm_grpc.errors import (
    Aborted,
    Exhausted,
    Internal,
    InvalidRequest,
    NotFound,
    Reason,
    TooLong,
    VoxCPMError,
)
from voxcpm_grpc.events import Admitted, AudioChunk, CodecChunk, Finished, FinishReason
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling

LATENTS = np.random.default_rng(1).standard_normal((3, 4, 8)).astype(np.float32)
REQUEST = Request(
    id="a-t1-s2",
    text="Grüße, 你好 🙂",
    sampling=Sampling(cfg_value=1.5, seed=2**63 - 1, max_steps=7),
    conditioning=Conditioning(prompt=voice_part(LATENTS, "before"), reference=voice_part(LATENTS[::2])),
    turn=1,
    segment=2,
    keep_speech=True,
)
COMMANDS = [
    m.Submit(REQUEST, 12),
    m.Submit(Request(id="b", text="plain"), 1),
    m.Allow("a", 6),
    m.Cancel("a"),
    m.Encode("e", np.arange(10, dtype=np.float32), Role.PROMPT),
    m.Check(REQUEST),
    m.Decode("d", {"latents": LATENTS.transpose(0, 2, 1)}),
    m.Stop(),
]
REPORTS = [
    m.Ready(INFO),
    m.StartFailed("no such file"),
    m.CallEvent("a", Admitted(queue_seconds=0.5, prompt_tokens=10, cached_tokens=4)),
    m.CallEvent("a", AudioChunk(index=3, samples=np.linspace(-1, 1, 7, dtype=np.float32))),
    m.CallEvent("a", Finished(reason=FinishReason.STOP, steps=3, engine_seconds=1.25, speech=voice_part(LATENTS))),
    m.CallEvent("b", Finished(reason=FinishReason.MAX_STEPS, steps=3, engine_seconds=1.25)),
    m.CallEvent("e", CodecChunk(LATENTS, False, "latents")),
    m.CallEvent("e", CodecChunk(np.zeros(0, np.float32), True)),
    m.Failed.of("a", Exhausted("full", retry_after=2.0)),
]


def same(a: object, b: object) -> bool:
    """Equality of values with arrays, which dataclasses and structs cannot compare."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, msgspec.Struct):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_a_command_is_the_same_after_decoding(command):
    assert same(encoding.decode_command(encoding.encode(command)), command)


def test_reports_of_one_message_are_the_same_after_decoding():
    arrived = encoding.decode_reports(encoding.encode(REPORTS))
    assert len(arrived) == len(REPORTS)
    assert all(same(a, b) for a, b in zip(arrived, REPORTS, strict=True))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("cfg_value is 11", field="cfg_value"), InvalidRequest),
        (TooLong(2000, 1000), TooLong),
        (Exhausted("full", retry_after=2.0), Exhausted),
        (NotFound("no voice", field="id", reason=Reason.VOICE_NOT_FOUND, voice="anna"), NotFound),
        (Aborted("lost"), Aborted),
        (Internal(), Internal),
        (VoxCPMError("of no kind"), Internal),
    ],
)
def test_an_error_keeps_its_type_its_message_and_its_reason(error, kind):
    [failed] = encoding.decode_reports(encoding.encode([m.Failed.of("a", error)]))
    assert isinstance(failed, m.Failed)
    back = failed.error()
    assert type(back) is kind
    for one in (back, pickle.loads(pickle.dumps(error))):
        assert (str(one), one.field, one.retry_after) == (error.message, error.field, error.retry_after)
        assert one.details == error.details
    assert back.reason is (error.reason or kind.default_reason)


def test_decoded_arrays_are_writable():
    command = encoding.decode_command(encoding.encode(m.Encode("e", np.zeros(3, np.float32), Role.REFERENCE)))
    assert isinstance(command, m.Encode)
    command.waveform[:] = 1  # PyTorch warns about memory that is read-only


def test_a_decoded_array_does_not_keep_its_message():
    """A message has the audio of all streams, and one of them may wait for its listener."""
    for report in encoding.decode_reports(encoding.encode(REPORTS)):
        if isinstance(report, m.CallEvent) and isinstance(report.body, AudioChunk):
            assert report.body.samples.flags.owndata


def test_a_message_cannot_carry_objects():
    with pytest.raises(NotImplementedError, match="cannot carry a value of type ndarray"):
        encoding.encode(m.Encode("e", np.array([object()]), Role.PROMPT))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_a_command_names_its_request_even_when_it_is_broken(command):
    expected = command.request.id if isinstance(command, m.Submit | m.Check) else getattr(command, "id", "")
    assert encoding.command_ids(encoding.encode(command))[0] == expected


def test_noise_names_no_request():
    assert encoding.command_ids(b"\xc1noise") == ("", "")
    assert encoding.command_ids(b"") == ("", "")


def test_a_front_never_imports_torch():
    modules = ("pool.engine_pool", "pool.engines.local", "ipc.messages", "worker.main")
    script = (
        "import sys\n"
        + "".join(f"import voxcpm_grpc.{name}\n" for name in modules)
        + "assert not [name for name in sys.modules if name.split('.')[0] in ('torch', 'triton')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
