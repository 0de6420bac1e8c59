"""Settings of metrics."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from voxcpm_grpc.settings.types import Frozen


class MetricsSettings(Frozen):
    """Metrics for Prometheus."""

    listen: str | None = Field(
        default=None,
        description="address and port of the page /metrics, such as 0.0.0.0:9464; of several fronts each listens on "
        "the next port; default: no metrics",
    )

    @field_validator("listen")
    @classmethod
    def _check(cls, listen: str | None) -> str | None:
        if listen is not None and not (listen.rpartition(":")[0] and listen.rpartition(":")[2].isdecimal()):
            raise PydanticCustomError("listen", "it must be an address and a port, such as 127.0.0.1:9464")
        return listen

    def of_front(self, number: int) -> MetricsSettings:
        """The settings of a front, counted from 0, of several."""
        if self.listen is None:
            return self
        host, _, port = self.listen.rpartition(":")
        return MetricsSettings(listen=f"{host}:{int(port) and int(port) + number}")
