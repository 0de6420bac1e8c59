"""Types that settings share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Checked = TypeVar("Checked")
Positive = Annotated[int, Field(gt=0)]
MAX_SECONDS = 100 * 365 * 86400.0
"""100 years, the largest duration of a setting. A time that far from now is still a valid date in every format."""
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Interval = Annotated[float, Field(ge=0.01, le=86400.0)]
Share = Annotated[float, Field(ge=0, le=1024)]
Quota = Annotated[int, Field(ge=0)]


class Frozen(BaseModel):
    """Settings that do not change after the start."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def checked(check: Callable[[str], Checked], text: str) -> Checked:
    """The value that `check` makes of a text. Raises an error of the schema with the message of its ValueError."""
    try:
        return check(text)
    except ValueError as error:
        raise PydanticCustomError("text", "{reason}", {"reason": str(error)}) from None


def quota(setting: int | None, default: int) -> float:
    """The value of a setting for which 0 means no limit."""
    return default if setting is None else setting or math.inf
