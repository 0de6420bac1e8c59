"""The messages between fronts, engines and their host."""

from __future__ import annotations

import msgspec
import numpy as np

from voxcpm_grpc.errors import VoxCPMError, code_of, from_code, reason_of
from voxcpm_grpc.events import CodecChunk, Event, History
from voxcpm_grpc.ipc.front_messages import AskFront, AskFronts, FromFront, FrontAnswer, FrontAnswers, ToFronts
from voxcpm_grpc.progress import Progress
from voxcpm_grpc.request import Adapter, ModelInfo, Request, Role, Stats

HEARTBEAT_SECONDS = 0.25
"""The interval between two heartbeats of a process."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


# ---- commands to an engine


class Submit(_Message, frozen=True):
    """Start a request.

    The engine makes up to `limit` chunks, those of `history` included, until an `Allow` raises that. `work` is the
    expected number of steps. `history` is what another engine has made.
    """

    request: Request
    limit: int
    work: float = 0.0
    history: History | None = None


class Check(_Message, frozen=True):
    """Find out if the engine could run a request, without running it. Ends as a codec job without a result."""

    request: Request


class Allow(_Message, frozen=True):
    """Let a request make up to `limit` chunks in all. A lower limit than before is ignored, and so is an unknown id."""

    id: str
    limit: int


class Append(_Message, frozen=True):
    """Append to the text of an open request, of which it is the last part or not. An unknown id is ignored.

    `work` is the number of steps that are expected beside those before.
    """

    id: str
    text: str
    last: bool
    work: float = 0.0


class Cancel(_Message, frozen=True):
    """Stop a request or a codec job. An unknown id is ignored, because the work may have ended already."""

    id: str


class Encode(_Message, frozen=True):
    """Encode a waveform, float32 [samples] at the model's input rate, as a part of a voice.

    For `log_id` see `Request`.
    """

    id: str
    waveform: np.ndarray
    role: Role
    log_id: str = ""


class Decode(_Message, frozen=True):
    """Decode the content of a part of a voice into audio. For `log_id` see `Request`."""

    id: str
    content: dict[str, np.ndarray]
    log_id: str = ""


Suspected = Submit | Check | Encode | Decode  # such work may have ended an engine


class Try(_Message, frozen=True):
    """Do work that may have ended another engine, when it is its turn: after a `Trying`, and a `Begin` in answer."""

    command: Suspected


class Begin(_Message, frozen=True):
    """Begin the work of a `Try`. An unknown id is ignored."""

    id: str


class AskStats(_Message, frozen=True):
    """Report the statistics after the current step, as an EngineStats with this number."""

    number: int


class Preload(_Message, frozen=True):
    """Read an adapter, and keep it as `Keep` does. Ends as a codec job without a result."""

    id: str
    adapter: Adapter


class Keep(_Message, frozen=True):
    """The adapters that requests of this front may name: the engine reads them before, and keeps no others.

    What a front has sent before is replaced. An engine also reads any other adapter that a request names, and frees it
    after the last such request.
    """

    adapters: tuple[Adapter, ...]


class Stop(_Message, frozen=True):
    """End the process after the current step. A front drains first, without the drain delay if `skip_delay` is true.

    With `at_once` it cuts its calls off instead, also in a drain.
    """

    skip_delay: bool = False
    at_once: bool = False


class Detach(_Message, frozen=True):
    """Cancel the work of a front that has ended, and ignore what still arrives from it."""

    front: str


# ---- commands from the host of the engines to a front


class EngineReady(_Message, frozen=True):
    """An engine, after `restarts` others, takes commands. The front connects to `address` by the name `front`."""

    engine: str
    address: str
    front: str
    info: ModelInfo
    restarts: int


class EngineLost(_Message, frozen=True):
    """An engine is not ready yet, or is lost. The next one is expected in `seconds`; never if they are infinite."""

    engine: str
    seconds: float


class EngineDraining(_Message, frozen=True):
    """An engine leaves service: give it no new work, and let others go on with its streams. An EngineLost follows."""

    engine: str


class EngineStarting(_Message, frozen=True):
    """The progress of an engine that starts, whose name is the source of `progress`."""

    progress: Progress


# ---- between the host of the engines and a front, in both directions


class Registration(msgspec.Struct, frozen=True):
    """The registration of a LoRA adapter under its name, by its id.

    Only one registration may have a name. Requests may choose the adapter while `is_registered` is true; before, the
    front of the registration lets the engines read it. With `is_over` the registration gives its name up.
    """

    id: str
    adapter: Adapter
    is_registered: bool = False
    is_over: bool = False


class AdapterList(_Message, frozen=True):
    """The registrations of the model to which `engine` belongs, its first one.

    A front sends one that has changed. The host sends all to all fronts, after each change. A front whose registration
    is not among them, while another one has the name, came too late.
    """

    engine: str
    registrations: tuple[Registration, ...]


class Failed(_Message, frozen=True):
    """A request, a codec job or the preload of an adapter ended with an error."""

    id: str
    code: str
    message: str
    field: str
    retry_after: float | None
    reason: str = ""
    details: dict[str, str] = {}

    @classmethod
    def of(cls, id: str, error: VoxCPMError) -> Failed:
        reason = reason_of(error)
        return cls(id, code_of(error), error.message, error.field, error.retry_after, reason, error.details)

    def error(self) -> VoxCPMError:
        return from_code(
            self.code,
            self.message,
            field=self.field,
            retry_after=self.retry_after,
            reason=self.reason,
            details=self.details,
        )


Command = (
    Submit
    | Check
    | Allow
    | Append
    | Cancel
    | Encode
    | Decode
    | Try
    | Begin
    | AskStats
    | Preload
    | Keep
    | Stop
    | Detach
    | EngineReady
    | EngineDraining
    | EngineStarting
    | EngineLost
    | AdapterList
    | AskFront
    | FrontAnswers
    | FromFront
)


# ---- reports from an engine to a front, or from a front to the host


class Ready(_Message, frozen=True):
    """The process serves this model. Sent by an engine that has loaded it, and by a front that serves.

    `address` is where fronts connect to the engine.
    """

    info: ModelInfo
    address: str = ""


class Starting(_Message, frozen=True):
    """The process is not ready yet. Sent for each step of its start, and for the progress of a step."""

    progress: Progress


class StartFailed(_Message, frozen=True):
    """The process cannot start. `message` tells the operator why."""

    message: str


class Heartbeat(_Message, frozen=True):
    """The process runs. Sent every `HEARTBEAT_SECONDS`, by a thread beside an engine's loop or by a front's event loop.

    `busy_seconds` is the duration of the current step so far, 0.0 between steps. `slowest_step` is the duration of the
    longest step of the warm-up in seconds, from which the limit for a step is derived. `work` is the number of requests
    and codec jobs of an engine, and with `leaves` a signal has asked it to leave service.
    """

    busy_seconds: float
    slowest_step: float
    work: int = 0
    leaves: bool = False


class CallEvent(_Message, frozen=True):
    """An event of a request, or a piece of a codec job's result."""

    id: str
    body: Event | CodecChunk


