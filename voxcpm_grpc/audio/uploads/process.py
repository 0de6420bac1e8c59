"""A process that decodes one recording after the other, and the pipe to it.

Messages are JSON and bytes, never pickles, so that a compromised decoder cannot run code in its parent.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from voxcpm_grpc import logs
from voxcpm_grpc.audio.formats import AudioFormat, BadAudio, Encoding
from voxcpm_grpc.audio.uploads.cleaning import NO_CLEANING, Cleaning, clean
from voxcpm_grpc.audio.uploads.decode import Decoded, decode
from voxcpm_grpc.audio.uploads.limits import MIB, WorkerLimits, memory_for
from voxcpm_grpc.audio.uploads.voice_check import Flaw, FlawKind, check_voice, flaws
from voxcpm_grpc.errors import Internal, VoxCPMError, code_of, from_code, reason_of
from voxcpm_grpc.helper_process import READY, HelperProcess
from voxcpm_grpc.logs import LogOptions

log = logging.getLogger(__name__)
STARTUP_SECONDS = 60.0
OTHERS_SIGNALS = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT}
REMEDY = "send it as WAV or FLAC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A recording to decode, with the arguments of `audio.decode`."""

    data: bytes
    format_hint: AudioFormat | None
    cleaning: Cleaning = NO_CLEANING
    target_rate: int
    max_seconds: float
    max_bytes: int

    def options(self, cpu_seconds: float) -> bytes:
        """The message before the recording."""
        return json.dumps(
            {
                "hint": asdict(self.format_hint) if self.format_hint else None,
                "cleaning": asdict(self.cleaning),
                "target_rate": self.target_rate,
                "max_seconds": self.max_seconds,
                "max_bytes": self.max_bytes,
                "memory_bytes": memory_for(len(self.data), self.max_seconds),
                "cpu_seconds": cpu_seconds,
            }
        ).encode()


class WorkerStopped(Exception):
    """The worker was killed or stopped by something else than the recording."""


class DecodeWorker:
    """A worker process and the pipe to it. Only one thread uses it at a time.

    timeout: longest duration of a job, after which the process is killed
    cpu_seconds: longest computing time of a job
    """

    def __init__(self, timeout: float, cpu_seconds: float, log_options: LogOptions) -> None:
        self.helper = HelperProcess(_serve, log_options, name="decode")
        self._timeout = timeout
        self._cpu_seconds = cpu_seconds

    def start(self) -> None:
        """Start the process if it does not run, and wait until it is ready. Raises Internal if it does not start."""
        with suppress(EOFError, OSError):
            if self.helper.start(STARTUP_SECONDS) == READY:
                return
        self.helper.stop()
        if not self.helper.closed:
            log.error("a decode worker did not start")
        raise Internal

    def decode(self, job: Job) -> Decoded:
        """Decode and check a recording. Raises BadAudio, other errors of `audio.decode`, and WorkerStopped."""
        started, pipe = time.monotonic(), self.helper.pipe
        # The kill ends all waits below, also while sending.
        watchdog = threading.Timer(self._timeout, self.helper.process.kill)
        watchdog.start()
        try:
            pipe.send_bytes(job.options(self._cpu_seconds))
            pipe.send_bytes(job.data)
            reply = json.loads(pipe.recv_bytes())
            if "code" not in reply:
                waveform = np.frombuffer(pipe.recv_bytes(), np.float32).copy()
                found = tuple(Flaw(FlawKind(kind), text) for kind, text in reply.pop("flaws"))
                return Decoded(waveform=waveform, flaws=found, **reply)
        except (EOFError, OSError):
            self.helper.stop()
            status = self.helper.process.exitcode
            seconds = time.monotonic() - started
            log.warning("a decode worker ended status=%s after %.1f s of %d bytes", status, seconds, len(job.data))
            raise self._reason(status) from None
        finally:
            watchdog.cancel()
        if reply["code"] == code_of(BadAudio("")):
            raise BadAudio(reply["message"])
        raise from_code(**reply)

    def _reason(self, status: int | None) -> Exception:
        """The error of a job whose worker ended. A negative status is a signal; None if another thread read it."""
        if status == -signal.SIGXCPU:
            return BadAudio(f"the audio takes more than {self._cpu_seconds:g} s of computing time to decode; {REMEDY}")
        if status is None or status >= 0 or status in OTHERS_SIGNALS:
            return WorkerStopped()
        return BadAudio(f"the audio could not be decoded: it crashes its decoder; {REMEDY}")


def _serve(pipe: Connection, log_options: LogOptions) -> None:
    """Run a worker until the parent closes the pipe."""
    logs.set_up(log_options, "decode")
    with suppress(ImportError):  # the imports happen before the first job
        import av
        import av.error  # noqa: F401
        import soxr  # noqa: F401
    limits = WorkerLimits()
    with suppress(EOFError, OSError):  # the parent may end at any time, also before this process is ready
        pipe.send_bytes(READY)
        while not limits.worn_out:
            options, data = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
            memory = options.pop("memory_bytes")
            limits.begin_job(memory, options.pop("cpu_seconds"))
            _reply(pipe, options, data, memory)


def _reply(pipe: Connection, options: dict[str, Any], data: bytes, memory: int) -> None:
    hint, cleaning = options.pop("hint"), Cleaning(**options.pop("cleaning"))
    waveform = None
    try:
        format_hint = AudioFormat(Encoding(hint["encoding"]), hint["sample_rate"]) if hint else None
        decoded, rate = decode(data, format_hint=format_hint, **options), options["target_rate"]
        cleaned = clean(decoded.waveform, rate, cleaning)
        check_voice(cleaned, rate, decoded.gain)
        found = (*decoded.flaws, *flaws(cleaned, rate, decoded.full_scale, decoded.gain))
        waveform = np.ascontiguousarray(cleaned, np.float32)
        reply: dict[str, Any] = {
            "source_rate": decoded.source_rate,
            "seconds": decoded.seconds if len(cleaned) == len(decoded.waveform) else len(cleaned) / rate,
            "full_scale": decoded.full_scale,
            "gain": decoded.gain,
            "flaws": [(flaw.kind.value, flaw.text) for flaw in found],
        }
    except VoxCPMError as error:
        reply = _failure(error)
    except MemoryError:
        reply = _failure(BadAudio(f"the audio needs more than {memory // MIB} MiB of memory to decode; {REMEDY}"))
    except Exception:
        log.exception("decoding %d bytes failed", len(data))
        reply = _failure(Internal())
    pipe.send_bytes(json.dumps(reply).encode())
    if waveform is not None:
        pipe.send_bytes(waveform.data)


def _failure(error: VoxCPMError) -> dict[str, Any]:
    return {
        "code": code_of(error),
        "message": error.message,
        "reason": reason_of(error),
        "details": error.details,
    }
