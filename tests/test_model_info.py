"""Requests are checked by what a model says about itself, without the code of its family."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from support.doubles.fake_engine import INFO
from support.engines.voice_parts import voice_part

from voxcpm_grpc.abilities import Abilities, Ends, Option
from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, NotFound, Reason, VoxCPMError
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.request import Adapter, Conditioning, ModelInfo, Request, Sampling

LATENTS = np.zeros((1, 4, 8), np.float32)
PROMPT, REFERENCE = voice_part(LATENTS, "Hi. "), voice_part(LATENTS)
ADAPTER = Adapter(fingerprint="f", directory="d", name="warm", source="s")
WARMTH = Option(name="temperature", default=0.9, low=0.1, high=2, rule="it must be from 0.1 to 2")
OTHER = replace(  # a model of another family: one option, a limit for silence, languages
    INFO,
    name="other",
    options=(WARMTH,),
    ends=Ends(min_steps=4, steps_per_token=12.0, max_silent_steps=25),
    abilities=Abilities(),
    speech_languages=("de", "en"),
    speakers=("ann", "bert"),
)
OPTION_FIELDS = {"cfg_value": 1.0, "inference_timesteps": 4, "temperature": 0.5}


def refused(info: ModelInfo, request: Request, kind: type[VoxCPMError]) -> VoxCPMError:
    with pytest.raises(kind) as caught:
        info.checked(request)
    return caught.value


def ask(**options) -> Request:
    return Request(id="a", text="Hello.", **options)


def test_parameters_that_are_not_set_are_those_of_the_model():
    official = Sampling(cfg_value=2.0, inference_timesteps=10, temperature=1.0, min_steps=2, steps_per_token=6.0)
    assert INFO.completed(Sampling()) == official
    assert INFO.completed(official) == official
    silent = Sampling(temperature=0.9, min_steps=4, steps_per_token=12.0, max_silent_steps=25)
    assert OTHER.completed(Sampling()) == silent
    assert OTHER.completed(Sampling(max_silent_steps=3, min_steps=0)) == replace(
        silent, max_silent_steps=3, min_steps=0
    )


def test_the_default_shortest_speech_fits_into_the_limit_of_the_request():
    assert INFO.completed(Sampling(max_steps=1)).min_steps == 1


@pytest.mark.parametrize("name", ["cfg_value", "inference_timesteps"])
def test_an_option_that_the_model_lacks_is_refused_with_those_it_has(name):
    sampling = replace(Sampling(), **{name: OPTION_FIELDS[name]})
    error = refused(OTHER, ask(sampling=sampling), FailedPrecondition)
    assert error.message == f"other, the model of this server, has no {name}; its sampling options are temperature"
    assert (error.field, error.reason) == (name, Reason.OPTION_NOT_SUPPORTED)
    assert error.details == {"option": name, "allowed": "temperature"}
    error = refused(replace(OTHER, options=()), ask(sampling=sampling), FailedPrecondition)
    assert error.message.endswith("its sampling options are none")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cfg_value", 11, "cfg_value is 11; it must be from 0 to 10"),
        ("cfg_value", -0.5, "cfg_value is -0.5; it must be from 0 to 10"),
        ("cfg_value", math.nan, "cfg_value is nan; it must be from 0 to 10"),
        ("temperature", 2.5, "temperature is 2.5; it must be from 0 to 2"),
        ("temperature", math.inf, "temperature is inf; it must be from 0 to 2"),
        ("inference_timesteps", 0, "inference_timesteps is 0; it must be from 1 to 100"),
        ("inference_timesteps", 101, "inference_timesteps is 101; it must be from 1 to 100"),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_the_words_of_the_option(name, value, message):
    error = refused(INFO, ask(sampling=replace(Sampling(), **{name: value})), InvalidRequest)
    assert (error.message, error.field, error.reason) == (message, name, Reason.INVALID_REQUEST)


def test_the_ends_of_a_range_are_in_it():
    assert INFO.completed(Sampling(cfg_value=0, temperature=0)).cfg_value == 0
    assert INFO.completed(Sampling(cfg_value=10, temperature=2)).temperature == 2


def test_a_value_that_the_server_does_not_run_is_refused_with_those_it_runs():
    error = refused(INFO, ask(sampling=Sampling(inference_timesteps=5)), FailedPrecondition)
    assert error.message == "inference_timesteps is 5 and this server runs 4, 10"
    assert error.reason is Reason.TIMESTEPS_NOT_SERVED
    assert error.details == {"inference_timesteps": "5", "allowed": "4, 10"}
    fixed = replace(OTHER, options=(replace(WARMTH, choices=(0.5, 0.9)),))
    error = refused(fixed, ask(sampling=Sampling(temperature=0.7)), FailedPrecondition)
    assert error.message == "temperature is 0.7 and this server runs 0.5, 0.9"
    assert (error.reason, error.details) == (
        Reason.OPTION_NOT_SUPPORTED,
        {"option": "temperature", "allowed": "0.5, 0.9"},
    )


NEEDS = {
    "prompt": (ask(conditioning=Conditioning(prompt=PROMPT)), "prompt"),
    "reference": (ask(conditioning=Conditioning(reference=REFERENCE)), "reference"),
    "hifi": (ask(conditioning=Conditioning(prompt=PROMPT, reference=REFERENCE)), "reference"),
    "speaker": (ask(conditioning=Conditioning(speaker="Ann")), "speaker"),
    "style": (ask(style="calm"), "style"),
    "language": (ask(language="de"), "language"),
    "lora": (ask(conditioning=Conditioning(adapter=ADAPTER)), "lora"),
    "text_streaming": (ask(open=True), "text"),
}


@pytest.mark.parametrize("ability", NEEDS)
def test_a_request_needs_an_ability_and_without_it_gets_its_sentence(ability):
    request, field = NEEDS[ability]
    assert OTHER.checked(request).text == request.text
    lacking = replace(OTHER, abilities=replace(Abilities(), **{ability: "{model} cannot; do without"}))
    error = refused(lacking, request, FailedPrecondition)
    assert (error.message, error.field, error.details) == ("other cannot; do without", field, {"model": "other"})
    assert lacking.checked(ask()).text == request.text


def test_every_ability_that_a_request_can_need_is_checked():
    by_fronts = {"latents", "no_voice", "reference_audio"}
    assert {field.name for field in fields(Abilities)} == {*NEEDS, "style_with_prompt", *by_fronts}


def test_a_built_in_voice_has_a_name_of_the_model_in_any_case():
    assert OTHER.checked(ask(conditioning=Conditioning(speaker="ANN"))).conditioning.speaker == "ANN"
    error = refused(OTHER, ask(conditioning=Conditioning(speaker="Anne")), NotFound)
    assert error.message == "there is no built-in voice 'Anne'; the nearest name is 'ann', of ann, bert"
    error = refused(replace(OTHER, speakers=()), ask(conditioning=Conditioning(speaker="ann")), NotFound)
    assert error.message == "there is no built-in voice 'ann'; this model has none"


def test_a_style_beside_a_prompt_is_refused_where_the_model_cannot_combine_them():
    both = ask(style="calm", conditioning=Conditioning(prompt=PROMPT))
    assert OTHER.checked(both).style == "calm"
    error = refused(INFO, both, InvalidRequest)
    assert error.field == "style" and "read it aloud" in error.message


def test_a_language_is_one_of_those_that_the_model_can_be_told():
    assert OTHER.checked(ask(language="de")).language == "de"
    error = refused(OTHER, ask(language="fr"), InvalidRequest)
    assert (error.message, error.field) == ("language is 'fr'; it must be one of de, en", "language")
    error = refused(INFO, ask(language="de"), FailedPrecondition)
    assert error.reason is Reason.LANGUAGES_NOT_SUPPORTED


def test_the_numbers_of_a_model_keep_their_types_on_the_way_to_a_front():
    """The message with the default counts of steps has fields of integers."""
    (arrived,) = encoding.decode_reports(encoding.encode([m.Ready(INFO)]))
    assert isinstance(arrived, m.Ready) and arrived.info == INFO
    sampling = arrived.info.completed(Sampling())
    assert isinstance(sampling.inference_timesteps, int) and isinstance(sampling.cfg_value, float)