class NeedsText(_Message, frozen=True):
    """A request can make no more chunks until more of its text comes, or it can again. Its front knows neither before.

    Reported at once before the first slot, and from then on as often as the external load.
    """

    id: str
    needs: bool


class Trying(_Message, frozen=True):
    """It is the turn of a `Try`. Its front knows so before the engine can end with it."""

    id: str


class ManageEngine(_Message, frozen=True):
    """Take an engine out of service, and start it again with `restart`; or start one again that was taken out."""

    engine: str
    drain: bool
    restart: bool


class ExternalLoad(_Message, frozen=True):
    """The work of an engine for other fronts.

    `streams` counts their streams, but not paused ones, `steps` is what these still need, and `waiting` of
    them have had no slot so far. `batch` and `batch_waiting` of these are batch streams.
    """

    streams: int
    steps: float
    waiting: int = 0
    batch: int = 0
    batch_waiting: int = 0


NO_LOAD = ExternalLoad(streams=0, steps=0.0)
"""The load that a front assumes until the first report."""


class EngineStats(_Message, frozen=True):
    """The statistics of an engine, for all fronts. Sent about once a second while it works, and when it becomes idle.

    `step_seconds` is the time that all steps since its start have taken. `answers` is the number of the AskStats that
    this report answers, 0 for none. `adapters` are the fingerprints of the LoRA adapters that it has read; a change of
    them is reported at once.
    """

    stats: Stats
    step_seconds: float
    process_id: int = 0
    answers: int = 0
    adapters: tuple[str, ...] = ()


Report = (
    Ready
    | Starting
    | StartFailed
    | Heartbeat
    | CallEvent
    | Failed
    | NeedsText
    | Trying
    | ExternalLoad
    | EngineStats
    | AdapterList
    | AskFronts
    | ToFronts
    | ManageEngine
    | FrontAnswer
)
