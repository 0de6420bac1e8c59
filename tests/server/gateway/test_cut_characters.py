"""Characters that a program has cut between two messages of the WebSocket."""

from __future__ import annotations

import pytest
from support.clients.gateway_sockets import Answers, answers
from support.clients.json_values import HALF

LOW = r"\ude00"  # the other half of HALF
SMILE = "\U0001f600"


def text(written: str) -> str:
    return f'{{"type": "text", "text": "{written}"}}'


async def spoken(gateway, *messages: str) -> Answers:
    found = await answers("{}:{}".format(*gateway.address), ['{"type": "config"}', *messages, '{"type": "finish"}'])
    assert found.code == 1000, found.error
    return found


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([f"One {HALF}", f"{LOW} two."], f"One {SMILE} two."),
        ([f"One {HALF}", "", f"{LOW} two."], f"One {SMILE} two."),
        (["One ", HALF, LOW, HALF, f"{LOW} two."], f"One {SMILE}{SMILE} two."),
        ([f"One {HALF}", " two."], "One \ufffd two."),
        (["One ", f"{LOW} two."], "One \ufffd two."),
        ([f"One {HALF}", f"{HALF}{LOW} two."], f"One \ufffd{SMILE} two."),
        ([f"One {HALF}{LOW} two."], f"One {SMILE} two."),
    ],
)
async def test_halves_in_messages_that_follow_each_other_are_joined(gateway, messages, expected):
    found = await spoken(gateway, *map(text, messages))
    (started,) = (event for event in found.of("segment") if event["event"] == "started")
    assert started["text"] == expected
    assert started["input_end"] == len(expected)  # a character counts once
    assert found.of("summary")[0]["input_chars"] == len(expected)


@pytest.mark.parametrize("between", ['{"type": "flush"}', '{"type": "pause", "milliseconds": 10}', '{"type": "turn"}'])
async def test_another_message_between_the_halves_separates_them(gateway, between):
    found = await spoken(gateway, text(f"One {HALF}"), between, text(f"{LOW} two."))
    assert "".join(event["text"] for event in found.of("segment") if event["event"] == "started").count("\ufffd") == 2
    assert found.of("summary")[0]["input_chars"] == len("One ?? two.")


async def test_half_of_a_pair_at_the_end_is_an_unknown_character(gateway):
    found = await spoken(gateway, text(f"One {HALF}"))
    assert found.of("summary")[0]["input_chars"] == len("One ?")


async def test_an_interrupt_drops_the_half_with_its_text(gateway):
    found = await spoken(gateway, text(f"One {HALF}"), '{"type": "interrupt"}', text(f"{LOW}Two."))
    assert [event["text"] for event in found.of("segment") if event["event"] == "started"][-1:] == ["\ufffdTwo."]


@pytest.mark.parametrize("field", ["tag", HALF])
async def test_half_of_a_pair_elsewhere_is_an_error_with_a_reason(gateway, field):
    messages = ['{"type": "config"}', f'{{"type": "flush", "{field}": "{HALF}"}}']
    found = await answers("{}:{}".format(*gateway.address), messages)
    assert found.code == 4400
    assert found.error["param"] == field
    assert found.error["message"].startswith(found.reason.rstrip("\ufffd"))
    assert field in found.reason
