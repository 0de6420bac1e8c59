import numpy as np
import pytest
from support.engines.plans import plan_of
from support.engines.voice_parts import voice_part

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.request import Conditioning, Request, Sampling, VoicePart


def latents(patches: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(patches).normal(size=(patches, *(shape or (4, 8)))).astype(np.float32)


def ask(text: str = "hello world", prompt=None, reference=None, prompt_text: str = "hello ", **sampling) -> Request:
    conditioning = Conditioning(
        prompt=None if prompt is None else voice_part(prompt, prompt_text),
        reference=None if reference is None else voice_part(reference),
    )
    return Request(id="r", text=text, sampling=Sampling(**sampling), conditioning=conditioning)


def test_text_alone(tiny):
    plan = plan_of(tiny, ask())
    assert plan.own.tokens.tolist() == [552, 561, 101]
    assert not plan.own.audio.any()
    assert plan.own.patches.shape == (0, 4, 8)
    assert (plan.cacheable, plan.own.primer, plan.max_steps) == (3, 0, 22)


def test_reference_comes_first_between_its_marks_and_can_be_cached(tiny):
    reference = latents(3)
    plan = plan_of(tiny, ask(reference=reference))
    assert plan.own.tokens.tolist() == [103, 0, 0, 0, 104, 552, 561, 101]
    assert plan.own.audio.tolist() == [False, True, True, True, False, False, False, False]
    assert np.array_equal(plan.own.patches, reference)
    assert (plan.cacheable, plan.own.primer, plan.max_steps) == (8, 0, 22)


def test_prompt_comes_last_and_its_text_is_joined_before_tokenization(tiny):
    prompt = latents(2)
    plan = plan_of(tiny, ask(text="world", prompt=prompt))
    assert plan.own.tokens.tolist() == [552, 561, 101, 0, 0]
    assert plan.own.audio.tolist() == [False, False, False, True, True]
    assert np.array_equal(plan.own.patches, prompt)
    assert (plan.cacheable, plan.own.primer) == (3, 2)
    assert plan.max_steps == 16  # by the target text alone


def test_prompt_and_reference_keep_their_order(tiny):
    prompt, reference = latents(7), latents(2)
    plan = plan_of(tiny, ask(text="world", prompt=prompt, reference=reference))
    assert plan.own.tokens.tolist() == [103, 0, 0, 104, 552, 561, 101, *[0] * 7]
    assert np.flatnonzero(plan.own.audio).tolist() == [1, 2, *range(7, 14)]
    assert np.array_equal(plan.own.patches, np.concatenate([reference, prompt]))
    assert (plan.cacheable, plan.own.primer) == (7, 5)  # five patches are the past that the decoder depends on


def test_white_space_is_collapsed_in_the_target_and_kept_in_the_prompt(tiny):
    plain, folded = plan_of(tiny, ask("hello world")), plan_of(tiny, ask("hello\n \t world"))
    assert plain.own.tokens.tolist() == folded.own.tokens.tolist()
    kept = plan_of(tiny, ask("world", prompt=latents(1), prompt_text="hello  "))
    assert len(kept.own.tokens) > len(plan_of(tiny, ask("world", prompt=latents(1))).own.tokens)


@pytest.mark.parametrize(("wanted", "given"), [(None, 22), (5, 5), (100, 22)])
def test_a_request_can_only_lower_the_length_limit(tiny, wanted, given):
    assert plan_of(tiny, ask(max_steps=wanted)).max_steps == given


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_blank_text_is_refused(tiny, text):
    with pytest.raises(InvalidRequest, match="blank") as caught:
        plan_of(tiny, ask(text))
    assert caught.value.field == "text"


def broken() -> np.ndarray:
    values = latents(2)
    values[1, 2, 3] = np.nan
    return values


@pytest.mark.parametrize("field", ["prompt", "reference"])
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (latents(2, 8, 4), r"shape \[2, 8, 4\], this model needs \[patches, 4, 8\]"),
        (latents(8, 8), r"shape \[8, 8\]"),
        (latents(0), "has no audio"),
        (broken(), "not all finite"),
    ],
)
def test_unfit_latents_are_refused(tiny, field, values, reason):
    with pytest.raises(InvalidRequest, match=reason) as caught:
        plan_of(tiny, ask(**{field: values}))
    assert caught.value.field == field


def test_a_prompt_needs_its_text(tiny):
    with pytest.raises(InvalidRequest, match="no text"):
        plan_of(tiny, ask(prompt=latents(2), prompt_text=" "))


def test_a_voice_of_another_model_is_refused_by_its_arrays(tiny):
    codes = VoicePart(content={"codes": np.zeros((2, 16), np.int16)}, tracks=("codes",))
    ask = Request(id="a", text="Hello.", conditioning=Conditioning(reference=codes))
    with pytest.raises(InvalidRequest, match="the reference consists of codes, this model needs latents") as caught:
        plan_of(tiny, ask)
    assert caught.value.field == "reference"
