"""Options of the package websockets that not all of its versions have."""

from __future__ import annotations

import inspect
from typing import Any

from websockets.asyncio.client import connect

DIRECT: dict[str, Any] = {"proxy": None} if "proxy" in inspect.signature(connect).parameters else {}
"""Connects past proxies of the environment, which websockets before 15 does not use anyway."""
