"""The routes of the FastAPI services for VoxCPM that came before, with the names of their fields."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from voxcpm_client import AsyncClient, AsyncStream, Latents, ModelInfo, NotFound, Prompt, SpeechOptions
from voxcpm_gateway.errors import VOICE, HttpError
from voxcpm_gateway.exchange import Exchange, Route
from voxcpm_gateway.requests.bodies import from_base64, read_json
from voxcpm_gateway.requests.callers import caller_client
from voxcpm_gateway.requests.fields import SEEDS, Field
from voxcpm_gateway.speech.speaking import Form, SpokenResponse, while_connected
from voxcpm_gateway.state import GatewayState

PROMPT, REFERENCE = "config.conditioning.inline_prompt", "config.conditioning.inline_reference"
GENERATE_FIELDS = (
    Field("target_text", "text", "The text to speak.", required=True, empty_counts=True, sets=("text",)),
    Field(
        "prompt_wav_base64",
        "string",
        "A recording to continue: its file in base64. Needs prompt_text.",
        sets=(PROMPT, "audio", "prompt"),
    ),
    Field("prompt_wav_format", "string", "Ignored: the server detects the container."),
    Field(
        "prompt_latents_base64",
        "string",
        "Latents to continue, from /encode_latents. Needs prompt_text.",
        sets=(PROMPT, "prompt"),
    ),
    Field("prompt_text", "string", "The words of the prompt.", sets=(f"{PROMPT}.transcript",)),
    Field("prompt_id", "string", "Id or name of a stored prompt.", sets=(VOICE,)),
    Field(
        "ref_audio_wav_base64",
        "string",
        "A recording for the timbre: its file in base64.",
        sets=(REFERENCE, "audio", "reference"),
    ),
    Field("ref_audio_wav_format", "string", "Ignored: the server detects the container."),
    Field(
        "ref_audio_latents_base64",
        "string",
        "Latents for the timbre, from /encode_latents with the role reference.",
        sets=(REFERENCE, "reference"),
    ),
    Field("ref_audio_id", "string", "Id or name of a stored reference.", sets=(VOICE, "reference_id")),
    Field("hifi_id", "string", "Id or name of a stored hifi voice.", sets=(VOICE,)),
    Field(
        "max_generate_length",
        "integer",
        "Largest number of steps of a segment.",
        bounds=(1, 2**31),
        sets=("max_steps",),
    ),
    Field("temperature", "number", "Scale of the noise, 0 to 2. Default: 1."),
    Field("cfg_value", "number", "Strength of the guidance, 0 to 10. Default: 2."),
    Field("seed", "integer", "Seed of the random numbers.", bounds=SEEDS),
    Field(
        "lora",
        "string",
        "A LoRA adapter of the server to speak with; empty for none. Default: that of the voice.",
        empty_counts=True,
    ),
    Field(
        "response_format",
        "string",
        "mp3, or pcm: 16-bit little-endian at the rate of the model. Only /generate. Default: mp3.",
        choices=("mp3", "pcm"),
        sets=("config.output",),
    ),
)
WAV_FIELDS = (
    Field("wav_base64", "string", "A recording: its file in base64.", required=True, sets=("audio", "source")),
    Field("wav_format", "string", "Ignored: the server detects the container."),
)
NAME_FIELDS = (Field("name", "string", "Name of the voice. Default: none.", sets=("display_name",)),)
PROMPT_FIELDS = (
    *WAV_FIELDS,
    Field("prompt_text", "string", "The words of the recording.", required=True, sets=("transcript",)),
    *NAME_FIELDS,
)
REFERENCE_FIELDS = (*WAV_FIELDS, *NAME_FIELDS)
ENCODE_FIELDS = (
    *WAV_FIELDS,
    Field("role", "string", "The later use of the latents. Default: prompt.", choices=("prompt", "reference")),
)
MP3, WAV, PCM = "mp3", "wav", "pcm_s16le"
CHANNELS = 1
KINDS = {"prompts": ("prompt", "prompt_id"), "references": ("reference", "reference_id"), "hifi": ("hifi", "hifi_id")}


def routes() -> list[BaseRoute]:
    voices = [
        route
        for folder in KINDS
        for route in (
            Route(f"/{folder}", list_voices, methods=["GET"]),
            Route(f"/{folder}/{{id}}", delete_voice, methods=["DELETE"]),
        )
    ]
    return [
        Route("/generate", generate, methods=["POST"]),
        Route("/generate_blocking", generate_blocking, methods=["POST"]),
        Route("/generate_blocking_wav", generate_blocking_wav, methods=["POST"]),
        Route("/encode_latents", encode_latents, methods=["POST"]),
        Route("/add_prompt", add_prompt, methods=["POST"]),
        Route("/add_reference", add_reference, methods=["POST"]),
        Route("/add_hifi", add_hifi, methods=["POST"]),
        Route("/info", info, methods=["GET"]),
        *voices,
    ]


# ------------------------------------------------------------ speech


async def generate(request: Request) -> Response:
    return await _generate(request, "audio", None)


async def generate_blocking(request: Request) -> Response:
    return await _generate(request, "blocking", MP3)


async def generate_blocking_wav(request: Request) -> Response:
    return await _generate(request, "blocking", WAV)


async def _generate(request: Request, form: Form, encoding: str | None) -> Response:
    state, client = GatewayState.of(request), caller_client(request)
    async with state.body_of(request) as limited:
        fields = GENERATE_FIELDS if encoding is None else GENERATE_FIELDS[:-1]
        values = await read_json(limited, fields)
        if not values["target_text"].strip():
            raise HttpError(400, "target_text is empty; give the text to speak", param="target_text")
        chosen = encoding or {"mp3": MP3, "pcm": PCM}[values.get("response_format", "mp3")]
        options = {"format": chosen, "max_wait": 0.0, "request_id": Exchange.of(request.scope).request_id}
        options |= await _conditioning(values, client, state)
        names = {"max_generate_length": "max_steps", "temperature": "temperature", "cfg_value": "cfg_value"}
        for name, option in (names | {"seed": "seed", "lora": "lora"}).items():
            if name in values:
                options[option] = values[name]
        stream = client.speak(values["target_text"], **cast(SpeechOptions, options))
    media_type = {MP3: "audio/mpeg", WAV: "audio/wav"}.get(chosen, "audio/L16")
    return SpokenResponse(stream, media_type=media_type, form=form, headers=_audio_headers)


def _audio_headers(stream: AsyncStream) -> Mapping[str, str]:
    assert stream.header is not None
    rate, encoding = stream.header.sample_rate, stream.header.encoding.value
    headers = {
        "x-audio-sample-rate": str(rate),
        "x-audio-channels": str(CHANNELS),
        "x-audio-encoding": {PCM: "s16le"}.get(encoding, encoding),
    }
    return headers | ({"content-type": f"audio/L16;rate={rate};channels={CHANNELS}"} if encoding == PCM else {})


async def _conditioning(values: Mapping[str, Any], client: AsyncClient, state: GatewayState) -> dict[str, Any]:
    """The voice of a request, as options of the client. Raises HttpError for fields that contradict."""
    prompt = _one(values, "prompt_wav_base64", "prompt_latents_base64", "prompt_id", "hifi_id")
    reference = _one(values, "ref_audio_wav_base64", "ref_audio_latents_base64", "ref_audio_id", "hifi_id")
    inline = prompt in ("prompt_wav_base64", "prompt_latents_base64")
    text = values.get("prompt_text")
    if inline and not text:
        raise HttpError(400, f"{prompt} needs prompt_text, the words of the recording", param="prompt_text")
    if text and not inline:
        raise HttpError(
            400, "prompt_text needs prompt_wav_base64 or prompt_latents_base64; remove it", param="prompt_text"
        )
    options: dict[str, Any] = {}
    stored = [values[name] for name in dict.fromkeys((prompt, reference)) if name and name.endswith("_id")]
    if stored:
        options["voice"] = stored[0] if len(stored) == 1 else stored
    if inline:
        options["prompt"] = Prompt(await _source(values, prompt, client, state), cast(str, text))
    if reference in ("ref_audio_wav_base64", "ref_audio_latents_base64"):
        options["reference"] = await _source(values, reference, client, state)
    return options


def _one(values: Mapping[str, Any], *names: str) -> str:
    """The one of the fields that is given; empty if none is. Raises HttpError for several."""
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise HttpError(400, f"{' and '.join(given)} exclude each other; give one of them", param=given[1])
    return given[0] if given else ""


async def _source(values: Mapping[str, Any], name: str, client: AsyncClient, state: GatewayState) -> bytes | Latents:
    data = await from_base64(values[name], name)
    if "latents" not in name:
        return data
    info = await state.model_info(client)
    if not info.feat_dim:
        raise HttpError(
            400, f"{name} cannot be used, because {info.model} has no latents; send a recording", param=name
        )
    width = 4 * info.feat_dim
    if not data or len(data) % width:
        raise HttpError(400, f"{name} has {len(data)} bytes, which are not float32 [frames, {width // 4}]", param=name)
    return Latents(data=np.frombuffer(data, "<f4").reshape(-1, width // 4), model_fingerprint="")


# ------------------------------------------------------------ recordings


async def encode_latents(request: Request) -> Response:
    state, client = GatewayState.of(request), caller_client(request)
    async with state.body_of(request) as limited:
        values = await read_json(limited, ENCODE_FIELDS)
        audio = await from_base64(values["wav_base64"], "wav_base64")
        work = client.encode_latents(audio, role=values.get("role", "prompt"))
        latents: Latents = await while_connected(request.receive, work)
    found = {
        "prompt_latents_base64": base64.b64encode(latents.data.astype("<f4").tobytes()).decode(),
        "latents_dtype": "float32",
    }
    return JSONResponse(found | _rates(await state.model_info(client)))


async def add_prompt(request: Request) -> Response:
    return await _add(request, "prompts", PROMPT_FIELDS)


async def add_reference(request: Request) -> Response:
    return await _add(request, "references", REFERENCE_FIELDS)


async def add_hifi(request: Request) -> Response:
    return await _add(request, "hifi", PROMPT_FIELDS)


async def _add(request: Request, folder: str, fields: tuple[Field, ...]) -> Response:
    state, client = GatewayState.of(request), caller_client(request)
    async with state.body_of(request) as limited:
        values = await read_json(limited, fields)
        audio = await from_base64(values["wav_base64"], "wav_base64")
        options: dict[str, Any] = {"request_id": Exchange.of(request.scope).request_id}
        if "name" in values:
            options["name"] = values["name"]
        work = {
            "prompts": lambda: client.add_prompt(audio, values["prompt_text"], **options),
            "references": lambda: client.add_reference(audio, **options),
            "hifi": lambda: client.add_hifi(audio, values["prompt_text"], **options),
        }[folder]
        voice = await while_connected(request.receive, work())
    ids = {KINDS[folder][1]: voice.id}
    if folder == "hifi":
        ids |= {"prompt_id": voice.prompt_id, "reference_id": voice.reference_id}
    return JSONResponse(ids | _rates(await state.model_info(client)))


async def list_voices(request: Request) -> Response:
    folder = request.url.path.strip("/")
    kind, key = KINDS[folder]
    voices = await caller_client(request).voices(kind=cast(Any, kind))
    found = [
        {
            key: voice.id,
            "name": voice.name,
            "prompt_text": voice.transcript,
            "seconds": voice.prompt_seconds or voice.reference_seconds,
        }
        for voice in voices
        if voice.created is not None  # presets have no time of creation
    ]
    return JSONResponse({folder: found})


async def delete_voice(request: Request) -> Response:
    client, id = caller_client(request), request.path_params["id"]
    kind, key = KINDS[request.url.path.strip("/").partition("/")[0]]
    voice = await client.get_voice(id)
    if voice.kind != kind:
        raise NotFound(f"{key} {id!r} is the id of a {voice.kind}, not of a {kind}", field="id")
    await client.delete_voice(voice.id, cascade=True)
    return JSONResponse(None)


# ------------------------------------------------------------ the model


async def info(request: Request) -> Response:
    model = await caller_client(request).model_info()
    lists = ("target_modules_lm", "target_modules_dit", "target_proj_modules", "registered_names")
    off = ("enabled", "enable_lm", "enable_dit", "enable_proj", "loaded")
    rates = {name: value for name, value in _rates(model).items() if name != "feat_dim"}
    return JSONResponse(
        {
            "model": {
                **rates,
                "feat_dim": model.feat_dim,
                "patch_size": model.patch_size,
                "model_path": model.model,  # the value is a name: the server tells no paths
            },
            "lora": dict.fromkeys(off, False) | {name: [] for name in lists},
            "mp3": {"bitrate_kbps": None, "quality": None},
        }
    )


def _rates(model: ModelInfo) -> dict[str, Any]:
    return {"feat_dim": model.feat_dim, "sample_rate": model.output_sample_rate, "channels": CHANNELS}
