"""The reasons of errors: every error has one, and docs/errors.md has them all."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import health_stub
from support.clients.raised_errors import Made, made_errors

from voxcpm_grpc.errors import MISSING, Reason
from voxcpm_grpc.v1 import tts_pb2 as pb

PAGE = Path(__file__).parents[3] / "docs/errors.md"
ROW = re.compile(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \|([^|]*)\| (later|no) \| .+ \|$", re.MULTILINE)


@functools.cache
def made() -> list[Made]:
    return list(made_errors())


def rows() -> dict[str, tuple[str, set[str], str]]:
    """The table of the page by reason: the status, the names of values, and if a repetition can succeed."""
    found = ROW.findall(PAGE.read_text("utf-8"))
    assert len(found) == len({reason for reason, *_ in found})
    return {reason: (code, set(re.findall(r"`(\w+)`", values)), again) for reason, code, values, again in found}


def test_every_error_that_the_sources_make_has_a_reason() -> None:
    """Some classes give it themselves."""
    assert len(made()) > 200
    assert [
        one.place
        for one in made()
        if not one.reasons and one.kind.default_reason is None and "__init__" not in vars(one.kind)
    ] == []


def test_the_page_has_every_reason_with_its_status_and_values() -> None:
    in_sources = {
        reason.name: (
            {one.code for one in made() if reason.name in one.reasons},
            {name for one in made() if reason.name in one.reasons for name in one.details},
        )
        for reason in Reason
    }
    assert {reason: ({code}, values) for reason, (code, values, _) in rows().items()} == in_sources


def test_a_missing_thing_is_named_among_the_values() -> None:
    listed = rows()
    assert {reason.name for reason in MISSING} >= {name for name, (code, *_) in listed.items() if code == "NOT_FOUND"}
    assert all(kind in listed[reason.name][1] for reason, kind in MISSING.items())


def test_only_refusals_that_pass_are_worth_another_attempt() -> None:
    waits = {"UNAVAILABLE", "RESOURCE_EXHAUSTED"}
    never = {name for name, (code, _, again) in rows().items() if code in waits and again == "no"}
    assert never == {"CREDENTIAL_TOO_LONG"}
    assert {code for code, _, again in rows().values() if again == "later"} == waits


def speak(served: Any, **config: Any) -> Any:
    return served.generate(pb.GenerateConfig(**config), "Hello.")


def voice(**fields: Any) -> dict[str, pb.Conditioning]:
    return {"conditioning": pb.Conditioning(**fields)}


MISSING_ID = "ref_" + "a" * 32
LONG_NAME = "\N{HIRAGANA LETTER A}" * 1000
STATUSES: dict[str, tuple[Any, dict[str, str], tuple[str, str] | None]] = {
    "VOICE_NOT_FOUND": (
        lambda served: served.stub.GetVoice(pb.GetVoiceRequest(id=MISSING_ID)),
        {"voice": MISSING_ID},
        ("voice", MISSING_ID),
    ),
    "PRESET_NOT_FOUND": (
        lambda served: speak(served, **voice(preset="anna")),
        {"preset": "anna"},
        ("preset", "anna"),
    ),
    "MODEL_NOT_FOUND": (
        lambda served: served.stub.GetModelInfo(pb.GetModelInfoRequest(model="another")),
        {"model": "another"},
        ("model", "another"),
    ),
    "LORA_NOT_FOUND": (
        lambda served: speak(served, turn=pb.TurnConfig(lora="warm")),
        {"lora": "warm"},
        ("lora", "warm"),
    ),
    "SERVICE_NOT_FOUND": (
        lambda served: health_stub(served.channel).Check(health_pb2.HealthCheckRequest(service="x.Y")),
        {"service": "x.Y"},
        ("service", "x.Y"),
    ),
    "TIMESTEPS_NOT_SERVED": (
        lambda served: speak(served, turn=pb.TurnConfig(sampling=pb.Sampling(inference_timesteps=5))),
        {"inference_timesteps": "5", "allowed": "4, 6, 10"},
        None,
    ),
}


@pytest.mark.parametrize("reason", STATUSES)
async def test_a_status_has_its_reason_with_values_and_the_missing_thing(serve_front, details_of, reason) -> None:
    call, values, resource = STATUSES[reason]
    async with serve_front() as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(served)
    details = details_of(raised.value)
    assert raised.value.code().name == rows()[reason][0]
    assert (details.reason, details.values, details.resource) == (reason, values, resource)


async def test_a_long_name_leaves_the_status_below_8_kb(serve_front, details_of) -> None:
    async with serve_front() as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.GetVoice(pb.GetVoiceRequest(id=LONG_NAME))
    details = details_of(raised.value)
    assert LONG_NAME.startswith(details.values["voice"].removesuffix("…"))
    assert len(details.values["voice"].encode()) <= 200
    assert details.size < 3000
