"""The wheel that `pip install voxcpm-grpc` installs, built here without network."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from voxcpm_grpc import __version__

ROOT = Path(__file__).parent.parent
SOURCES = {
    "voxcpm_grpc": ROOT / "voxcpm_grpc",
    "voxcpm_server": ROOT / "server/voxcpm_server",
    "voxcpm_client": ROOT / "clients/python/voxcpm_client",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (path,) = folder.glob("*.whl")
    assert path.name == f"voxcpm_grpc-{__version__}-py3-none-any.whl"
    assert path.stat().st_size < 32_000_000  # of which the voice may have 30
    with zipfile.ZipFile(path) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"voxcpm_grpc-{__version__}.dist-info/{name}").decode()


def test_it_holds_three_packages_and_nothing_else(wheel):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {*SOURCES, f"voxcpm_grpc-{__version__}.dist-info"}
    assert not [name for name in wheel.namelist() if "__pycache__" in name or "/test_" in name]


def test_every_module_and_the_voice_are_in_it(wheel):
    shipped = set(wheel.namelist())
    for package, folder in SOURCES.items():
        modules = {f"{package}/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*.py")}
        assert modules
        assert modules <= shipped
    stubs = {f"voxcpm_grpc/v1/{name}" for name in ("tts_pb2.py", "tts_pb2.pyi", "tts_pb2_grpc.py")}
    assert stubs <= shipped
    folder = ROOT / "voxcpm_grpc/demo"
    voice = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    needed = {"config.json", "tokenizer.json", "model.safetensors", "audiovae.safetensors", "languages.json"}
    needed.add("presets/presets.json")
    assert voice.keys() >= {*needed, "README.md", "NOTICE"}
    assert sum(map(len, voice.values())) <= 30_000_000
    for name, data in voice.items():
        assert wheel.read(f"voxcpm_grpc/demo/{name}") == data
    assert {"voxcpm_grpc/py.typed", "voxcpm_client/py.typed"} <= shipped


def test_the_licence_and_the_notices_travel_along(wheel):
    for name in ("LICENSE", "NOTICE", "voxcpm_grpc/demo/NOTICE"):
        assert metadata(wheel, f"licenses/{name}") == (ROOT / name).read_text("utf-8")
    assert Parser().parsestr(metadata(wheel, "METADATA"))["License-Expression"] == "Apache-2.0"


def test_the_base_installation_is_a_client(wheel):
    requirements = Parser().parsestr(metadata(wheel, "METADATA")).get_all("Requires-Dist", [])
    base = {requirement.partition(">")[0] for requirement in requirements if "extra ==" not in requirement}
    assert base == {"click", "googleapis-common-protos", "grpcio", "grpcio-status", "numpy", "protobuf"}
    server = {requirement.partition(">")[0] for requirement in requirements if "extra == 'server'" in requirement}
    assert {"torch", "safetensors", "tokenizers", "pydantic"} <= server
    assert "voxcpm-grpc = voxcpm_client.cli:main" in metadata(wheel, "entry_points.txt")
