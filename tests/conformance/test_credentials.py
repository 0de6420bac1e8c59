"""Expired, forged, revoked and missing credentials are refused before anything that the caller sends is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from support.clients.json_tokens import by_hand, token
from support.servers.admin_stats import Admin
from support.servers.guarded_servers import Guarded
from support.servers.targets import Service, Target, config, message, refusal, rest
from support.servers.uploads import tone, upload
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.auth.keys import revoke

DENIED = grpc.StatusCode.UNAUTHENTICATED
STREAMS = ("Generate", "AddPrompt", "AddReference", "AddHifi", "EncodeLatents")
UNARY = ("GetVoice", "ListVoices", "UpdateVoice", "DeleteVoice", "GetModelInfo", "ListModels")
MALFORMED = b"\xff\xff\xff\x12"  # it would be reported if it were parsed


async def check_refused(target: Target, metadata: tuple[tuple[str, str], ...], reason: str) -> None:
    """Every RPC refuses these credentials, with details, and reads no message."""
    async with target.channel() as channel:
        for method in (*STREAMS, *UNARY):
            path = f"/voxcpm_grpc.v1.VoxCPMService/{method}"
            call: Any = (
                channel.stream_stream(path)(iter([MALFORMED]), metadata=metadata, timeout=HANG_SECONDS)
                if method in STREAMS
                else channel.unary_unary(path)(b"", metadata=metadata, timeout=HANG_SECONDS)
            )
            code, text, details = await refusal(call)
            assert code is DENIED and reason in text, (method, code, text)
            assert details.request_id and not details.bad_request and details.retry_seconds is None
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", timeout=HANG_SECONDS) == b"\x08\x01", "health needs no credential"


def bearing(*credentials: str) -> tuple[tuple[str, str], ...]:
    return tuple(("authorization", credential) for credential in credentials)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (bearing(), "has no credential"),
        (bearing("Bearer voxcpm_0123456789ab_" + "A" * 43), "API key is not valid"),
        (bearing("Basic dXNlcjpwYXNz"), "must be `Bearer KEY`"),
        (bearing("Bearer "), "must be `Bearer KEY`"),
        (bearing("Bearer a", "Bearer b"), "several"),
    ],
    ids=["missing", "forged", "another scheme", "empty", "two"],
)
async def test_wrong_keys_are_refused_unread(guarded: Guarded, metadata: Any, reason: str) -> None:
    await check_refused(guarded.caller(""), metadata, reason)


TOKENS: dict[str, Callable[[], str]] = {
    "expired": lambda: token(exp=time.time() - 60),
    "not valid yet": lambda: token(nbf=time.time() + 600),
    "without an end": lambda: token(exp=None),
    "signed by another": lambda: token(key=ec.generate_private_key(ec.SECP256R1())),
    "unsigned": lambda: by_hand(None, "none"),
    "signed with a shared secret": lambda: by_hand("x" * 64, "HS256"),
    "cut": lambda: token()[:-8],
}


@pytest.mark.parametrize("made", TOKENS)
async def test_wrong_tokens_are_refused_unread(guarded: Guarded, made: str) -> None:
    await check_refused(guarded.caller(""), bearing(f"Bearer {TOKENS[made]()}"), "the token")


@pytest.fixture
def revoked(guarded: Guarded) -> Iterator[Target]:
    target = guarded.new_caller("c")
    yield target
    revoke("c", guarded.keys)


async def accepted(target: Target) -> bool:
    async with target.service() as service:
        try:
            return bool(await service.GetModelInfo(pb.GetModelInfoRequest()))
        except grpc.aio.AioRpcError as error:
            assert error.code() is DENIED
            return False


async def until_accepted(target: Target, expected: bool) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while await accepted(target) is not expected:
        assert time.monotonic() < deadline


async def test_a_revoked_key_is_refused_and_its_open_stream_goes_on(guarded: Guarded, revoked: Target) -> None:
    await until_accepted(revoked, True)
    async with revoked.service() as service:
        call = service.Generate()
        for body in (config(), "Hello there. "):
            await call.write(message(body))
        assert (await call.read()).HasField("header")
        revoke("c", guarded.keys)
        await until_accepted(revoked, False)
        await check_refused(guarded.caller(""), revoked.metadata, "API key is not valid")
        await call.write(message("How are you?"))
        await call.done_writing()
        assert (await rest(call))[-1].summary.segments == 2


async def test_a_valid_token_speaks(guarded: Guarded) -> None:
    async with guarded.caller(token()).service() as service:
        assert (await service.speak(config(), "Hello."))[-1].summary.total_samples


async def add(service: Service) -> str:
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (0, tone()))
    return (await service.stream("AddReference", messages))[0].handle.id


@pytest.mark.references
async def test_a_voice_of_an_operator_is_not_changed(callers: dict[str, Target]) -> None:
    """It is everyone's: others may speak with it, and only an admin can change it."""
    async with callers["operator"].service() as operator, callers["a"].service() as a:
        id = await add(operator)
        try:
            assert (await a.GetVoice(pb.GetVoiceRequest(id=id))).handle.id == id
            for change in (
                a.DeleteVoice(pb.DeleteVoiceRequest(id=id)),
                a.UpdateVoice(pb.UpdateVoiceRequest(id=id, display_name="mine")),
            ):
                code, text, details = await refusal(change)
                assert code is grpc.StatusCode.PERMISSION_DENIED and "only an admin can change it" in text
                assert details.request_id and not details.bad_request
        finally:
            await operator.DeleteVoice(pb.DeleteVoiceRequest(id=id))


async def test_statistics_are_for_operators(guarded: Guarded, callers: dict[str, Target]) -> None:
    reasons = {
        "a": (grpc.StatusCode.PERMISSION_DENIED, "only admins may call VoxCPMAdminService"),
        "": (DENIED, "has no credential"),
    }
    for name, (expected, reason) in reasons.items():
        metadata = callers[name].metadata if name else ()
        async with callers["a"].channel(address=callers["a"].admin) as channel:
            code, text, details = await refusal(Admin(channel, metadata).stats())
            assert code is expected and reason in text
            assert details.request_id and not details.bad_request
    async with callers["operator"].channel(address=callers["operator"].admin) as channel:
        assert (await Admin(channel, callers["operator"].metadata).usage()).calls == 0


@pytest.mark.references
async def test_a_voice_of_another_caller_does_not_exist(callers: dict[str, Target]) -> None:
    async with callers["a"].service() as a, callers["b"].service() as b:
        id = await add(a)
        try:
            conditioned = config(conditioning=pb.Conditioning(voice=id))
            for call in (
                b.GetVoice(pb.GetVoiceRequest(id=id)),
                b.DeleteVoice(pb.DeleteVoiceRequest(id=id)),
                b.UpdateVoice(pb.UpdateVoiceRequest(id=id, display_name="mine")),
                b.speak(conditioned, "Hello."),
            ):
                assert (await refusal(call))[0] is grpc.StatusCode.NOT_FOUND
            listed = await b.ListVoices(pb.ListVoicesRequest(page_size=1000))
            assert id not in {handle.id for handle in listed.handles}
            assert (await a.speak(conditioned, "Hello."))[-1].summary.total_samples
        finally:
            await a.DeleteVoice(pb.DeleteVoiceRequest(id=id))
