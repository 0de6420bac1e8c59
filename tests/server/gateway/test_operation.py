"""Probes, metrics and the description of the gateway, and its command."""

import re

import pytest
from click.testing import CliRunner

from voxcpm_client.cli import main
from voxcpm_gateway.routes import openapi


async def test_the_probes_answer(gateway, served):
    assert (await gateway.http.get("/health")).json() == {"status": "ok"}
    assert (await gateway.http.get("/ready")).json() == {"status": "ok"}
    served.rpc.set_ready(False)
    assert (await gateway.http.get("/ready")).status_code == 503


async def test_the_metrics_count_requests_by_route_and_status(gateway):
    await gateway.speak("Hello.")
    await gateway.speak("")
    await gateway.http.get("/no/such/address")
    text = (await gateway.http.get("/metrics")).text
    assert 'voxcpm_gateway_requests_total{route="/v1/audio/speech",status="200"} 1.0' in text
    assert 'voxcpm_gateway_requests_total{route="/v1/audio/speech",status="400"} 1.0' in text
    assert 'voxcpm_gateway_requests_total{route="other",status="404"} 1.0' in text
    assert 'voxcpm_gateway_time_to_first_audio_seconds_count{route="/v1/audio/speech"} 1.0' in text
    assert "voxcpm_gateway_open_requests 1.0" in text  # this one


async def test_the_openapi_document_lists_every_route_and_field(gateway):
    document = (await gateway.http.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    app = gateway.http
    for path, methods in document["paths"].items():
        for method in methods:
            response = await app.request(method, re.sub(r"\{.*?\}", "nothing", path))
            assert response.status_code != 405, (method, path)
            assert "there is no such address" not in response.text
    fields = document["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert fields["required"] == ["input"]
    assert (fields["properties"]["speed"]["minimum"], fields["properties"]["speed"]["maximum"]) == (0.5, 2)
    assert fields["properties"]["response_format"]["enum"] == ["mp3", "opus", "flac", "wav", "pcm"]
    assert "cfg_value" in fields["properties"]["extra_params"]["properties"]
    assert {"ref_audio", "extra_params", "voice"} <= fields["properties"].keys()


async def test_the_page_of_the_routes_needs_no_other_resource(gateway):
    page = await gateway.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"(src|href)=.?(https?:)?//", page.text)
    for operation in openapi.OPERATIONS:
        assert f"{operation.method.upper()} {operation.path}" in page.text


def test_the_command_describes_its_options():
    result = CliRunner().invoke(main, ["gateway", "--help"])
    assert result.exit_code == 0
    options = ("--target", "--listen", "--tls", "--voice-alias", "--allow-ref-audio-urls")
    for option in (*options, "--allowed-host", "--allowed-origin"):
        assert option in result.output


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("--allowed-host", "https://tts.example", "without scheme, port and path, such as tts.example"),
        ("--allowed-host", "tts.example:443", "without scheme, port and path"),
        ("--allowed-host", "tts.example/", "without scheme, port and path"),
        ("--allowed-host", "", "such as tts.example"),
        ("--allowed-origin", "tts.example", "such as https://app.example"),
        ("--allowed-origin", "null", "* for all"),
    ],
)
def test_the_command_refuses_a_host_and_an_origin_that_are_none(option, value, remedy):
    result = CliRunner().invoke(main, ["gateway", "--listen", "nowhere", option, "*", option, value])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': {value!r} is not" in result.output
    assert remedy in " ".join(result.output.split())


def test_the_command_refuses_an_address_that_it_cannot_use():
    result = CliRunner().invoke(main, ["gateway", "--listen", "nowhere"])
    assert result.exit_code == 1
    assert "cannot listen on nowhere: it has no port" in result.output
    result = CliRunner().invoke(main, ["gateway", "--listen", "127.0.0.1:0", "--target", "http://x"])
    assert result.exit_code == 1
    assert "leave out http://" in result.output
