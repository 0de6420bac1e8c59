"""buildah builds the image for CPUs from the Dockerfile, and its server runs in it without root.

The base image is made of Debian's packages, because no registry of images is asked. Needs root, for chroot.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.servers import deployment
from support.servers.ports import free_address
from support.servers.uploads import tone
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_client import Client

BASE = "localhost/python:debian"
IMAGE = "localhost/voxcpm-grpc:cpu"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

pytestmark = pytest.mark.timeout(1500)


@dataclass(frozen=True)
class Buildah:
    """buildah with images in a folder."""

    folder: Path

    def command(self, *arguments: str | Path) -> list[str | Path]:
        places = ("--root", self.folder / "images", "--runroot", self.folder / "run", "--storage-driver", "vfs")
        return [self.folder / "buildah", *places, *arguments]

    def __call__(self, *arguments: str | Path) -> str:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf")}

    def build(self, name: str, *options: str | Path) -> None:
        policy = ("--signature-policy", self.folder / "policy.json")
        self("bud", *policy, "--isolation", "chroot", "--format", "docker", "--pull-never", "--tag", name, *options)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    """The program finds its libraries by itself, because it starts itself again without variables."""
    folder = tmp_path_factory.mktemp("buildah")
    found = shutil.which("buildah")
    assert found
    shutil.copy(found, folder / "buildah")
    libraries = os.environ["LD_LIBRARY_PATH"]
    subprocess.run(["patchelf", "--set-rpath", libraries, folder / "buildah"], check=True)
    (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (folder / "registries.conf").write_text("unqualified-search-registries = []\n")
    return Buildah(folder)


@pytest.fixture(scope="module")
def base(buildah: Buildah) -> str:
    """An image as python:…-slim: Debian with a Python and this host's configuration of pip."""
    root = buildah.folder / "root"
    program = shutil.which("debootstrap")
    assert program
    scripts = Path(os.environ["SYSTEM_TEST_DEBIAN"]) / "usr/share/debootstrap"
    options = ("--variant=minbase", f"--include={','.join(PACKAGES)}")
    subprocess.run(
        [program, *options, "bookworm", root],
        check=True,
        capture_output=True,
        env={**os.environ, "DEBOOTSTRAP_DIR": str(scripts), "LD_LIBRARY_PATH": ""},
    )
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    (root / "etc/pip.conf").write_text(pip_configuration())
    for constraints in re.findall(r"^constraint = (/\S+)", pip_configuration(), re.MULTILINE):
        copied = root / Path(constraints).relative_to("/")
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(constraints, copied)
    archive = buildah.folder / "base.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    shutil.rmtree(root)
    (buildah.folder / "Base").write_text("FROM scratch\nADD base.tar /\n")
    buildah.build(BASE, "--file", buildah.folder / "Base", buildah.folder)
    archive.unlink()
    return BASE


def pip_configuration() -> str:
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    values = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE))
    values.pop("extra-index-url", None)
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


@pytest.fixture(scope="module")
def image(buildah: Buildah, base: str) -> str:
    folders = [Path(found) for found in re.findall(r"find-links = (/\S+)", pip_configuration())]
    volumes = [option for folder in folders for option in ("--volume", f"{folder}:{folder}:ro")]
    index = os.environ.get("TORCH_INDEX", "") if not folders else ""
    options = (
        "--build-arg",
        f"PYTHON_IMAGE={base}",
        *(("--build-arg", f"TORCH_INDEX={index}") if index or folders else ()),
    )
    local = [wheel for folder in folders for wheel in folder.glob("torch-*.whl")]
    if local:  # a wheel of this host, as precise as its name
        options += ("--build-arg", f"TORCH_VERSION={local[0].name.split('-')[1]}")
    buildah.build(IMAGE, *options, *volumes, "--target", "cpu", "--file", deployment.DOCKERFILE, deployment.ROOT)
    return IMAGE


@pytest.fixture(scope="module")
def container(buildah: Buildah, image: str) -> str:
    return buildah("from", "--pull-never", image)


def config(buildah: Buildah, image: str) -> dict[str, Any]:
    return json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]


def test_the_image_says_how_to_run_check_and_stop_it(buildah, image):
    found = config(buildah, image)
    assert found["User"] == "10001:10001"
    assert found["Entrypoint"] == ["tini", "--", "voxcpm-grpc"] and found["Cmd"] == ["serve"]
    assert found["Healthcheck"]["Test"] == ["CMD", "voxcpm-grpc", "health"]
    assert found["StopSignal"] == "SIGTERM"
    assert found["Volumes"] == {"/data": {}}
    assert found["ExposedPorts"].keys() == {"50051/tcp", "8000/tcp", "9464/tcp"}


