"""Contents of stored voices: VoxCPM's are those of all servers before, other models have arrays of their own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save
from support.engines.voice_parts import latents_of, voice_part
from support.servers.voice_stores import Servers

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest
from voxcpm_grpc.events import Finished, FinishReason
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.request import Conditioning, Request, VoicePart, joined
from voxcpm_server.values.voice import Voice, VoiceKind
from voxcpm_server.voices.store.records import (
    Damaged,
    Record,
    StoredVoice,
    decode_content,
    decode_record,
    encode,
    voice_id,
)

# Written by servers that knew one format. Base 85 of the record and of the arrays.
BEFORE: dict[VoiceKind, tuple[str, str]] = {
    VoiceKind("prm"): (
        (
            "dm?6Ua&2LBB04cFB6e?SV`U;bdm?FMB03^)a&2EUYGYz+YG`U|aBy&LZDwM5Wn+17bvAQ(b8ly9Y-D00EFx=ZZe$`lB5-nTA"
            "}k_iX>Mm_a&U5KZge6#B4%c0W@ct)W@ct)W@ct)W@ct)W@ct)W@ct)W@ct)W+E&ibaG*Cb7OL8aC9O%B1dw=yu+VmE+8T-B4"
            "lZEaBN|DUv6P-Wg<EvL2hngA}k_oVPa)$b0Ru>B4HvrB4Q$aEFyGtY$7@{HZU+QFf1Zta%Ew3Wn>~cF*h(UFfcGMFfcAKEFy"
            "JtWn>~cF*h(UFfcGMFf}ePEFy4nZ*6dNUvp(+Z*F9BB04cHH7p`>WoBh^Wo~0-Uvp(+Z*F9BB04ZGFf1Z)a&K*LbYE#?B03@"
            ">EFyAcW@U0^ZewL%X=EZgA|fmzaB^vGV`*?<Y$7@$ZDk@XB5ZGRVIn#rcVTjEA}k_rbZBLAUv6P-Wpg4rTU~uDB5YxFWo~qH"
            "B03^AIc7F6VK*~mW;tXuF=1gcGi5hoVliPbH)UovF=1jgH!?P5H8nFLeE"
        ),
        (
            "KmY&$00000dm?ahZ*6dNB075_WOR9OWg<EvMl&)ZEFyDgVQ^(4I$JU<GAuM*EFxrKbYWj_W@d9`baNs)TQDp(G+ljtRaMo$t"
            "E#HM004l$tEwu$tE#HL00000tE#F#tEwtL004kLtE#F$RaMnL0000$RaF&0tEwtM002NhRaI3$"
        ),
    ),
    VoiceKind("ref"): (
        (
            "dm?6Ua&2LBB04cFB6e?SV`U;bdm?FMB03^+WoBPCG%{^xZ8mXcb2MUdd2elLHFGjDVsd9}Vq|r3VKreQEFx=ZZe$`lB64MBA"
            "}k_iX>Mm_a&U5KZge6#B4%c0W@ct)W@ct)W@ct)W@ct)W@ct)W@ct)W@ct)W+E&ibaG*Cb7OL8aC9O%A|fmzWNCA7Y+-p{Ze"
            "eX@B03^LZf;>BEFx@SVr6V|B075_VIn#rVj_JkB6M_YB04iRFfcAKEFxoaWnpw>WFk5-H!v_TFfcGMFfK4GB6V|RWFk5-H!v"
            "_TFfcGMH7+nLB5-nVZE$p7b7f<1Ze(*JIxsFUEFyAcW@U0^ZewL%b7f<1Ze(*JIx;RbEFy4nZ*6dNUuk3_IwB%0B64MBWpZV"
            "1V`X1yWFk5uA}k_sa%pa3X>eg|B03^%Wg;vhY;SU5B03^>VRCIEEFy1oXk~I=ZeeX@b0RuhU41MfY+-a|Zgg`ZIwCV+W-~T4"
            "HDxq8G-6>nI59G0IW#miV=*%^WHT^gIX7i7VP;`7GcY23"
        ),
        (
            "NB{r;00000dm?gWW@U0^ZewL4I(s5yba`-PB03^QGcqD9B6DbAaAhJoTQMv$EHqs#B4lB7VP9`%W^-k9b0RuhFf21NU44BZA"
            "Rr(h004kL0000#tE#F#004kK&CE<btEwtKB}o!K0000!"
        ),
    ),
    VoiceKind("hifi"): (
        (
            "dm?6Ua&2LBB04cFB6e?SV`U;bdm?FMB03^yX=Z6(W_f0MXlQ3OXES<icW7mKH8O8wX>wySbY?bWG+}vqA}k_nX>Md9IwELkW"
            "@#cUB4%lBXJvA5a%paKB03^wW@ct)W@ct)W@ct)W@ct)W@ct)W@ct)W@ct)W@ct0EFyGrVQzC{a%pgMB03^Ra>KmCpJgr}A}"
            "k_gX>)LFVR>I}VQpn1IwC=CZeb!UB5Yw|Wo&aII(s5vB03^sB7H0(baZSYIx{vfFfK4GB4cu8VRU6=B04cQFfcGMFfcGME-)"
            "-2b#rB8B04cQFfcGMFfcGRE-)-2aB^>LaCBdDWn*t{WOE`qF)lSMB64MBWpZV1V`X1+Wn*t{WOE`qGA=bNB5-nVZE$p7X=EZ"
            "gB5-nTUoj#qB64MBWpZV1V`X1yWFk5ua%E;;F(ND?aB^vGV`*?<Y$7@$ZDk@XB5ZGRVIn#rcVTjEA}k_rbZBLAUv6P-Wpg4r"
            "TU~uDB5YxFWo~qHB03^AH)At1Ff(CfGGjL|Vl-wsH#9ahVl`uCHe@(6VK6pgIALaCHDNF!eE"
        ),
        (
            "hyVZp00000dm?ahZ*6dNB075_WOR9OWg<EvMl&)ZEFyDgVQ^(4I$JU<GAuM*EFxrKbYWj_W@d9`baNs)TQDp(G+lixB64MBW"
            "pZV1V`U;bdm?0Xd2nSSIwD3hG9oM@b7*03Wg<FTF)T7HG+itrWMOn+UvFk+b7gdMB05_(G%PtbU44BZARr(hRaMo$tE#HM00"
            "4l$tEwu$tE#HL00000tE#F#tEwtL004kLtE#F$RaMnL0000$RaF&0tEwtM002NhRaI3$004kL0000#tE#F#004kK&CE<btEw"
            "tKB}o!K0000!"
        ),
    ),
}
PROMPT = (np.arange(16, dtype=np.float32).reshape(2, 2, 4) - 5) / 3
REFERENCE = np.float32(1) / (1 + np.arange(8, dtype=np.float32).reshape(1, 2, 4))
CODES = np.array([[2047, -1], [256, 257], [-32768, 32767]], np.int16)
SPEAKER = np.array([np.pi, -0.0, 1e-45, np.inf], np.float32)


def described(kind: VoiceKind) -> Voice:
    """The voice of `BEFORE` of a kind."""
    hifi, prompt, reference = kind is VoiceKind.HIFI, kind is not VoiceKind.REFERENCE, kind is not VoiceKind.PROMPT
    return Voice(
        id=voice_id(kind, "x"),
        kind=kind,
        fingerprint="f" * 32,
        transcript="Grüße. " if prompt else "",
        display_name="Anna",
        labels={"a": "b"},
        ttl=3600.0,
        created=1.7e9,
        used=1.7e9 + 5,
        prompt_seconds=1.5 if prompt else 0.0,
        reference_seconds=2.5 if reference else 0.0,
        prompt_id="prm_1" if hifi else "",
        reference_id="ref_1" if hifi else "",
        principal="me",
        lora="warm",
    )


def voice_of_codes(kind: VoiceKind = VoiceKind.HIFI) -> StoredVoice:
    """A voice of a model whose prompts are codes, and whose references are one vector."""
    voice = described(kind)
    prompt = VoicePart(content={"codes": CODES, "speaker": SPEAKER}, tracks=("codes",), text=voice.transcript)
    reference = VoicePart(content={"speaker": SPEAKER}, tracks=())
    return StoredVoice(
        voice=voice,
        prompt=None if kind is VoiceKind.REFERENCE else prompt,
        reference=None if kind is VoiceKind.PROMPT else reference,
    )


def same_part(one: VoicePart | None, other: VoicePart | None) -> None:
    """Equal names, types, shapes and bits."""
    assert one is not None and other is not None
    assert (one.tracks, one.text, one.content.keys()) == (other.tracks, other.text, other.content.keys())
    for name, array in one.content.items():
        assert (array.dtype, array.shape) == (other.content[name].dtype, other.content[name].shape)
        assert array.tobytes() == other.content[name].tobytes()


@pytest.mark.parametrize("kind", BEFORE)
def test_voices_of_voxcpm_are_written_byte_for_byte_as_before_and_old_ones_load(kind):
    record, data = map(base64.b85decode, BEFORE[kind])
    voice = described(kind)
    prompt = None if kind is VoiceKind.REFERENCE else voice_part(PROMPT, voice.transcript)
    reference = None if kind is VoiceKind.PROMPT else voice_part(REFERENCE)
    assert encode(StoredVoice(voice=voice, prompt=prompt, reference=reference)) == (record, data)
    loaded = decode_content(decode_record(voice.id, record), data)
    assert loaded.voice == voice
    if prompt is not None:
        same_part(loaded.prompt, prompt)
    if reference is not None:
        same_part(loaded.reference, reference)


@pytest.mark.parametrize("kind", BEFORE)
async def test_arrays_of_other_models_survive_the_store_and_a_restart_with_their_bits(tmp_path, kind):
    servers, stored = Servers(str(tmp_path)), voice_of_codes(kind)
    fingerprint = stored.voice.fingerprint
    await servers.open(fingerprint).add(stored)
    loaded = await servers.open(fingerprint).load(stored.voice.id)
    if stored.prompt is not None:
        same_part(loaded.prompt, stored.prompt)
        assert loaded.prompt is not None and not loaded.prompt.content["codes"].flags.writeable
    if stored.reference is not None:
        same_part(loaded.reference, stored.reference)
    assert loaded.nbytes == stored.nbytes
    with pytest.raises(FailedPrecondition, match="was made with model ffff"):
        await servers.open("another").load(stored.voice.id)


def test_an_older_server_tells_that_it_cannot_read_a_voice_of_another_model():
    """It reads the number of the format before all else, and knows 1 alone."""
    record, _ = encode(voice_of_codes())
    assert msgspec.json.decode(record)["format"] == 2
    newer = record.replace(b'"format":2', b'"format":3')
    with pytest.raises(FailedPrecondition, match="is stored in format 3 and this server reads formats 1 to 2; upgrade"):
        decode_record(voice_of_codes().voice.id, newer)


def test_other_arrays_of_the_name_of_latents_do_not_lose_their_type():
    for part in (voice_part(PROMPT.astype(np.float64)), VoicePart(content={"latents": PROMPT}, tracks=())):
        stored = StoredVoice(voice=described(VoiceKind.REFERENCE), reference=part)
        record, data = encode(stored)
        same_part(decode_content(decode_record(stored.voice.id, record), data).reference, part)


def arrays(data: dict[str, np.ndarray]) -> Callable[[Record, bytes], tuple[Record, bytes]]:
    """Replaces the arrays of a voice by others, with their digest."""
    content = save(data)
    digest = hashlib.blake2b(content, digest_size=20).hexdigest()
    return lambda record, _: (msgspec.structs.replace(record, latents=digest), content)


DAMAGES: dict[str, Callable[[Record, bytes], tuple[Record, bytes]]] = {
    "other bytes": lambda record, data: (record, data[:-1] + b"x"),
    "no part": arrays({}),
    "one part of two": arrays({"prompt.codes": CODES}),
    "a track that is missing": arrays({"prompt.speaker": SPEAKER, "reference.speaker": SPEAKER}),
    "an unknown role": arrays({"prompt.codes": CODES, "reference.speaker": SPEAKER, "timbre.speaker": SPEAKER}),
    "tracks of no part": lambda record, data: (msgspec.structs.replace(record, tracks={}), data),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_voice_whose_arrays_are_not_what_was_written_is_damaged(damage):
    stored = voice_of_codes()
    record, data = encode(stored)
    record, data = DAMAGES[damage](decode_record(stored.voice.id, record), data)
    with pytest.raises(Damaged):
        decode_content(record, data)


@pytest.mark.parametrize(
    ("content", "tracks", "fault"),
    [
        ({}, (), "no content"),
        ({"codes": np.array([object()])}, ("codes",), "an array of objects"),
        ({"codes": CODES}, ("latents",), "tracks that are missing"),
        ({"codes": CODES, "pitch": SPEAKER}, ("codes", "pitch"), "tracks that are missing or differ in length"),
        ({"codes": np.array(3)}, ("codes",), "tracks that are missing or differ in length"),
    ],
)
def test_no_voice_has_objects_or_tracks_of_different_lengths_or_nothing(content, tracks, fault):
    with pytest.raises(InvalidRequest, match=fault):
        VoicePart(content=content, tracks=tracks)


def test_arrays_survive_messages_with_their_bits():
    stored = voice_of_codes()
    voice = Conditioning(prompt=stored.prompt, reference=stored.reference)
    sent = encoding.decode_command(encoding.encode(m.Submit(Request(id="a", text="Hi.", conditioning=voice), 1)))
    assert isinstance(sent, m.Submit)
    same_part(sent.request.conditioning.prompt, stored.prompt)
    same_part(sent.request.conditioning.reference, stored.reference)
    end = Finished(reason=FinishReason.STOP, steps=3, engine_seconds=1.0, speech=stored.prompt)
    (report,) = encoding.decode_reports(encoding.encode([m.CallEvent("a", end)]))
    assert isinstance(report, m.CallEvent) and isinstance(report.body, Finished)
    same_part(report.body.speech, stored.prompt)


def test_parts_join_by_their_tracks_and_keep_the_other_arrays_of_the_first():
    """A vector as long as the speech is no track."""
    other = np.array([1, 2, 3], np.float32)
    first = VoicePart(content={"codes": CODES, "speaker": other}, tracks=("codes",), text="One.")
    second = VoicePart(content={"codes": CODES[:1]}, tracks=("codes",), text="Two.")
    both = joined([first, second, replace(first, content={"codes": CODES, "speaker": -other})], "One. Two.")
    assert (both.steps, both.text) == (7, "One. Two.")
    assert both.content["codes"].dtype == np.int16
    np.testing.assert_array_equal(both.content["codes"], np.concatenate([CODES, CODES[:1], CODES]))
    np.testing.assert_array_equal(both.content["speaker"], other)
    start = both.first(2)
    assert (start.steps, start.content["speaker"].shape) == (2, (3,))
    assert voice_of_codes().reference.steps == 0  # pyright: ignore[reportOptionalMemberAccess]
    np.testing.assert_array_equal(latents_of(voice_part(PROMPT).first(9)), PROMPT)
