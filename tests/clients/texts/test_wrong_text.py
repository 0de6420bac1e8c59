"""Wrong text in any argument is an error that names the argument, and nothing of it is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxcpm_client import AsyncClient, Audition, Client, InvalidArgument, Prompt

HALF = "a\ud83d b"  # a string that was cut in the middle of an emoji, or bytes of a command line that are not UTF-8
AUDIO = b"a recording"
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "text": lambda client, text: client.say(text),
    "piece 2 of the text": lambda client, text: client.say(["Hello. ", text]),
    "style": lambda client, text: client.say("Hello.", style=text),
    "model": lambda client, text: client.say("Hello.", model=text),
    "lora": lambda client, text: client.say("Hello.", lora=text),
    "language": lambda client, text: client.say("Hello.", language=text),
    "request_id": lambda client, text: client.say("Hello.", request_id=text),
    "voice": lambda client, text: client.say("Hello.", voice=["ada", text]),
    "lexicon": lambda client, text: client.say("Hello.", lexicon={"GIF": text}),
    "transcript": lambda client, text: client.say("Hello.", prompt=Prompt(AUDIO, text)),
    "transcript (add_prompt)": lambda client, text: client.add_prompt(AUDIO, text),
    "transcript (add_hifi)": lambda client, text: client.add_hifi(AUDIO, text),
    "name": lambda client, text: client.add_reference(AUDIO, name=text),
    "labels": lambda client, text: client.add_reference(AUDIO, labels={text: "b"}),
    "label": lambda client, text: client.add_reference(AUDIO, labels={"a": text}),
    "preview": lambda client, text: client.add_reference(AUDIO, preview=Audition(text)),
    "auditions": lambda client, text: client.add_reference(AUDIO, auditions=["One.", Audition(text)]),
    "style (Audition)": lambda client, text: client.add_reference(AUDIO, auditions=[Audition("One.", style=text)]),
    "model (encode_latents)": lambda client, text: client.encode_latents(AUDIO, role="prompt", model=text),
    "model (voices)": lambda client, text: client.voices(model=text),
    "label (voices)": lambda client, text: client.voices(labels={"a": text}),
    "id (get_voice)": lambda client, text: client.get_voice(text),
    "id (update_voice)": lambda client, text: client.update_voice(text),
    "name (update_voice)": lambda client, text: client.update_voice("ada", name=text),
    "lora (update_voice)": lambda client, text: client.update_voice("ada", lora=text),
    "labels (update_voice)": lambda client, text: client.update_voice("ada", labels={text: ""}),
    "id (delete_voice)": lambda client, text: client.delete_voice(text),
    "model (model_info)": lambda client, text: client.model_info(text),
    "service": lambda client, text: client.health(text),
    "name (register_lora)": lambda client, text: client.register_lora(text, "/adapter"),
    "source (register_lora)": lambda client, text: client.register_lora("ada", text),
    "sha256": lambda client, text: client.register_lora("ada", "/adapter", sha256=text),
    "model (list_loras)": lambda client, text: client.list_loras(text),
    "name (unregister_lora)": lambda client, text: client.unregister_lora(text),
    "engine (drain_engine)": lambda client, text: client.drain_engine(text),
    "engine (start_engine)": lambda client, text: client.start_engine(text),
}
# None leaves these out.
OPTIONAL = {"style", "style (Audition)", "model", "lora", "lora (update_voice)", "language", "request_id"}
OPTIONAL |= {"name", "name (update_voice)", "sha256"}
OTHER_TYPES = [
    *((argument, value) for argument in CALLS for value in (b"a", 5)),
    *((argument, None) for argument in CALLS.keys() - OPTIONAL),
]


def word(argument: str) -> str:
    """The name of an argument in a message."""
    return argument.partition(" (")[0]


@pytest.mark.parametrize("argument", CALLS)
async def test_half_a_character_is_refused_with_the_argument(server, argument):
    async with AsyncClient(server.target) as client:
        message = rf"{word(argument)}.* has U\+D83D at index 1, which is half of a character"
        with pytest.raises(InvalidArgument, match=message) as raised:
            await CALLS[argument](client, HALF)
    assert raised.value.field
    assert all(not call.text for call in server.calls)


@pytest.mark.parametrize(("argument", "value"), sorted(OTHER_TYPES, key=repr))
def test_another_type_is_refused_with_the_argument(server, argument, value):
    with Client(server.target) as client, pytest.raises(TypeError, match=word(argument).split()[0]):
        CALLS[argument](client, value)


@pytest.mark.parametrize("send", ["send_text", "flush", "interrupt"])
async def test_a_session_refuses_half_a_character_and_goes_on(server, send):
    async with AsyncClient(server.target) as client, client.session() as session:
        wrong: Any = ((HALF, InvalidArgument), (b"a", TypeError), (None, TypeError))
        for value, error in wrong:
            with pytest.raises(error):
                await (session.send_text(value) if send == "send_text" else getattr(session, send)(tag=value))
        await session.send_text("Hello.")
        await session.finish()
        assert len((await session.speech()).samples)


def test_text_that_a_generator_yields_is_checked_too(server):
    with Client(server.target) as client, pytest.raises(InvalidArgument, match="piece 2 of the text has"):
        client.say(text for text in ("Hello. ", HALF))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"api_key": HALF}, InvalidArgument, "api_key"),
        ({"api_key": b"key"}, TypeError, "api_key is bytes"),
        ({"metadata": {"user": HALF}}, InvalidArgument, "the value of user in metadata has U"),
        ({"metadata": {HALF: "a"}}, InvalidArgument, "a name of metadata has U"),
        ({"metadata": {"user": "Zoë"}}, InvalidArgument, "the value of user in metadata has a character that is not"),
        ({"metadata": {"user": "a\nb"}}, InvalidArgument, "the value of user in metadata"),
        ({"metadata": {"user name": "a"}}, InvalidArgument, "metadata has the name 'user name'"),
        ({"metadata": {"": "a"}}, InvalidArgument, "metadata has the name ''"),
        ({"metadata": {"user": 5}}, TypeError, "the value of user in metadata is int"),
        ({"metadata": {"user": b"a"}}, TypeError, "the value of user in metadata is bytes"),
        ({"metadata": {5: "a"}}, TypeError, "a name of metadata is int"),
        ({"target": f"{HALF}:50051"}, InvalidArgument, "target has U"),
        ({"target": b"localhost:50051"}, TypeError, "target is bytes"),
    ],
)
def test_wrong_options_of_a_client_are_refused_at_once(options, error, message):
    for kind in (AsyncClient, Client):
        with pytest.raises(error, match=message) as raised:
            kind(**options)
        assert "secret" not in str(raised.value)
    if "metadata" in options:
        with Client() as client, pytest.raises(error, match=message):
            client.with_metadata(options["metadata"])


async def test_binary_metadata_is_sent(server):
    metadata: Any = {"Trace-Bin": b"\x00\xff"}
    async with AsyncClient(server.target, metadata=metadata) as client:
        assert await client.health()


def test_a_path_may_have_any_bytes(server, tmp_path):
    file = Path(str(tmp_path / "a\udcff.wav"))
    file.write_bytes(AUDIO)
    with Client(server.target) as client:
        assert client.add_reference(file).id
        assert client.add_reference(str(file)).id


def test_every_text_of_the_client_is_among_these_calls():
    """A new method with a text needs a case here."""
    methods = {name for name, method in inspect.getmembers(AsyncClient, inspect.isfunction) if not name.startswith("_")}
    used = {name for call in CALLS.values() for name in call.__code__.co_names}
    without_text = {"aclose", "with_metadata", "list_models", "server_stats", "speak", "session"}
    assert methods - used == without_text
