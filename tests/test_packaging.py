"""The wheels of the package and of the bundled voice, built here without network."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from voxcpm_grpc import __version__
from voxcpm_grpc.v1 import tts_pb2 as pb

ROOT = Path(__file__).parent.parent
VOICE = ROOT / "voxcpm_grpc/demo"
SOURCES = {
    "voxcpm_grpc": ROOT / "voxcpm_grpc",
    "voxcpm_server": ROOT / "server/voxcpm_server",
    "voxcpm_gateway": ROOT / "server/voxcpm_gateway",
    "voxcpm_client": ROOT / "clients/python/voxcpm_client",
}
RESOLVE = "import sys; from voxcpm_grpc.checkpoint import resolve; print(resolve('demo'))"
WITHOUT_VOICE = f"import sys; sys.modules['voxcpm_grpc_demo'] = None; {RESOLVE}"


def build(project: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=300)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    path = build(ROOT, tmp_path_factory.mktemp("wheel"))
    assert path.name == f"voxcpm_grpc-{__version__}-py3-none-any.whl"
    assert path.stat().st_size < 1_450_000
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def voice_wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build(VOICE, tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def requirements(wheel: zipfile.ZipFile, extra: str = "") -> dict[str, str]:
    """Bounds of the required packages by their names: those of an extra, or those without one."""
    lines = Parser().parsestr(metadata(wheel, "METADATA")).get_all("Requires-Dist", [])
    parts = [line.partition(";") for line in lines]
    chosen = [one for one, _, marker in parts if ("extra ==" not in marker if not extra else f"'{extra}'" in marker)]
    return {found[1]: found[2] for one in chosen if (found := re.match(r"([\w.-]+)(.*)", one.strip()))}


def run(program: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, folders))
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folders[0],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_it_holds_four_packages_and_nothing_else(wheel):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {*SOURCES, f"voxcpm_grpc-{__version__}.dist-info"}
    assert not [name for name in wheel.namelist() if "__pycache__" in name or "/test_" in name]
    assert not [name for name in wheel.namelist() if name.startswith("voxcpm_grpc/demo")]


def test_every_module_and_the_contract_are_in_it(wheel):
    shipped = set(wheel.namelist())
    for package, folder in SOURCES.items():
        modules = {f"{package}/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*.py")}
        assert modules
        assert modules <= shipped
    stubs = {f"voxcpm_grpc/v1/{name}" for name in ("tts_pb2.py", "tts_pb2.pyi", "tts_pb2_grpc.py")}
    assert stubs <= shipped
    for proto in ("voxcpm_grpc/v1/tts.proto", "voxcpm_grpc/v1/admin.proto"):
        assert wheel.read(proto) == (ROOT / "protos" / proto).read_bytes()
    assert {"voxcpm_grpc/py.typed", "voxcpm_client/py.typed"} <= shipped


def test_the_contract_claims_no_domain():
    options = pb.DESCRIPTOR.GetOptions()
    assert options.java_package == pb.DESCRIPTOR.package == "voxcpm_grpc.v1"
    assert options.go_package == "voxcpm_grpc/v1;voxcpmv1"


def test_the_voice_is_a_wheel_of_its_own(voice_wheel):
    files = {path.relative_to(VOICE).as_posix(): path.read_bytes() for path in VOICE.rglob("*") if path.is_file()}
    needed = {"config.json", "tokenizer.json", "model.safetensors", "audiovae.safetensors", "languages.json"}
    needed.add("presets/presets.json")
    assert files.keys() >= {*needed, "README.md", "NOTICE"}
    assert sum(map(len, files.values())) <= 33_000_000
    del files["pyproject.toml"]
    shipped = [name for name in voice_wheel.namelist() if ".dist-info/" not in name]
    assert {name: voice_wheel.read(name) for name in shipped} == {
        f"voxcpm_grpc_demo/{name}": data for name, data in files.items()
    }
    assert metadata(voice_wheel, "licenses/NOTICE") == (VOICE / "NOTICE").read_text("utf-8")


def test_an_installed_server_finds_the_voice_in_its_wheel(wheel, voice_wheel, tmp_path):
    wheel.extractall(tmp_path / "package")
    voice_wheel.extractall(tmp_path / "voice")
    found = run(RESOLVE, tmp_path / "package", tmp_path / "voice")
    assert found.stdout.strip() == str(tmp_path / "voice/voxcpm_grpc_demo"), found.stderr
    missing = run(WITHOUT_VOICE, tmp_path / "package")
    assert "StartupError: the bundled voice is not installed" in missing.stderr
    assert "pip install ./voxcpm_grpc/demo" in missing.stderr


def test_a_checkout_needs_no_installed_voice():
    assert run(WITHOUT_VOICE, ROOT).stdout.strip() == str(VOICE)


def test_the_licence_and_the_notices_travel_along(wheel):
    for name in ("LICENSE", "NOTICE"):
        assert metadata(wheel, f"licenses/{name}") == (ROOT / name).read_text("utf-8")
    assert Parser().parsestr(metadata(wheel, "METADATA"))["License-Expression"] == "Apache-2.0"


def test_the_base_installation_is_a_client(wheel):
    base = {"click", "googleapis-common-protos", "grpcio", "grpcio-status", "numpy", "protobuf"}
    assert requirements(wheel).keys() == base
    assert {"torch", "safetensors", "tokenizers", "pydantic"} <= requirements(wheel, "server").keys()
    assert "voxcpm-grpc = voxcpm_client.cli:main" in metadata(wheel, "entry_points.txt")


def test_the_server_extra_names_the_voice(wheel, voice_wheel):
    of_voice = Parser().parsestr(metadata(voice_wheel, "METADATA"))
    assert requirements(wheel, "server")[of_voice["Name"]] == f"~={of_voice['Version']}"


def test_the_server_admits_no_torch_above_the_one_that_the_tests_run_with(wheel):
    [tested] = re.findall(r"^TORCH_VERSION \?= (\d+)\.(\d+)\.", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    major, minor = map(int, tested)
    bounds = requirements(wheel, "server")["torch"].split(",")
    assert f"<{major}.{minor + 1}" in bounds
    assert ">=2.11" in bounds


def test_the_demo_installs_no_test_tools_and_nothing_that_compiles(wheel):
    """Builds of torch for CUDA bring triton themselves; on a CPU nothing needs it."""
    demo = requirements(wheel).keys() | requirements(wheel, "server").keys()
    assert not demo & {"pytest", "ruff", "pyright", "hypothesis", "ray", "triton", "flash-attn", "hatchling"}
