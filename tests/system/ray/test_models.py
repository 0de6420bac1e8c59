"""Two models on Ray behind one address, and LoRA adapters that are registered with the actors of one of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.engines import goldens
from support.engines.checkpoints import TINY
from support.servers.running import ADMIN, Server, serving
from support.servers.waiting import wait_until

from voxcpm_client import Client, NotFound, Speech

ADAPTERS = goldens.GOLDENS / "lora_attention"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """Each model has an engine."""
    flags = (
        *("--model", f"other={TINY}", "--pool", "ray", "--ray.min-engines", "1"),
        *("--admin.listen", "127.0.0.1:0", "--admin.lora-sources", str(ADAPTERS)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)  # else Ray leaves one in the home directory
        with serving(tmp_path_factory.mktemp("voices"), *flags, model=f"tiny={TINY}") as server:
            yield server


def say(client: Client, **options: Any) -> Speech:
    return client.say("Hello there.", seed=7, timesteps=4, min_steps=4, max_steps=6, **options)


def test_models_and_their_adapters(server):
    (admin,) = re.findall(ADMIN, server.log)
    with Client(server.address) as client, Client(admin) as operator:
        assert [model.name for model in client.list_models()] == ["tiny", "other"]
        alone = say(client, model="other")
        assert alone.header.model == "other"
        np.testing.assert_array_equal(say(client).samples, alone.samples)
        added = operator.register_lora("anna", str(ADAPTERS / "adapter"), model="other")
        assert (added.model, added.engines) == ("other", 1)
        changed = say(client, model="other", lora="anna")
        assert not np.array_equal(changed.samples, alone.samples)
        with pytest.raises(NotFound, match="there is no LoRA adapter 'anna'; the server has none"):
            say(client, lora="anna")
        operator.unregister_lora("anna", "other")
        wait_until(lambda: not operator.list_loras())
        np.testing.assert_array_equal(say(client, model="other").samples, alone.samples)
