"""All goldens of VoxCPM-0.5B and VoxCPM1.5 by engines, and streams of every mode in a full batch."""

import pytest
from support.engines import goldens
from support.engines.checkpoints import OLDER
from support.engines.older_models import check_batch, check_official_speech

CASES = [(path, case["name"]) for path in OLDER for case in goldens.cases(goldens.GOLDENS / path.name)]


@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{path.name}-{name}" for path, name in CASES])
def test_the_engine_generates_the_speech_of_the_official_package(path, name):
    check_official_speech(path, name)


@pytest.mark.parametrize("checkpoint", OLDER, ids=lambda path: path.name)
@pytest.mark.parametrize("settings", [{"slots": 3, "kv_positions": 96}, {"slots": 6, "kv_positions": 128}], ids=str)
def test_streams_in_a_batch_make_the_same_audio_as_alone_also_when_preempted_and_swapped(checkpoint, settings):
    check_batch(checkpoint, 8, **settings)
