"""Errors of downloads from Hugging Face, with their remedies."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.machine.home import home

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}


class Interrupted(StartupError):
    """A download that was broken off. Another attempt continues it."""


@contextmanager
def remedied(model: str, revision: str | None) -> Iterator[None]:
    """Turn errors of the block into StartupError."""
    try:
        yield
    except (StartupError, ImportError):
        raise
    except Exception as error:
        if remedy := remedy_of(error, model, revision):
            raise StartupError(remedy) from error
        reason = str(error).strip().partition("\n")[0]
        raise Interrupted(
            f"downloading {model} was broken off by {type(error).__name__}: {reason}; try again, what has arrived is "
            "kept"
        ) from error


def remedy_of(error: Exception, model: str, revision: str | None) -> str | None:
    """The cause of an error and its remedy; None for a broken transfer, which may succeed in another attempt."""
    from huggingface_hub import errors

    match error:
        case RuntimeError() if home() is None:
            return "this user has no home directory: set HF_HOME to a folder for downloads, or the variable HOME"
        case errors.GatedRepoError():
            return (
                f"{model} is gated: accept its terms on its page, then log in with `hf auth login`, or set HF_TOKEN to "
                "a token of the account"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"there is no directory and no repository {model}; check the spelling; if it is private, log in with "
                "`hf auth login`, or set HF_TOKEN to a token that may read it"
            )
        case errors.RevisionNotFoundError():
            return f"the repository {model} has no revision {revision}; use one of its branches, tags or commits"
        case errors.LocalEntryNotFoundError():
            return (
                f"{model} is not in the download cache, or not all of it, and its repository cannot be reached; check "
                "the network, or use a directory"
            )
        case errors.EntryNotFoundError():
            return f"a file that {model} lists cannot be fetched; its repository is damaged: use another revision"
        case errors.HfHubHTTPError() if _status(error) in (401, 403):
            return (
                f"access to {model} was refused ({_status(error)}): log in with `hf auth login`, or set HF_TOKEN to a "
                "token that may read it"
            )
        case OSError() if error.errno in _DISK:
            return (
                f"{model} cannot be written: {error.strerror}; free some space, or choose another directory with "
                "--cache-dir"
            )
    return None


def _status(error: Any) -> int:
    return getattr(getattr(error, "response", None), "status_code", 0)
