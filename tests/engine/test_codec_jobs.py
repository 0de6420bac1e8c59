"""Codec jobs in an engine."""

import numpy as np
import torch
from support.engines import engine, mixed_requests, run, voice


def test_codec_jobs_run_beside_streams_and_match_the_codec_alone():
    eng = engine()
    waveform = np.random.default_rng(0).uniform(-0.3, 0.3, 16000 * 3).astype(np.float32)
    eng.add(mixed_requests(1)[0])
    eng.encode("enc", waveform, pad_left=True)
    eng.decode("dec", voice(4, 12))
    outcomes = run(eng)
    latents = np.concatenate([piece.array for piece in outcomes["enc"].pieces if len(piece.array)])
    audio = np.concatenate([piece.array for piece in outcomes["dec"].pieces])
    assert latents.shape == (19, 4, 8) and audio.shape == (12 * 7680,)
    with torch.inference_mode():
        np.testing.assert_array_equal(latents, np.concatenate(list(eng.model.codec.encode(waveform, pad_left=True))))
        np.testing.assert_array_equal(audio, np.concatenate(list(eng.model.codec.decode(voice(4, 12)))))
    assert [piece.last for piece in outcomes["enc"].pieces][-1] and outcomes["r0"].finished
