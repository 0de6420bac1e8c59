"""Voices with LoRA adapters on a real server."""

from __future__ import annotations

from typing import Any

import pytest
from support.engines import goldens
from support.servers.running import serving
from support.servers.uploads import tone

from voxcpm_client import Audition, Client, SpeechError


def test_a_voice_with_an_adapter_sounds_as_a_turn_with_it_also_after_a_restart(tmp_path):
    """The first server has two engines, which both read the adapter; the last one has another name for it."""
    adapter = goldens.GOLDENS / "lora_attention" / "adapter"
    voices, sound = tmp_path / "voices", tone()
    short: dict[str, Any] = {"seed": 3, "timesteps": 4, "min_steps": 5, "max_steps": 6}

    def said(client: Client, **options: Any) -> bytes:
        return client.say("Hi.", **short, **options).samples.tobytes()

    flags = ("--lora", f"anna={adapter}", "--devices", "cpu:2")
    with serving(voices, *flags) as server, Client(server.address) as client:
        assert client.model_info().loras == ("anna",)
        audition = Audition("Hi.", **short)
        stored = client.add_reference(sound, name="Ada", lora="anna", preview=audition)
        assert (stored.lora, client.get_voice("Ada").lora, client.voices()[0].lora) == ("anna", "anna", "anna")
        adapted, alone = said(client, reference=sound, lora="anna"), said(client, reference=sound)
        assert adapted != alone
        assert said(client, voice="Ada") == said(client, voice="Ada", lora="anna") == adapted
        assert stored.preview is not None and stored.preview.samples.tobytes() == adapted
        assert said(client, voice="Ada", lora="") == alone
    with serving(voices, "--lora", f"anna={adapter}") as server, Client(server.address) as client:
        assert client.get_voice("Ada").lora == "anna"
        assert said(client, voice="Ada") == adapted
        assert client.update_voice("Ada", lora="").lora == ""
        assert said(client, voice="Ada") == alone
        client.update_voice("Ada", lora="anna")
    with serving(voices, "--lora", f"other={adapter}") as server, Client(server.address) as client:
        with pytest.raises(SpeechError, match="the LoRA adapter 'anna', which this server does not have"):
            said(client, voice="Ada")
        assert said(client, voice="Ada", lora="other") == adapted
