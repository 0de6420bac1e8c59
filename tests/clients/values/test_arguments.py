"""Wrong arguments are errors before anything is sent, and each says what to write instead."""

import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Client, InvalidArgument, Prompt

MISSPELLED = [
    ("speak", ("Hello.",), "vioce", "voice"),
    ("say", ("Hello.",), "sampel_rate", "sample_rate"),
    ("session", (), "langauge", "language"),
    ("add_prompt", (b"audio", "text"), "lables", "labels"),
    ("add_reference", (b"audio",), "nam", "name"),
    ("add_hifi", (b"audio", "text"), "time_out", "timeout"),
]


@pytest.fixture
async def client(server):
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        yield client


@pytest.mark.parametrize(("call", "arguments", "wrong", "right"), MISSPELLED)
async def test_an_unknown_option_is_a_type_error_with_the_nearest_name(client, server, call, arguments, wrong, right):
    message = rf"^{call}\(\) has no option '{wrong}'; did you mean '{right}'\?$"
    with pytest.raises(TypeError, match=message):
        await getattr(client, call)(*arguments, **{wrong: "x"})
    with Client(server.target) as blocking, pytest.raises(TypeError, match=message):
        getattr(blocking, call)(*arguments, **{wrong: "x"})
    assert not server.calls


async def test_an_option_that_resembles_none_gets_the_list_of_all(client):
    with pytest.raises(TypeError, match=r"no option 'qqq'; the options are .*voice, no_voice, prompt, .*timeout"):
        await client.say("Hello.", qqq=1)


async def test_no_text_is_a_type_error_at_once(client, server):
    with pytest.raises(TypeError, match=r"text is None; .*Language models return None"):
        client.speak(None)
    with pytest.raises(TypeError, match="text is None"):
        await client.say(None)
    with pytest.raises(TypeError, match="text is bytes; it must be str: decode it"):
        client.speak(b"Hello.")
    with pytest.raises(TypeError, match="text is int"):
        client.speak(7)
    with pytest.raises(TypeError, match=r"piece 2 is NoneType\. Language models"):
        client.speak(["Hello.", None])
    with Client(server.target) as blocking:
        with pytest.raises(TypeError, match="text is None"):
            blocking.speak(None)  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="text is None"):
            blocking.say(None)  # pyright: ignore[reportArgumentType]
    assert not server.calls


async def test_a_piece_that_is_not_text_is_a_type_error_when_it_comes(client, server):
    def written():
        yield "Hello. "
        yield None

    async def written_async():
        yield "Hello. "
        yield None

    for text in (written(), written_async()):
        with pytest.raises(TypeError, match=r"piece 2 is NoneType.*write `piece or ''`"):
            await client.say(text)
    with Client(server.target) as blocking, pytest.raises(TypeError, match="piece 2 is NoneType"):
        blocking.say(written())  # pyright: ignore[reportArgumentType]


async def test_other_texts_must_be_strings(client, server):
    async with client.session() as session:
        for wrong in (None, ["a"], b"a"):
            with pytest.raises(TypeError, match=r"text is .*; it must be str"):
                await session.send_text(wrong)
    with pytest.raises(TypeError, match="transcript is NoneType; it must be str"):
        await client.add_prompt(b"audio", None)
    with pytest.raises(TypeError, match="prompt is tuple; it must be a Prompt"):
        client.speak("Hello.", prompt=(b"audio", "text"))


async def test_a_recording_must_be_one(client, server):
    with pytest.raises(TypeError, match="the recording is NoneType; it must be a path, bytes"):
        await client.add_reference(None)
    with pytest.raises(TypeError, match="the recording is int; it must be a path, bytes"):
        client.speak("Hello.", reference=7)
    with pytest.raises(InvalidArgument, match="the recording has 0 bytes"):
        client.speak("Hello.", prompt=Prompt(b"", "text"))
    assert not server.calls
