"""The log of a process: lines of text or of JSON on stderr, at the level of the settings."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

OURS = ("voxcpm_grpc", "voxcpm_server", "voxcpm_gateway", "voxcpm_client.wyoming")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request id of the RPC that the current task works for; empty without one."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The lowest level of lines, and their format. Child processes receive it from their parents."""

    level: str = "info"
    format: Literal["text", "json"] = "text"


DEFAULT = LogOptions()


def set_up(options: LogOptions, process: str = "") -> None:
    """Write log lines of a level and above to stderr, those of other packages only from WARNING on.

    process: name of the process in each line; empty for the main process
    """
    handler = logging.StreamHandler(sys.stderr)
    if options.format == "json":
        handler.setFormatter(JsonFormatter(process))
        logging.captureWarnings(True)
        sys.excepthook, threading.excepthook = _log_exception, _log_thread_exception
    else:
        name = f" {process}" if process else ""
        separator = ":" if process else ""
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s{name} %(name)s{separator} %(message)s"))
    level = options.level.upper()
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelNamesMapping()[level]), handlers=[handler], force=True
    )
    for package in OURS:
        logging.getLogger(package).setLevel(level)


class LogLine:
    """A message with typed fields. As text it is `event key=value ...`, where the key of `request_id` is `id`.

    A field that is None or empty is `-` in text, and left out of JSON.
    """

    def __init__(self, event: str, **fields: str | int | float | None) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        words = (f"{'id' if key == 'request_id' else key}={_word(key, value)}" for key, value in self.fields.items())
        return " ".join((self.event, *words))


def _word(key: str, value: str | int | float | None) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.3f}"
        case str():
            return repr(value) if key == "error" else log_word(value)
    return str(value)


class JsonFormatter(logging.Formatter):
    """Formats each record as an object of JSON in one line.

    Its keys are time, level, logger and message, process if it is not the main one, the fields of a LogLine,
    request_id if the record belongs to an RPC, and error_trace with the traceback of an exception.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = record.msg if isinstance(record.msg, LogLine) else None
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": line.event if line else record.getMessage(),
            "process": self._process,
            "request_id": request_id.get(),
            **({key: value for key, value in line.fields.items() if value != ""} if line else {}),
        }
        if record.exc_info:
            values["error_trace"] = self.formatException(record.exc_info)
        kept = {key: _rounded(value) for key, value in values.items() if value not in (None, "")}
        return json.dumps(kept).replace("\x7f", "\\u007f")  # all other control characters are escaped


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    return value


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logging.getLogger(OURS[0]).critical("the process ends with an exception", exc_info=(kind, error, trace))


def _log_thread_exception(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not issubclass(failed.exc_type, SystemExit):
        logging.getLogger(OURS[0]).error(
            "a thread ended with an exception", exc_info=(failed.exc_type, failed.exc_value, failed.exc_traceback)
        )


def log_word(text: str) -> str:
    """The text as one word of a key=value log line."""
    return re.sub(r"[^\w.:/@+\[\]-]", "_", text) or "-"
