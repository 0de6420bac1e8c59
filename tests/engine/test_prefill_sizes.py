"""A CPU computes prompts in few sizes, because oneDNN keeps code for each one."""

from __future__ import annotations

import numpy as np
from support.engines.tiny import engine, finished, latents, run, voice
from support.engines.voice_parts import voice_part

from voxcpm_grpc.engine.runner import CPU_ENTRIES, CPU_ROWS
from voxcpm_grpc.request import Conditioning, Request, Sampling

LENGTHS = range(1, 60, 3)  # of texts in letters and of voices in patches


def prompted(length: int) -> Request:
    return Request(
        id=f"r{length}",
        text="a" * length,
        sampling=Sampling(min_steps=3, max_steps=3, inference_timesteps=4, seed=length),
        conditioning=Conditioning(reference=voice_part(voice(length, length))),
        keep_speech=True,
    )


def test_prompts_of_all_lengths_are_prefilled_in_few_sizes(monkeypatch):
    eng = engine(slots=2)
    rows, encoded_rows = set[int](), set[int]()
    prefill, encode = eng.model.prefill, eng.model.encode

    def count_rows(given, encoded, *args, **options):
        rows.add(given.columns.shape[1])
        assert encoded is None or len(encoded) == given.columns.shape[1]
        prefill(given, encoded, *args, **options)

    def count_encoded(slot, entry, *args, **options):
        encoded_rows.add(len(slot))
        return encode(slot, entry, *args, **options)

    monkeypatch.setattr(eng.model, "prefill", count_rows)
    monkeypatch.setattr(eng.model, "encode", count_encoded)
    for length in LENGTHS:
        eng.add(prompted(length))
    outcomes = run(eng)
    assert all(finished(outcomes[f"r{length}"]).steps == 3 for length in LENGTHS)
    assert {size % CPU_ROWS for size in rows} == {0} == {size % CPU_ENTRIES for size in encoded_rows}
    assert len(rows) + len(encoded_rows) < 2 * len(LENGTHS)


def test_padding_rows_change_no_audio(monkeypatch):
    """Alone, where every prompt has padding, and with a budget that fills each prefill, where few have."""
    for length in (1, 13, 40):
        padded, exact = engine(slots=1), engine(slots=1, prefill_tokens=CPU_ROWS)
        padded.add(prompted(length))
        exact.add(prompted(length))
        (first,), (second,) = run(padded).values(), run(exact).values()
        np.testing.assert_allclose(latents(first), latents(second), atol=1e-5)
        np.testing.assert_allclose(first.waveform, second.waveform, atol=1e-5)
