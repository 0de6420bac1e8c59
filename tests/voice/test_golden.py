"""The bundled voice gives the results of the official package, described and with a preset's recording."""

import hashlib
import json

import numpy as np
import pytest
import torch
from support.engines import goldens
from support.engines.checkpoints import VOICE
from support.engines.tiny import at_rest, engine, finished, latents, run
from support.engines.voice_parts import encoded

from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.request import Role

MANIFEST = json.loads((goldens.VOICE / "manifest.json").read_text())
REMEDY = f"write its goldens again, see tools/README.md: {MANIFEST['command']}"


def test_the_goldens_belong_to_these_weights():
    digests = {name: hashlib.sha256((VOICE / name).read_bytes()).hexdigest() for name in MANIFEST["weights"]}
    assert digests == MANIFEST["weights"], REMEDY


@pytest.mark.parametrize("name", [case["name"] for case in MANIFEST["cases"]])
def test_it_gives_the_latents_and_the_audio_of_the_official_package(name):
    golden = goldens.load(name, goldens.VOICE)
    eng = engine(noise=torch.from_numpy(golden.noise), checkpoint=VOICE, slots=1)
    eng.add(golden.request)
    outcome = run(eng)[name]
    assert outcome.error is None
    end = finished(outcome)
    assert (end.reason, end.steps) == ("stop", len(golden.latents)), REMEDY
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=1e-4, rtol=0, err_msg=REMEDY)
    golden.same_audio(outcome.waveform, atol=1e-4)
    assert at_rest(eng)


def test_its_presets_are_encoded_as_by_the_official_package():
    tensors = goldens.load("hifi", goldens.VOICE).tensors
    preset = json.loads((VOICE / "presets" / "presets.json").read_text())[0]
    recording = (VOICE / "presets" / preset["recording"]).read_bytes()
    waveform = decode(recording, target_rate=24000, max_seconds=10, max_bytes=1 << 20).waveform
    codec = engine(checkpoint=VOICE, slots=1).model.codec
    with torch.inference_mode():
        for role in ("prompt", "reference"):
            latents = encoded(codec, waveform, Role(role))
            np.testing.assert_allclose(latents, tensors[f"{role}_latents"], atol=1e-4, rtol=0, err_msg=REMEDY)
