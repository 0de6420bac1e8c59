"""The models of a server, each with its engines, its voices and its rules for requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from voxcpm_grpc.aio.threads import IoThreads
from voxcpm_grpc.audio.uploads import DecodePool
from voxcpm_grpc.errors import NotFound, Reason
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Adapter, ModelInfo
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server.speech.session import Session
from voxcpm_server.values.outputs import ModelSummary
from voxcpm_server.voices import presets
from voxcpm_server.voices.builder import VoiceBuilder
from voxcpm_server.voices.catalog import VoiceCatalog
from voxcpm_server.voices.store.store import VoiceStore
from voxcpm_server.wire.generate import RequestReader
from voxcpm_server.wire.uploads import UploadReader

MAX_NAME = 80  # characters of a wrong name in an error


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is served. `catalog` has its presets, and `builder` encodes with its engines.

    `sessions` are open, each for a stream of Generate or a text that is spoken with a new voice.
    """

    info: ModelInfo
    pool: EnginePool
    builder: VoiceBuilder
    catalog: VoiceCatalog
    reader: RequestReader
    uploads: UploadReader
    sessions: set[Session] = field(default_factory=set[Session])

    @property
    def name(self) -> str:
        return self.info.name

    def streams_with(self, adapter: Adapter) -> int:
        """The number of streams of this process with a turn that speaks with an adapter, or whose next turn does."""
        return sum(adapter in session.adapters for session in self.sessions)

    def engines_with(self, adapter: Adapter) -> int:
        """The number of engines that have read an adapter."""
        return sum(adapter.fingerprint in replica.adapters for replica in self.pool.replicas)


class Models:
    """The models by name. The first one is the default, for requests that name none."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._by_name = {model.name: model for model in models}
        self.default = models[0]
        self.several = len(models) > 1
        self._names = {model.info.fingerprint: model.name for model in reversed(models)}
        for model in models:
            model.catalog.set_others([other.catalog for other in models if other is not model])

    def __iter__(self) -> Iterator[Model]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Model | None:
        """The model of this name, the default for an empty one; None if there is none."""
        return self._by_name.get(name) if name else self.default

    def find(self, name: str, field: str = "model") -> Model:
        """The model of this name, the default for an empty one. Raises NotFound with the names that there are."""
        model = self.get(name)
        if model is None:
            raise NotFound(
                f"there is no model {name[:MAX_NAME]!r}; this server has {', '.join(self._by_name)}; leave model empty "
                "for the first one",
                field=field,
                reason=Reason.MODEL_NOT_FOUND,
                model=name,
            )
        return model

    def name_of(self, fingerprint: str) -> str:
        """The name of the first model with this fingerprint; empty if there is none."""
        return self._names.get(fingerprint, "")

    def summaries(self) -> list[ModelSummary]:
        return [_summary(model, is_default=model is self.default) for model in self]


def _summary(model: Model, *, is_default: bool) -> ModelSummary:
    replicas = model.pool.replicas
    return ModelSummary(
        info=model.info,
        is_default=is_default,
        serving=model.pool.healthy,
        presets=tuple(model.catalog.presets),
        default_voice=model.catalog.default,
        engines=len(replicas),
        engines_ready=sum(replica.ready for replica in replicas),
    )


async def load_models(
    pools: Sequence[EnginePool],
    directories: Sequence[Path | None],
    store: VoiceStore,
    decoder: DecodePool,
    threads: IoThreads,
    settings: Settings,
) -> Models:
    """The models, each with the presets of its checkpoint, which its engines encode. Raises StartupError.

    pools: of each model; its engines are ready
    directories: the checkpoint of each model; None for one without presets
    """
    models: list[Model] = []
    for pool, directory in zip(pools, directories, strict=True):
        catalog = VoiceCatalog(store, pool.info.fingerprint, model_names(pools))
        builder = VoiceBuilder(pool, decoder, catalog, threads, settings.limits)
        listed = () if directory is None else await threads.run(presets.read, directory)
        wanted = settings.voices.default if not models or settings.voices.default == "none" else "auto"
        await presets.load(catalog, pool.info, listed, builder, wanted)
        in_text = settings.text.style_in_text
        reader = RequestReader(pool.info, settings.limits, pool.adapters.find, style_in_text=in_text)
        models.append(Model(pool.info, pool, builder, catalog, reader, UploadReader(reader)))
    return Models(models)


def model_names(pools: Sequence[EnginePool]) -> Mapping[str, str]:
    """The names of the models by the fingerprints of their checkpoints; of the same checkpoint the first one."""
    return {pool.info.fingerprint: pool.info.name for pool in reversed(pools)}
