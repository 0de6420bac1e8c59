"""Bodies as programs of all kinds send them: cut characters, other encodings, compressed, with fields twice."""

from __future__ import annotations

import gzip

import pytest
from support.clients.json_values import HALF
from support.servers.uploads import recording

pytestmark = pytest.mark.thorough

JSON = {"content-type": "application/json"}
LOW = r"\ude00"  # the other half of HALF
AUDIO = {"audio_sample": ("a.wav", recording(1), "audio/wav")}


async def post(gateway, body: str | bytes, path: str = "/v1/audio/speech", **headers: str):
    content = body.encode() if isinstance(body, str) else body
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.http.post(path, content=content, headers=JSON | more)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        (f"One {HALF}", "One \ufffd"),
        (f"One {LOW} two", "One \ufffd two"),
        (f"{LOW}{HALF} one", "\ufffd\ufffd one"),
        (f"One {HALF}{LOW} two", "One \U0001f600 two"),
    ],
)
@pytest.mark.parametrize(("path", "field"), [("/v1/audio/speech", "input"), ("/generate", "target_text")])
async def test_half_of_a_pair_in_a_text_is_spoken_as_an_unknown_character(
    gateway, served, path, field, written, spoken
):
    response = await post(gateway, f'{{"{field}": "{written}"}}', path)
    assert response.status_code == 200, response.text
    assert "".join(request.text for request in served.pool.requests).split() == spoken.split()


async def test_halves_of_a_pair_that_are_written_in_utf_8_are_joined(gateway, served):
    body = '{"input": "One \ud83d\ude00 two"}'.encode("utf-8", "surrogatepass")
    assert (await post(gateway, body)).status_code == 200
    assert served.pool.requests[0].text == "One \U0001f600 two"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("voice", f'"{HALF}"', "voice"),
        ("voice", f'{{"id": "x{HALF}"}}', "voice"),
        ("model", f'"{HALF}"', "model"),
        ("instructions", f'"calm {HALF}"', "instructions"),
        ("lexicon", f'{{"GIF": "{HALF}"}}', "lexicon"),
        ("lexicon", f'{{"{HALF}": "jif"}}', "lexicon"),
        ("extra_params", f'{{"{HALF}": 1}}', r"extra_params.\ud83d"),
        (HALF, "1", r"\ud83d"),
    ],
)
async def test_half_of_a_pair_elsewhere_is_refused_by_name(gateway, served, field, value, param):
    response = await post(gateway, f'{{"input": "a", "{field}": {value}}}')
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert "half of a surrogate pair, U+D83D" in error["message"] or error["code"] == "unknown_parameter"
    assert not served.pool.requests


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
async def test_other_encodings_of_unicode_are_read(gateway, served, encoding):
    assert (await post(gateway, '{"input": "Größe"}'.encode(encoding))).status_code == 200
    assert served.pool.requests[0].text == "Größe"


@pytest.mark.parametrize(
    "kind", ["application/json; charset=ISO-8859-1", 'application/json;charset="UTF-8"', "a/b+json"]
)
async def test_a_charset_beside_the_type_does_not_matter(gateway, kind):
    assert (await post(gateway, '{"input": "One"}', content_type=kind)).status_code == 200


UNREADABLE = {
    "latin": ('{"input": "Größe"}'.encode("latin-1"), {}, 400, "byte 13 is not of UTF-8; send UTF-8"),
    "gzip": (
        gzip.compress(b'{"input": "a"}'),
        {"content_encoding": "gzip"},
        415,
        "encoding 'gzip'; send it uncompressed",
    ),
    "brotli": (b'{"input": "a"}', {"content_encoding": "br"}, 415, "content encoding 'br'"),
    "empty": (b"", {}, 400, "not JSON at position 0"),
    "two": (b'{"input": "a"} {}', {}, 400, "not JSON at position 15"),
    "twice": (b'{"input": "a", "input": "b"}', {}, 400, "'input' is given twice; send it once"),
    "deep": (b'{"input": ' + b"[" * 100_000, {}, 400, "nested too deeply"),
    "long key": (b'{"input": "a", "%s": 1}' % (b"k" * 3_000_000), {}, 400, "is unknown"),
    "long string": (b'{"input": "a", "seed": "%s"}' % (b"7" * 3_000_000), {}, 400, "it must be a whole number"),
    "long list": (b'{"input": "a", "voice": [%s1]}' % (b"1," * 99_999), {}, 400, "voice is a list"),
}


