"""The server under test: the one at `--target`, or one that the tests start and stop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from support.engines.checkpoints import TINY
from support.servers.admin_stats import Admin
from support.servers.guarded_servers import Guarded, guarded_server
from support.servers.running import ADMIN, serving
from support.servers.targets import RUN_LABEL, Service, Target
from support.servers.uploads import tone

from tools.make_qwen3_checkpoint import write_checkpoint
from voxcpm_grpc.v1 import tts_pb2 as pb

ROOT = Path(__file__).parents[2]
QWEN3 = "qwen3-"  # begins the names of the tiny checkpoints of Qwen3-TTS, which are made for the tests
WITHOUT_RECORDINGS = tuple(f"{QWEN3}{variant}" for variant in ("custom06", "custom17", "design"))

NEEDS: dict[str, Callable[[pb.GetModelInfoResponse], bool]] = {  # marks, and whether the model has what they need
    "latents": lambda info: info.feat_dim > 0,
    "timesteps": lambda info: bool(info.inference_timesteps),
    "presets": lambda info: bool(info.presets),
    "prompts": lambda info: pb.VOICE_KIND_PROMPT in info.voice_kinds,
    "references": lambda info: pb.VOICE_KIND_REFERENCE in info.voice_kinds,
    "styles": lambda info: pb.VOICE_KIND_PROMPT in info.voice_kinds and not info.no_styles,
}


@pytest.fixture(scope="session")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint to serve. If it speaks with recordings, it has the presets of the bundled voice."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    given = str(request.config.getoption("--model"))
    if given.startswith(QWEN3):
        write_checkpoint(folder, given.removeprefix(QWEN3))
    else:
        shutil.copytree(given or TINY, folder)
    if given not in WITHOUT_RECORDINGS:
        shutil.copytree(ROOT / "voxcpm_grpc/demo/presets", folder / "presets")
    return folder


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    option = request.config.getoption
    if address := str(option("--target")):
        ca = Path(str(option("--ca"))) if option("--ca") else None
        given = Target(address, ca, str(option("--api-key")), str(option("--admin")))
        yield given
        asyncio.run(remove_voices(given))
        return
    model = request.getfixturevalue("model")
    with serving(tmp_path_factory.mktemp("voices"), "--admin.listen", "127.0.0.1:0", model=model) as server:
        [admin] = ADMIN.findall(server.log)
        made = Target(server.address, admin=admin, server=server)
        yield made
        asyncio.run(remove_voices(made))
        assert not server.fault(), server.fault()


async def remove_voices(target: Target) -> None:
    """Delete the voices that this run has stored."""
    async with target.service() as service:
        while True:
            page = await service.ListVoices(pb.ListVoicesRequest(labels={RUN_LABEL: target.run}))
            for handle in page.handles:
                await service.DeleteVoice(pb.DeleteVoiceRequest(id=handle.id, allow_missing=True))
            if not page.handles:
                return


@pytest.fixture(scope="session")
def own(request: pytest.FixtureRequest) -> None:
    """Skips a test that stops or configures its server, if the server is somebody else's."""
    if request.config.getoption("--target"):
        pytest.skip("needs a server of its own, which it configures or stops")


@pytest.fixture(scope="session")
def strict(own: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with little room in its engine, and little time for uploads."""
    flags = ("--engine.max-model-len", "200", "--limits.upload-seconds", "0.5")
    with serving(tmp_path_factory.mktemp("voices"), *flags, model=model) as server:
        yield Target(server.address, server=server)


@pytest.fixture(scope="session")
def guarded_and_callers(
    own: None, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Guarded, dict[str, Target]]]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), model) as made:
        yield made


@pytest.fixture
def guarded(guarded_and_callers: tuple[Guarded, dict[str, Target]]) -> Guarded:
    """A server with small limits that needs credentials."""
    return guarded_and_callers[0]


@pytest.fixture
async def callers(guarded_and_callers: tuple[Guarded, dict[str, Target]]) -> dict[str, Target]:
    """The callers a, b and operator of the guarded server, which serves no call at the begin of the test."""
    callers = guarded_and_callers[1]
    operator = callers["operator"]
    async with operator.channel(address=operator.admin) as channel:
        await Admin(channel, operator.metadata).until(lambda usage: not usage.calls and not usage.slots)
    return callers


@pytest.fixture
async def service(target: Target) -> AsyncIterator[Service]:
    async with target.service() as connected:
        yield connected


@pytest.fixture
async def info(service: Service) -> pb.GetModelInfoResponse:
    return await service.GetModelInfo(pb.GetModelInfoRequest())


@pytest.fixture(autouse=True)
async def taken(request: pytest.FixtureRequest, target: Target) -> None:
    """Skips a test that needs what the model does not take."""
    marks = [name for name in NEEDS if request.node.get_closest_marker(name)]
    if marks:
        async with target.service() as service:
            info = await service.GetModelInfo(pb.GetModelInfoRequest())
        if lacking := [name for name in marks if not NEEDS[name](info)]:
            pytest.skip(f"needs a model that takes {lacking[0]}")


@pytest.fixture
async def admin(target: Target) -> AsyncIterator[Admin]:
    """The statistics of the server, which serves no call at the begin of the test."""
    if not target.admin:
        pytest.skip("the address of the admin service is not known; give it with --admin HOST:PORT")
    async with target.channel(address=target.admin) as channel:
        made = Admin(channel, target.metadata)
        await made.until(lambda usage: not usage.calls and not usage.slots)
        yield made


@pytest.fixture(autouse=True)
async def still_serving(target: Target) -> AsyncIterator[None]:
    """After every test the server is healthy and speaks."""
    yield
    async with target.service() as service:
        health = service.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", timeout=60, wait_for_ready=True) == b"\x08\x01"
        assert (await service.speak(short(), "Still here."))[-1].summary.total_samples


def short() -> pb.GenerateConfig:
    return pb.GenerateConfig(turn=pb.TurnConfig(sampling=pb.Sampling(max_steps=2)))


@pytest.fixture
def recording() -> bytes:
    return tone()
