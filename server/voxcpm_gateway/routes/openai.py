"""The routes of OpenAI's API: speech, models and voices."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from voxcpm_client import AsyncClient, ModelInfo, ServedModel, SpeechOptions, Voice
from voxcpm_gateway.errors import HttpError
from voxcpm_gateway.exchange import Exchange, Route
from voxcpm_gateway.requests.bodies import read_form, read_json
from voxcpm_gateway.requests.callers import caller_client
from voxcpm_gateway.requests.fields import Field
from voxcpm_gateway.speech import speech_request
from voxcpm_gateway.speech.speaking import SpokenResponse, while_connected
from voxcpm_gateway.speech.speech_request import MAX_INPUT, with_space
from voxcpm_gateway.speech.voice_names import chosen_model, model_names
from voxcpm_gateway.state import GatewayState, served_models

LISTED_BY = (("model", "Only voices of this model, named as for /v1/audio/speech. Default: those of all models."),)
VOICE_FIELDS = (
    Field("audio_sample", "file", "A recording of the voice.", required=True, sets=("audio", "source")),
    Field("name", "string", "Name of the voice.", required=True, sets=("display_name",)),
    Field(
        "consent",
        "string",
        "The consent of the speaker, such as its date or its number; stored with the voice.",
        required=True,
        sets=("labels",),
    ),
    Field(
        "ref_text",
        "string",
        "The words of the recording. With them the voice is nearer to the recording.",
        sets=("transcript",),
    ),
    Field("type", "string", "audio_sample"),
    Field(
        "lora",
        "string",
        "A LoRA adapter of the server, which the voice is spoken with. Default: none.",
        empty_counts=True,
    ),
    Field("model", "string", "The model that the voice is for, as for /v1/audio/speech. Default: the default model."),
)
NO_CONSENT = ("", "0", "false", "no", "off")
CONSENT_LABEL = "consent"
MAX_LABEL = 200


def routes() -> list[BaseRoute]:
    return [
        Route("/v1/audio/speech", speak, methods=["POST"]),
        Route("/v1/audio/voices", list_voices, methods=["GET"]),
        Route("/v1/audio/voices", add_voice, methods=["POST"]),
        Route("/v1/audio/voices/{id:path}", delete_voice, methods=["DELETE"]),
        Route("/v1/audio/models", list_audio_models, methods=["GET"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{id:path}", get_model, methods=["GET"]),
    ]


async def speak(request: Request) -> Response:
    state, client = GatewayState.of(request), caller_client(request)
    async with state.body_of(request) as limited:
        values = await read_json(limited, speech_request.FIELDS)
        parsing = speech_request.parse(values, allow_urls=state.config.allow_ref_audio_urls)
        has_recording = "ref_audio" in values  # without one, nothing waits
        parsed = await (while_connected(request.receive, parsing) if has_recording else parsing)
        options: SpeechOptions = parsed.options | {"request_id": Exchange.of(request.scope).request_id}
        if parsed.model:
            options["model"] = chosen_model(parsed.model, [one.name for one in await state.models(client)])
        if parsed.voice and "prompt" not in options and "reference" not in options:
            voice = await _resolved(state, client, parsed.voice, options.get("model", ""))
            if voice is not None:
                options["voice"] = voice
        stream = client.speak(parsed.text, **options)
        return SpokenResponse(stream, media_type=parsed.media_type, form=parsed.form)


async def _resolved(state: GatewayState, client: Any, name: str, model: str) -> str | None:
    presets: Sequence[str] = ()
    if state.voices.needs_presets(name):
        presets = (await state.model_info(client, model)).presets
    return state.voices.resolve(name, presets)


async def list_voices(request: Request) -> Response:
    state, client = GatewayState.of(request), caller_client(request)
    model = request.query_params.get("model", "")
    if model:
        model = chosen_model(model, [one.name for one in await state.models(client)])
    voices = await client.voices(model=model)
    return JSONResponse({"object": "list", "voices": [_voice(voice, id) for id, voice in _with_ids(voices)]})


def _with_ids(voices: Iterable[Voice]) -> Iterator[tuple[str, Voice]]:
    """The voices with their ids. That of a preset is its name, unless a preset of another model before it has that."""
    taken: set[str] = set()
    for voice in voices:
        id = voice.name if voice.created is None and voice.name not in taken else ""
        taken.add(id)
        yield id or voice.id, voice


async def add_voice(request: Request) -> Response:
    state, client = GatewayState.of(request), caller_client(request)
    async with state.body_of(request) as limited, read_form(limited, VOICE_FIELDS) as form:
        if form.get("type", "audio_sample") != "audio_sample":
            raise HttpError(400, "type must be audio_sample; voices come from recordings only", param="type")
        if form["consent"].strip().lower() in NO_CONSENT:
            raise HttpError(
                400, "consent says no; store the voice of a person only with the consent of the person", param="consent"
            )
        if form["name"] in state.voices:
            raise HttpError(400, f"name is {form['name']!r}, which stands for another voice here", param="name")
        options: dict[str, Any] = {
            "name": form["name"],
            "labels": {CONSENT_LABEL: form["consent"].strip()[:MAX_LABEL]},
            "request_id": Exchange.of(request.scope).request_id,
        }
        if "lora" in form:
            options["lora"] = form["lora"]
        if "model" in form:
            options["model"] = chosen_model(form["model"], [one.name for one in await state.models(client)])
        info = await state.model_info(client, options.get("model", ""))
        voice: Voice = await while_connected(request.receive, _stored(client, info, form, options))
    return JSONResponse(_voice(voice, voice.id) | {"warnings": [warning.message for warning in voice.warnings]})


def _stored(client: AsyncClient, info: ModelInfo, form: Mapping[str, Any], options: Any) -> Coroutine[Any, Any, Voice]:
    """Stores a recording as the kind that is nearest to it, of those that its model has.

    A model without recordings refuses the call. Raises HttpError if the model needs the words of the recording.
    """
    audio: bytes = form["audio_sample"]
    only_prompts = "prompt" in info.voice_kinds and "hifi" not in info.voice_kinds
    if "ref_text" in form:
        add = client.add_prompt if only_prompts else client.add_hifi
        return add(audio, with_space(form["ref_text"]), **options)
    if only_prompts:
        raise HttpError(400, f"{info.model} needs the words of the recording; give ref_text", param="ref_text")
    return client.add_reference(audio, **options)


async def delete_voice(request: Request) -> Response:
    id = request.path_params["id"]
    kept = await caller_client(request).delete_voice(id, cascade=True)
    deleted = {"id": id, "object": "audio.voice.deleted", "deleted": True}
    return JSONResponse(deleted | ({"kept_names": list(kept)} if kept else {}))


def _voice(voice: Voice, id: str) -> dict[str, Any]:
    return {
        "id": id,
        "object": "audio.voice",
        "name": voice.name or voice.id,
        "names": [{"name": one.name, "labels": dict(one.labels)} for one in voice.names],
        "type": "audio_sample",
        "created_at": 0 if voice.created is None else int(voice.created.timestamp()),
        "kind": voice.kind,
        "preset": voice.created is None,
        "model": voice.model,
        "labels": dict(voice.labels),
        "digest": voice.content_digest,
        "lora": voice.lora,
    }


async def list_models(request: Request) -> Response:
    found = await _models(request)
    names = model_names(list(found))
    return JSONResponse({"object": "list", "data": [_model(name, found[model]) for name, model in names.items()]})


async def get_model(request: Request) -> Response:
    found, name = await _models(request), request.path_params["id"]
    return JSONResponse(_model(name, found[chosen_model(name, list(found))]))


async def list_audio_models(request: Request) -> Response:
    names = model_names(list(await _models(request)))
    return JSONResponse({"models": [{"id": name, "name": name} for name in names]})


async def _models(request: Request) -> dict[str, ServedModel]:
    """The models of the server by name, the default first."""
    return {model.name: model for model in await served_models(caller_client(request))}


def _model(name: str, model: ServedModel) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "voxcpm-grpc",
        "root": model.name,
        "languages": list(model.languages),
        "max_input_chars": MAX_INPUT,
    }


STARTED = int(time.time())
