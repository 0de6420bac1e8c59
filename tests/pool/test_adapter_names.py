"""The names of LoRA adapters between fronts, whose messages take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support.doubles.fake_engine import write_lora
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import AlreadyExists
from voxcpm_grpc.ipc.messages import Keep, Registration
from voxcpm_grpc.pool.adapter_catalog import AdapterCatalog, AdapterNames, OnChange
from voxcpm_grpc.request import Adapter


class Engine:
    """Reads every adapter at once, and keeps what the only front wants."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def post(self, command: Keep) -> None:
        self.kept = [adapter.name for adapter in command.adapters]

    async def preload(self, adapter: Adapter) -> None:
        pass


class Distant:
    """Names that are kept elsewhere. What is sent in either direction waits until `deliver`."""

    def __init__(self, names: AdapterNames) -> None:
        self._names = names
        self.waiting: list[Callable[[], None]] = []

    def attach_front(self, front: str, on_change: OnChange) -> None:
        self._names.attach_front(front, lambda found: self.waiting.append(lambda: on_change(found)))

    def change(self, front: str, registration: Registration) -> None:
        self.waiting.append(lambda: self._names.change(front, registration))

    def deliver(self) -> None:
        """Deliver all that waits, without a pause in which a task could run."""
        waiting, self.waiting = self.waiting, []
        for deliver in waiting:
            deliver()


@pytest.fixture
def names() -> AdapterNames:
    return AdapterNames()


@pytest.fixture
def distant(names: AdapterNames) -> Distant:
    return Distant(names)


async def test_a_registration_ends_even_if_another_front_withdraws_the_adapter_at_once(names, distant, tmp_path):
    engine = Engine()
    near = AdapterCatalog(list, names, "near")
    catalog = AdapterCatalog([engine].copy, distant, "distant")
    registering = asyncio.create_task(catalog.register("anna", "", write_lora(tmp_path)))
    while not near.registered:  # the name is taken, then the adapter is complete
        await until(lambda: distant.waiting)
        distant.deliver()
    await near.unregister("anna")
    distant.deliver()
    async with asyncio.timeout(HANG_SECONDS):
        assert (await registering).name == "anna"
    assert catalog.registered == near.registered == ()
    del registering
    await until(lambda: not engine.kept)


async def test_a_registration_that_came_too_late_ends_even_if_the_name_is_free_again(names, distant, tmp_path):
    near = AdapterCatalog([Engine()].copy, names, "near")
    catalog = AdapterCatalog([Engine()].copy, distant, "distant")
    distant.deliver()
    registering = asyncio.create_task(catalog.register("anna", "", write_lora(tmp_path)))
    await until(lambda: distant.waiting)
    await near.register("anna", "", Path(tmp_path))
    await near.unregister("anna")
    await near.register("anna", "", Path(tmp_path))
    while not registering.done():
        distant.deliver()
        await asyncio.sleep(0)
    with pytest.raises(AlreadyExists):
        await registering
    await near.unregister("anna")
    distant.deliver()
    again = asyncio.create_task(catalog.register("anna", "", write_lora(tmp_path)))
    while not again.done():
        distant.deliver()
        await asyncio.sleep(0)
    assert (await again).name == "anna" and [adapter.name for adapter in near.registered] == ["anna"]


async def test_a_front_that_ends_gives_up_the_names_for_which_engines_still_read(names, tmp_path):
    class Reading(Engine):
        async def preload(self, adapter: Adapter) -> None:
            await asyncio.Event().wait()

    one = AdapterCatalog([Reading()].copy, names, "one")
    two = AdapterCatalog([Engine()].copy, names, "two")
    registering = asyncio.create_task(one.register("anna", "", write_lora(tmp_path)))
    await two.register("bert", "", Path(tmp_path))
    while True:
        try:
            two.require_new("anna")
        except AlreadyExists:
            break
        await asyncio.sleep(0)
    names.detach_front("one")
    await two.register("anna", "", Path(tmp_path))
    assert [adapter.name for adapter in two.registered] == ["bert", "anna"]
    registering.cancel()
    await asyncio.wait([registering])
    assert [adapter.name for adapter in two.registered] == ["bert", "anna"]
