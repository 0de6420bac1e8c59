"""LoRA adapters of engines that several fronts share."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_engine import MakeFake, write_lora
from support.pools import Launcher
from support.remote_fronts import RemoteFront, remote_fronts
from support.waiting import until

from voxcpm_grpc.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def engines(*names: str) -> dict[str, Launcher]:
    return {name: Launcher([MakeFake()], f"engine {name}") for name in names}


async def test_an_adapter_that_one_front_registers_speaks_for_all(folder):
    async with remote_fronts(folder, 2, engines("x"), engines("a", "b")) as (one, two):
        id = await one.ask("register", "anna", str(write_lora(folder / "anna")))
        await two.reaches(["anna"], "names")
        for front in (one, two):
            for _ in range(3):
                assert await front.ask("say", id) == 1000
            await front.reaches([[id], [id]], "engines")
        with pytest.raises(AlreadyExists):
            await two.ask("register", "anna", str(write_lora(folder / "other")))
        with pytest.raises(InvalidRequest, match="has no lora_config"):
            await two.ask("register", "bert", str(folder / "missing"))
        assert await one.ask("names") == await two.ask("names") == ["anna"]


async def test_the_last_stream_of_all_fronts_frees_an_adapter(folder):
    async with remote_fronts(folder, 2, engines("a")) as (one, two):
        id = await one.ask("register", "anna", str(write_lora(folder / "anna")))
        await two.reaches(["anna"], "names")
        assert await one.ask("hold", "stream", "anna") == await two.ask("hold", "stream", "anna") == id
        await two.ask("unregister", "anna")
        await one.reaches([], "names")
        with pytest.raises(NotFound):
            await one.ask("hold", "another", "anna")
        with pytest.raises(NotFound):
            await one.ask("unregister", "anna")
        await one.ask("drop", "stream")
        new = await one.ask("register", "anna", str(write_lora(folder / "new", 2000)))
        assert await two.ask("say", id) == 1000
        assert await two.ask("say", new) == 2000
        assert await one.ask("engines") == [sorted([id, new])]
        await two.ask("drop", "stream")
        await one.reaches([[new]], "engines")
        with pytest.raises(FailedPrecondition):
            await one.ask("say", id)


async def test_a_front_that_dies_holds_nothing_and_the_next_one_knows_the_adapters(folder):
    async with remote_fronts(folder, 2, engines("a")) as (one, two):
        id = await one.ask("register", "anna", str(write_lora(folder / "anna")))
        bert = await one.ask("register", "bert", str(write_lora(folder / "bert", 5)))
        await two.reaches(["anna", "bert"], "names")
        await two.ask("hold", "stream", "anna")
        await one.ask("unregister", "anna")
        await two.reaches(["bert"], "names")
        assert await two.ask("say", id) == 1000
        await two.replaced()
        await two.reaches(["bert"], "names")
        assert await two.ask("say", bert) == 5
        await one.reaches([[bert]], "engines")


async def test_a_registration_ends_with_its_front(folder):
    may_read = folder / "may read"
    async with remote_fronts(folder, 2, engines("a")) as (one, two):
        directory = str(write_lora(folder / "anna", then=f"after {may_read}"))
        registering = asyncio.create_task(two.ask("register", "anna", directory))
        await until((folder / "may read.reading").exists)
        with pytest.raises(AlreadyExists):
            await one.ask("register", "anna", str(write_lora(folder / "other")))
        await two.replaced()
        await asyncio.wait([registering])
        may_read.touch()
        id = await one.ask("register", "anna", directory)
        await two.reaches([[id]], "engines")


async def test_an_engine_that_restarts_has_the_adapters_for_all_fronts(folder):
    launchers = engines("a", "b")
    async with remote_fronts(folder, 2, launchers) as (one, two):
        anna = await one.ask("register", "anna", str(write_lora(folder / "anna")))
        bert = await one.ask("register", "bert", str(write_lora(folder / "bert", 5)))
        shutil.rmtree(folder / "anna")
        launchers["a"].kill()
        await until(lambda: len(launchers["a"].handles) == 2)
        for front in (one, two):
            await front.reaches([[bert], sorted([anna, bert])], "engines")
            for _ in range(4):
                assert await front.ask("say", anna) == 1000
                assert await front.ask("say", bert) == 5
        launchers["b"].kill()
        await until(lambda: len(launchers["b"].handles) == 2)
        for front in (one, two):
            await front.reaches([[bert], [bert]], "engines")
            with pytest.raises(FailedPrecondition, match="register it again"):
                await front.ask("say", anna)
            assert await front.ask("names") == ["anna", "bert"]


async def test_many_registrations_by_two_fronts_leave_nothing(folder):
    async def cycle(front: RemoteFront, name: str) -> None:
        directory = str(write_lora(folder / name))
        for number in range(50):
            id = await front.ask("register", name, directory)
            assert await front.ask("hold", "stream", name) == id
            await front.ask("unregister", name)
            if number % 10 == 0:
                assert await front.ask("say", id) == 1000
            await front.ask("drop", "stream")

    async with remote_fronts(folder, 2, engines("a", "b")) as (one, two):
        await asyncio.gather(cycle(one, "anna"), cycle(two, "bert"))
        for front in (one, two):
            await front.reaches([[], []], "engines")
            await front.reaches([], "names")
