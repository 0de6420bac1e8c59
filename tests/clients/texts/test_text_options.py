"""Options for the text, for speech that runs on, and for recordings, as the server receives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient


async def test_options_of_text_and_recordings_become_fields(server, tmp_path):
    options: dict[str, Any] = {
        "normalize": True,
        "style_in_text": False,
        "lora": "anna",
        "retry_badcase": True,
        "retry_badcase_max_times": 4,
        "retry_badcase_ratio_threshold": 2.5,
        "max_silence": 1.5,
        "lexicon": {"GIF": "jif"},
        "denoise": True,
        "trim_silence_vad": True,
        "reference": (np.zeros(1600, np.float32), 16000),
    }
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        await client.say("Hello.", **options)
        config = server.streams[-1].config
        turn, audio = config.turn, config.conditioning.inline_reference.audio
        assert (turn.normalize, turn.retry_badcase, turn.retry_badcase_max_times) == (True, True, 4)
        assert turn.lora == "anna"
        assert (turn.HasField("style_in_text"), turn.style_in_text) == (True, False)
        assert (turn.retry_badcase_ratio_threshold, turn.max_silence.ToMilliseconds()) == (2.5, 1500)
        assert [(entry.word, entry.spelling) for entry in config.lexicon] == [("GIF", "jif")]
        assert (audio.denoise, audio.trim_silence_vad) == (True, True)
        await client.say("Hello.", lora="")
        assert server.streams[-1].config.turn.HasField("lora")
        await client.say("Hello.")
        assert not server.streams[-1].config.turn.HasField("lora")
        assert not server.streams[-1].config.turn.HasField("style_in_text")
        await client.say("Hello.", style_in_text=True)
        assert server.streams[-1].config.turn.style_in_text
        await client.add_reference(options["reference"], denoise=True)
        config = server.calls[-1].received[0].config
        assert (config.denoise, config.trim_silence_vad) == (True, False)
        wrongs: list[dict[str, Any]] = [{"lexicon": "GIF"}, {"lexicon": {"GIF": 1}}]
        for wrong in wrongs:
            with pytest.raises(TypeError, match="lexicon"):
                await client.say("Hello.", **wrong)
