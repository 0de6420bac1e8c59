"""Two server processes share the voices in one folder, without delay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.servers.running import serving
from support.servers.uploads import recording
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import Client, NotFound

SHORT = {"max_steps": 4, "timesteps": 4, "seed": 7}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    folder = tmp_path_factory.mktemp("shared")
    with (
        serving(folder) as one,
        serving(folder) as two,
        Client(one.address, timeout=HANG_SECONDS, retries=0) as a,
        Client(two.address, timeout=HANG_SECONDS, retries=0) as b,
    ):
        yield a, b


def test_a_voice_added_on_one_server_is_usable_on_the_other_at_once(clients):
    a, b = clients
    for seed, (creator, other) in enumerate([(a, b), (b, a)]):
        voice = creator.add_hifi(recording(seed, 8000), "A noise.")
        assert other.get_voice(voice.id).expires == voice.expires
        speech = other.say("Hello.", voice=voice.id, **SHORT)
        np.testing.assert_array_equal(creator.say("Hello.", voice=voice.id, **SHORT).samples, speech.samples)
        assert other.add_hifi(recording(seed, 8000), "A noise.").reused


def test_a_voice_deleted_on_one_server_is_refused_by_the_other_at_once(clients):
    a, b = clients
    for seed in range(10, 16):
        voice = a.add_reference(recording(seed, 8000))
        assert b.say("Hello.", voice=voice.id, **SHORT).summary.total_samples  # caches the voice
        a.delete_voice(voice.id)
        for call in (b.get_voice, b.delete_voice, lambda id: b.say("Hello.", voice=id, **SHORT)):
            with pytest.raises(NotFound):
                call(voice.id)
        assert voice.id not in {other.id for other in b.voices()}