def test_the_image_has_neither_sources_nor_compilers(buildah, container):
    root = Path(buildah("mount", container))
    try:
        assert not [name for name in ("src", "build", "wheels") if (root / name).exists()]
        assert not (root / "usr/bin/gcc").exists()
        site = next((root / "opt/voxcpm/lib").glob("python3*/site-packages"))
        expected = {"voxcpm_server", "voxcpm_grpc_demo", "s3fs", "jwt", "opentelemetry", "uvicorn", "inflect"}
        assert expected <= {one.name for one in site.iterdir()}
        data = (root / "data").stat()
        assert (data.st_uid, data.st_gid, data.st_mode & 0o777) == (10001, 0, 0o770)
        assert not [one.name for one in site.iterdir() if one.name.startswith("nvidia")], "a build of PyTorch for CUDA"
    finally:
        buildah("umount", container)


@contextlib.contextmanager
def served(buildah: Buildah, container: str, user: str, address: str, web: str) -> Iterator[psutil.Process]:
    """The first process of the container, with the command of the image."""
    found = config(buildah, IMAGE)
    flags = ("--listen", address, "--http.listen", web, "--metrics.listen", "127.0.0.1:0")
    command = [*found["Entrypoint"], *found["Cmd"], *flags]
    run = buildah.command("run", "--isolation", "chroot", "--user", user, container, "--", *command)
    with (buildah.folder / "server.log").open("w") as log:
        parent = subprocess.Popen(run, stdout=log, stderr=log, env=buildah.environment)
        try:
            wait_until(lambda: parent.poll() is not None or first(parent.pid))
            process = first(parent.pid)
            assert process, (buildah.folder / "server.log").read_text()
            yield process
        finally:
            if (process := first(parent.pid)) is not None:
                process.send_signal(signal.SIGTERM)
            parent.wait(HANG_SECONDS)


def first(pid: int) -> psutil.Process | None:
    """tini below a process of buildah."""
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(pid).children(recursive=True)
        return next((one for one in below if one.name() == "tini"), None)
    return None


@pytest.mark.parametrize(("user", "group"), [(10001, 10001), (12345, 0)], ids=["own user", "any user of the group 0"])
def test_a_server_in_the_image_runs_without_root_is_healthy_speaks_and_drains(buildah, image, user, group):
    container = buildah("from", "--pull-never", image)
    address, web = free_address(), free_address()
    probe = buildah.command(
        "run",
        "--isolation",
        "chroot",
        "--user",
        f"{user}:{group}",
        "--env",
        f"VOXCPM_CLIENT_TARGET={address}",
        container,
        "--",
        "voxcpm-grpc",
        "health",
    )

    def healthy() -> bool:
        return subprocess.run(probe, capture_output=True, env=buildah.environment).returncode == 0

    with served(buildah, container, f"{user}:{group}", address, web) as process:
        wait_until(lambda: not process.is_running() or healthy())
        assert process.is_running(), (buildah.folder / "server.log").read_text()
        tree = [process, *process.children(recursive=True)]
        assert {one.uids().effective for one in tree} == {user}
        with Client(address, timeout=HANG_SECONDS) as client:
            assert client.say("Hello.").samples.size
            client.add_reference(tone(), name="Ada")
        body = json.dumps({"input": "Hello.", "voice": "Ada", "response_format": "wav"}).encode()
        request = urllib.request.Request(f"http://{web}/v1/audio/speech", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as response:
            assert response.read().startswith(b"RIFF")
        process.send_signal(signal.SIGTERM)
        process.wait(HANG_SECONDS)
    log = (buildah.folder / "server.log").read_text()
    assert "health serving=False" in log and "Traceback" not in log
    root = Path(buildah("mount", container))
    written = [path for path in root.rglob("*") if not path.is_symlink() and path.lstat().st_uid == user]
    outside = [path for path in written if path.relative_to(root).parts[0] not in ("data", "tmp")]
    buildah("umount", container)
    assert outside == [], "a read-only root would refuse these"
    kept = buildah("run", "--isolation", "chroot", "--user", f"{user}:{group}", container, "--", "find", "/data")
    assert "voices" in {Path(path).name for path in kept.split()}
