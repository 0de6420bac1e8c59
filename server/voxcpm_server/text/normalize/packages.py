"""The packages of the optional extra `normalize`."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from voxcpm_grpc.errors import FailedPrecondition, Reason

PACKAGES = ("inflect", "regex", "unicode_rbnf", "py3langid")


def installed() -> bool:
    """True if text can be normalised."""
    return not _missing()


def check() -> None:
    """Raise FailedPrecondition if a package is missing."""
    if missing := _missing():
        raise FailedPrecondition(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, which normalise text; run "
            "pip install 'voxcpm-grpc[normalize]' on the server, or send normalize = false",
            field="normalize",
            reason=Reason.PACKAGE_MISSING,
            extra="normalize",
        )


@cache
def _missing() -> list[str]:
    return [package for package in PACKAGES if find_spec(package) is None]
