"""The HTTP statuses that the refusals of the server become, and the credentials of callers."""

import asyncio

import pytest
from support.servers.uploads import recording

from voxcpm_client import SpeechError
from voxcpm_client.errors import KINDS
from voxcpm_gateway.errors import from_server
from voxcpm_server.auth.keys import create


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INVALID_ARGUMENT", 400),
        ("FAILED_PRECONDITION", 400),
        ("UNAUTHENTICATED", 401),
        ("PERMISSION_DENIED", 403),
        ("NOT_FOUND", 404),
        ("RESOURCE_EXHAUSTED", 429),
        ("UNAVAILABLE", 503),
        ("ABORTED", 503),
        ("DEADLINE_EXCEEDED", 504),
        ("INTERNAL", 500),
    ],
)
def test_each_code_of_grpc_has_a_status(code, status):
    error = from_server(KINDS[code]("it failed", retry_after=2.3))
    assert error.status == status
    assert error.response().headers.get("retry-after") == ("3" if status in (429, 503) else None)
    assert error.body["error"]["message"] == error.body["detail"] == "it failed"


def test_an_unknown_code_is_a_fault_of_the_server():
    assert from_server(SpeechError("x")).status == 500


async def test_a_full_server_is_429_with_a_time(serve_front, serve_gateway):
    async with (
        serve_front(max_streams=1, max_streams_per_caller=0, max_streams_per_connection=0) as served,
        serve_gateway(served.address) as gateway,
    ):
        served.pool.hold_after = 3
        body = {"input": "Hello there.", "response_format": "pcm"}
        async with gateway.http.stream("POST", "/v1/audio/speech", json=body) as first:
            assert first.status_code == 200
            response = await gateway.speak("Hello.")
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["type"] == "rate_limit_error"
            assert response.json()["error"]["code"] == "rate_limit_exceeded"
            served.pool.release()
            await first.aread()


async def test_a_server_that_is_away_is_503_and_not_ready(serve_gateway):
    async with serve_gateway("127.0.0.1:1") as gateway:
        response = await gateway.speak("Hello.")
        assert response.status_code == 503
        assert "retry-after" in response.headers
        assert (await gateway.http.get("/health")).json() == {"status": "ok"}
        ready = await gateway.http.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["detail"] == "the server is not ready"


async def test_a_call_that_takes_too_long_is_504(served, serve_gateway):
    served.pool.hold_after = 0
    async with serve_gateway(served.address, server={"timeout": 0.5}) as gateway:
        assert (await gateway.speak("Hello.", model=None)).status_code in (429, 504)  # by the estimate of the queue
    served.pool.release()


async def test_each_caller_has_the_identity_of_its_key(tmp_path, serve_front, serve_gateway):
    file = tmp_path / "keys.toml"
    keys = {name: await asyncio.to_thread(create, name, file) for name in ("ada", "bob")}
    async with (
        serve_front(server={"auth": {"keys": file}}) as served,
        serve_gateway(served.address) as gateway,
    ):
        headers = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        for path in ("/v1/models", "/v1/audio/voices", "/v1/audio/models", "/info", "/prompts"):
            refused = await gateway.http.get(path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["type"] == "authentication_error"
        assert (await gateway.speak("Hello.")).status_code == 401
        wrong = await gateway.http.get("/v1/models", headers={"authorization": "Bearer sk-none"})
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        files = {"audio_sample": ("a.wav", recording(1), "audio/wav")}
        form = {"name": "Mine", "consent": "yes"}
        stored = await gateway.http.post("/v1/audio/voices", data=form, files=files, headers=headers["ada"])
        assert stored.status_code == 200
        for name, count in (("ada", 1), ("bob", 0)):
            listed = await gateway.http.get("/v1/audio/voices", headers=headers[name])
            assert len(listed.json()["voices"]) == count
        body = {"input": "Hello.", "voice": "Mine"}
        spoken = await gateway.http.post("/v1/audio/speech", json=body, headers=headers["ada"])
        other = await gateway.http.post("/v1/audio/speech", json=body, headers=headers["bob"])
        assert (spoken.status_code, other.status_code) == (200, 404)


NO_KEYS = [
    ["Basic dXNlcjpwYXNz"],  # as browsers send it to a proxy that asked for it, and also pass on
    ['Digest username="ada", realm="site", nonce="1", uri="/", response="2"'],
    ["Negotiate YII="],
    [""],
    ["Bearer"],
    ["Bearer \xe4"],
    ["Bearer a\tb"],
    ["Bearer sk-one", "Bearer sk-two"],
    ["Basic dXNlcjpwYXNz", "Bearer sk-none"],
    ["voxcpm_key"],
]


@pytest.mark.parametrize("values", NO_KEYS, ids=str)
async def test_an_authorization_that_is_no_key_is_ignored_where_no_key_is_needed(gateway, values):
    headers = [(b"authorization", value.encode("latin-1")) for value in values]
    assert (await gateway.http.get("/v1/models", headers=headers)).status_code == 200
    spoken = await gateway.http.post("/v1/audio/speech", json={"input": "Hello."}, headers=headers)
    assert spoken.status_code == 200


@pytest.fixture
async def guarded(tmp_path, serve_front, serve_gateway):
    """A gateway before a server with keys, and one of them."""
    file = tmp_path / "keys.toml"
    key = await asyncio.to_thread(create, "ada", file)
    async with (
        serve_front(server={"auth": {"keys": file}}) as served,
        serve_gateway(served.address) as gateway,
    ):
        yield gateway, key


@pytest.mark.parametrize("values", NO_KEYS, ids=str)
async def test_an_authorization_that_is_no_key_is_401_where_one_is_needed(guarded, values):
    gateway, _ = guarded
    headers = [(b"authorization", value.encode("latin-1")) for value in values]
    response = await gateway.http.get("/v1/models", headers=headers)
    assert response.status_code == 401
    message = response.json()["error"]["message"]
    if any(value.strip().lower().startswith("bearer ") and value.split()[1:] for value in values):
        assert "not valid" in message
    else:
        assert "`authorization: Bearer KEY`" in message


async def test_a_key_counts_beside_the_authorization_of_another_scheme(guarded):
    gateway, key = guarded
    both = [("authorization", "Basic dXNlcjpwYXNz"), ("authorization", f"bearer  {key}")]
    assert (await gateway.http.get("/v1/models", headers=both)).status_code == 200
    twice = [("authorization", f"Bearer {key}")] * 2
    assert (await gateway.http.get("/v1/models", headers=twice)).status_code == 200
    two = [*twice, ("authorization", "Bearer sk-none")]
    assert (await gateway.http.get("/v1/models", headers=two)).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/v1/audio/speech", 405), ("POST", "/v1/models", 405), ("GET", "/v1/", 404)],
)
async def test_unknown_addresses_have_errors_of_the_same_shape(gateway, method, path, status):
    response = await gateway.http.request(method, path)
    assert response.status_code == status
    assert "/docs lists those" in response.json()["error"]["message"]
