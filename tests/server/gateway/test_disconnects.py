"""Work for a client that closes its connection meanwhile."""

import asyncio

import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_gateway.requests.bodies import ClientGone
from voxcpm_gateway.speech.speaking import while_connected


async def gone():
    return {"type": "http.disconnect"}


async def broken():
    raise OSError("nothing can be received any more")


async def never():
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize("receive", [gone, broken])
@pytest.mark.parametrize("error", [None, RuntimeError("the cleanup failed")])
async def test_work_ends_when_the_client_has_gone(receive, error):
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.sleep(HANG_SECONDS)
        finally:
            ended.set()
            if error:
                raise error

    with pytest.raises(ClientGone):
        await while_connected(receive, work())
    assert ended.is_set()


async def test_errors_of_the_work_are_its_own():
    async def work():
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await while_connected(never, work())


async def test_a_request_that_ends_is_no_client_that_has_gone():
    began = asyncio.Event()

    async def work():
        began.set()
        await asyncio.sleep(HANG_SECONDS)

    request = asyncio.create_task(while_connected(never, work()))
    await began.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