@pytest.mark.parametrize(("body", "headers", "status", "words"), UNREADABLE.values(), ids=UNREADABLE)
async def test_a_body_that_cannot_be_read_is_refused_in_a_short_message(gateway, body, headers, status, words):
    response = await post(gateway, body, **headers)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    assert len(response.json()["error"]["message"]) < 500


async def test_identity_is_no_compression(gateway):
    assert (await post(gateway, '{"input": "One"}', content_encoding="identity")).status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("seed", "9" * 300, "seed is 1e+300; it must be 0 to 9223372036854775807"),
        ("seed", "9" * 5000, "seed is Infinity; it must be 0 to 9223372036854775807"),
        ("seed", str(2**63), "seed is 9223372036854775808; it must be 0 to"),
        ("seed", "7.5", "seed is 7.5; it must be a whole number"),
        ("seed", "true", "seed is true; it must be a whole number"),
        ("speed", "1e400", "speed is Infinity; it must be 0.5 to 2"),
        ("speed", "-1e400", "speed is -Infinity; it must be 0.5 to 2"),
        ("sample_rate", "-1", "sample_rate is -1; it must be 0 to 4294967295"),
        ("extra_params", f'{{"max_steps": {"9" * 400}}}', "extra_params.max_steps is Infinity; it must be 0 to 429"),
        ("extra_params", f'{{"cfg_value": {"9" * 300}}}', "extra_params.cfg_value is inf; it must be from 0 to 10"),
        ("extra_params", f'{{"temperature": {"9" * 5000}}}', "extra_params.temperature is Infinity; it must be a num"),
    ],
)
async def test_a_number_out_of_range_is_refused_with_the_range(gateway, field, value, words):
    response = await post(gateway, f'{{"input": "a", "{field}": {value}}}')
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"].startswith(field)


@pytest.mark.parametrize("value", ["7.0", "7", "0.7e1"])
async def test_a_whole_number_may_be_written_with_a_point(gateway, served, value):
    assert (await post(gateway, f'{{"input": "a", "seed": {value}}}')).status_code == 200
    assert served.pool.requests[0].sampling.seed == 7


@pytest.mark.parametrize(
    "charset", ["utf-7", "utf-16", "punycode", "raw_unicode_escape", "undefined", "nonsense", "\xff"]
)
async def test_a_form_in_another_charset_is_refused(gateway, charset):
    kind = f"multipart/form-data; boundary=x; charset={charset}".encode("latin-1")
    body = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n\\ud83d\r\n--x--\r\n'
    response = await gateway.http.post("/v1/audio/voices", content=body, headers=[(b"content-type", kind)])
    assert response.status_code == 415
    assert "it must be UTF-8" in response.json()["error"]["message"]


async def test_a_form_that_names_utf_8_is_read(gateway):
    kind = b"multipart/form-data; boundary=x; charset=UTF-8"
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % part
        for part in (
            (b"name", b"", "Zoë".encode()),
            (b"consent", b"", b"yes"),
            (b"audio_sample", b'; filename="\xff\xfe.wav"', recording(1)),
        )
    )
    response = await gateway.http.post(
        "/v1/audio/voices", content=parts + b"--x--\r\n", headers=[(b"content-type", kind)]
    )
    assert response.status_code == 200, response.text
    assert response.json()["name"] == "Zoë"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"name": "x" * 300}, "name", "name has 300 characters and the limit is 200"),
        ({"name": "a\x00b"}, "name", "name has the control character U+0000"),
        ({"ref_text": "x" * 3000}, "ref_text", "ref_text: the transcript has 3001 characters"),
        ({"lora": "nobody"}, "lora", "no LoRA adapter 'nobody'"),
        ({"model": "nothing"}, "model", "'nothing' does not exist"),
        ({"consent": " "}, "consent", "says no"),
        ({"consent": ""}, "consent", "consent is empty; it is required"),
        ({"nmae": "x"}, "nmae", "did you mean name?"),
        ({"type": "Audio_Sample", "name": ""}, "name", "name is empty"),
    ],
)
async def test_an_error_of_a_form_names_its_field(gateway, fields, param, words):
    response = await gateway.http.post("/v1/audio/voices", data={"name": "Ada", "consent": "yes"} | fields, files=AUDIO)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


async def test_a_recording_that_cannot_be_read_is_the_field_with_it(gateway):
    form = {"name": "Ada", "consent": "yes"}
    response = await gateway.http.post("/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", b"nonsense")})
    assert response.json()["error"]["param"] == "audio_sample"
    response = await post(gateway, '{"wav_base64": "AAAA"}', "/add_reference")
    assert response.json()["error"]["param"] == "wav_base64"
    assert "wav_base64" in response.json()["detail"]
