"""LoRA adapters of engines that several fronts share."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.doubles.fake_engine import MakeFake, write_lora
from support.doubles.pools import Launcher
from support.engines.remote_fronts import RemoteFront, remote_fronts
from support.servers.waiting import until

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
        content = await one.ask("register", "anna", str(write_lora(folder / "anna")))
        await two.reaches(["anna"], "names")
        for front in (one, two):
            for _ in range(3):
                assert await front.ask("say", "anna") == 1000
            await front.reaches([[content], [content]], "engines")
        with pytest.raises(AlreadyExists):
            await two.ask("register", "anna", str(write_lora(folder / "other")))
        with pytest.raises(InvalidRequest, match="has no lora_config"):
            await two.ask("register", "bert", str(folder / "missing"))
        assert await one.ask("names") == await two.ask("names") == ["anna"]


async def test_of_two_fronts_that_register_a_name_at_once_one_comes_too_late(folder):
    async with remote_fronts(folder, 2, engines("a")) as fronts:
        directories = [str(write_lora(folder / name, number)) for name, number in (("old", 1000), ("new", 2000))]
        for _ in range(5):
            both = [front.ask("register", "anna", path) for front, path in zip(fronts, directories, strict=True)]
            results = await asyncio.gather(*both, return_exceptions=True)
            [content] = [result for result in results if isinstance(result, str)]
            assert any(isinstance(result, AlreadyExists) for result in results)
            for front in fronts:
                await front.reaches([[content]], "engines")
                await front.reaches(["anna"], "names")
            await fronts[0].ask("unregister", "anna")
            for front in fronts:
                await front.reaches([], "names")


async def test_the_last_turn_of_all_fronts_frees_an_adapter(folder):
    async with remote_fronts(folder, 2, engines("a")) as (one, two):
        old = await one.ask("register", "anna", str(write_lora(folder / "anna")))
        await two.reaches(["anna"], "names")
        assert await one.ask("choose", "turn", "anna") == await two.ask("choose", "turn", "anna") == old
        await two.ask("unregister", "anna")
        shutil.rmtree(folder / "anna")
        await one.reaches([], "names")
        with pytest.raises(NotFound):
            await one.ask("choose", "another", "anna")
        with pytest.raises(NotFound):
            await one.ask("unregister", "anna")
        await one.ask("drop", "turn")
        new = await one.ask("register", "anna", str(write_lora(folder / "new", 2000)))
        await two.reaches(["anna"], "names")
        assert await two.ask("say", "", "turn") == 1000
        assert await two.ask("say", "anna") == 2000
        await one.reaches([sorted([old, new])], "engines")
        await two.ask("drop", "turn")
        await one.reaches([[new]], "engines")


async def test_a_front_that_dies_has_no_turns_and_the_next_one_knows_the_adapters(folder):
    async with remote_fronts(folder, 2, engines("a")) as (one, two):
        await one.ask("register", "anna", str(write_lora(folder / "anna")))
        bert = await one.ask("register", "bert", str(write_lora(folder / "bert", 5)))
        await two.reaches(["anna", "bert"], "names")
        await two.ask("choose", "turn", "anna")
        await one.ask("unregister", "anna")
        await two.reaches(["bert"], "names")
        assert await two.ask("say", "", "turn") == 1000
        await two.replaced()
        await two.reaches(["bert"], "names")
        assert await two.ask("say", "bert") == 5
        for front in (one, two):
            await front.reaches([[bert]], "engines")


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
        content = await one.ask("register", "anna", directory)
        await two.reaches([[content]], "engines")


async def test_an_engine_that_restarts_has_the_adapters_for_all_fronts(folder):
    launchers = engines("a", "b")
    async with remote_fronts(folder, 2, launchers) as (one, two):
        anna = await one.ask("register", "anna", str(write_lora(folder / "anna")))
        bert = await one.ask("register", "bert", str(write_lora(folder / "bert", 5)))
        await two.reaches(["anna", "bert"], "names")
        shutil.rmtree(folder / "anna")
        launchers["a"].kill()
        await until(lambda: len(launchers["a"].processes) == 2)
        for front in (one, two):
            await front.reaches([[bert], sorted([anna, bert])], "engines")
            for _ in range(4):
                assert await front.ask("say", "anna") == 1000
                assert await front.ask("say", "bert") == 5
        launchers["b"].kill()
        await until(lambda: len(launchers["b"].processes) == 2)
        for front in (one, two):
            await front.reaches([[bert], [bert]], "engines")
            with pytest.raises(FailedPrecondition, match="register it again"):
                await front.ask("say", "anna")
            assert await front.ask("names") == ["anna", "bert"]


async def test_an_adapter_of_the_settings_stays_unregistered_when_processes_restart(folder):
    entry = f"anna={write_lora(folder / 'anna')}"
    launchers = {"a": Launcher([MakeFake(loras=(entry,))], "engine a")}
    async with remote_fronts(folder, 2, launchers, loras=[[entry]]) as (one, two):
        for front in (one, two):
            assert await front.ask("names") == ["anna"]
            assert await front.ask("say", "anna") == 1000
        await one.ask("unregister", "anna")
        await two.reaches([], "names")
        await two.reaches([[]], "engines")
        await two.replaced()
        assert await two.ask("names") == []
        launchers["a"].kill()
        await until(lambda: len(launchers["a"].processes) == 2)
        for front in (one, two):
            await front.reaches([[]], "engines")


async def test_many_registrations_by_two_fronts_leave_nothing(folder):
    async def cycle(front: RemoteFront, name: str, number: float) -> None:
        directory = str(write_lora(folder / name, number))
        for count in range(50):
            content = await front.ask("register", name, directory)
            assert await front.ask("choose", "turn", name) == content
            await front.ask("unregister", name)
            if count % 10 == 0:
                assert await front.ask("say", "", "turn") == number
            await front.ask("drop", "turn")

    async with remote_fronts(folder, 2, engines("a", "b")) as (one, two):
        await asyncio.gather(cycle(one, "anna", 1000), cycle(two, "bert", 2000))
        for front in (one, two):
            await front.reaches([[], []], "engines")
            await front.reaches([], "names")
