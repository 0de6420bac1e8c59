"""The benchmarks' commands, run on the tiny model. The command of the engine is in tests/benchmarks."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from subprocess import PIPE

import pytest
from support.engines.checkpoints import TINY
from support.servers.running import UNTIMED

from benchmarks.measuring.environment import ROOT

LONGEST = 240  # seconds of a command
HELD_SECONDS = 30  # seconds for the output of a command whose processes were killed


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. One that takes too long fails with its output and the stack of each of its threads."""
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            status = process.poll()
            process.send_signal(signal.SIGABRT)
            process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the servers that it has started
            took = "did not end" if status is None else f"ended with {status}, but processes of it did not,"
            pytest.fail(f"the command {took} within {LONGEST} s:\n{rest_of(process)}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def rest_of(process: subprocess.Popen[str]) -> str:
    """The output of a command that was killed, as far as no other process still holds it."""
    try:
        return "\n".join(process.communicate(timeout=HELD_SECONDS))
    except subprocess.TimeoutExpired as held:
        parts = [part or b"" for part in (held.stdout, held.stderr)]
        return "\n".join(part if isinstance(part, str) else part.decode(errors="replace") for part in parts)


def run(tmp_path, *words: str) -> dict:
    path = tmp_path / "table.json"
    command = [sys.executable, "-m", *words, "--model", str(TINY), "--json", str(path)]
    done = finished(command)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_serving(tmp_path):
    loads = ("--closed", "2", "--closed-requests", "4", "--open", "20", "--requests", "6", "--clients", "2")
    table = run(tmp_path, "benchmarks.serving", *loads, "--steps", "4", "--timesteps", "4", "--chars", "40", *UNTIMED)
    closed, opened = table["rows"]
    assert (closed["loop"], closed["level"], closed["requests"]) == ("closed", 2, 8)
    assert (opened["loop"], opened["level"], opened["requests"]) == ("open", 20, 6)
    for row in table["rows"]:
        assert row["failed"] == row["refused"] == 0
        assert 0 < row["server_ttfb_p50_ms"] < row["ttfb_p50_ms"] <= row["ttfb_p99_ms"]
        assert row["audio_s_per_s"] > 0


def test_serving_of_mixed_requests(tmp_path):
    loads = ("--closed", "", "--open", "20", "--requests", "8", "--clients", "2", "--timesteps", "4", "--chars", "40")
    mix = ("--steps", "6", "--min-steps", "2", "--pieces", "0.5", "--voices", "2")
    (row,) = run(tmp_path, "benchmarks.serving", *loads, *mix, *UNTIMED)["rows"]
    assert row["requests"] == 8 and row["failed"] == row["refused"] == 0
    assert 0 < row["ttfb_p50_ms"] <= row["ttfb_p99_ms"]


def test_event_loop(tmp_path):
    (row,) = run(tmp_path, "benchmarks.event_loop", "--rounds", "1", *UNTIMED)["rows"]
    assert row["callbacks"] > 10_000
    times = [milliseconds for milliseconds, _ in row["longest"]]
    assert times == sorted(times, reverse=True) and len(times) == 3 and times[-1] > 0


def test_history(tmp_path):
    path = tmp_path / "table.json"
    words = ("benchmarks.front.history", "--chunks", "8", "--repeats", "2", "--json", str(path))
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=True, timeout=LONGEST)
    without, with_steps = json.loads(path.read_text())["rows"]
    assert (without["step_bytes"], with_steps["step_bytes"]) == (0, 512)
    assert 512 <= with_steps["message_bytes"] - without["message_bytes"] < 600
    for row in (without, with_steps):
        assert min(row[f"{part}_us"] for part in ("encode", "decode", "deliver", "keep")) > 0


def test_interference(tmp_path):
    flags = ("--steps", "20", "--timesteps", "4", "--upload-seconds", "3", "--calls", "3", "--limit", "200")
    rows = run(tmp_path, "benchmarks.interference", *flags, *UNTIMED)["rows"]
    streams, readers = ["gaps alone", "gaps beside uploads", "uploads"], ["first audio", "silence"]
    assert [row["name"] for row in rows] == [*streams, *(f"{name} beside slow readers" for name in readers), "refusals"]
    for row in rows:
        assert 0 <= row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        assert row["p50_ms"] > 0 or row["name"].startswith("silence")


def test_formats(tmp_path):
    page = tmp_path / "formats.md"
    few = ("--formats", "pcm_s16le:16000,mp3:24000,ogg_opus:48000,flac:44100", "--repeats", "1")
    table = run(
        tmp_path, "benchmarks.formats", *few, "--page", str(page), "--max-steps", "8", "--timesteps", "4", *UNTIMED
    )
    assert [row["mode"] for row in table["rows"]] == 4 * ["plain", "interrupted", "resumed"]
    for row in table["rows"]:
        assert row["length_error"] == 0 and row["samples"] > 0
        assert (row["first_ms"] is None) == (row["mode"] != "plain")
        assert (row["delay"] > 0) == (row["encoding"] == "mp3")
        assert row["distance_db"] > 3  # the tiny model makes noise, which is hard to compress
        assert f"| {row['encoding']} | {row['rate']} | {row['mode']} |" in page.read_text()
    assert "Every stream has exactly the stated length." in page.read_text()


SMALL = ("--steps", "4", "--timesteps", "4", "--chars", "40", "--users", "2", "--clients", "1")
TRIALS = ("--ttfb-ms", "20000", "--settle", "0.2", "--seconds", "1", "--requests", "4", "--budget", "3")


def publish(tmp_path, module: str, *words: str) -> dict:
    """Run a command with a model and return its table, as `published` does."""
    return published(tmp_path, module, "--model", str(TINY), *words, *SMALL, *TRIALS, *UNTIMED)


def published(tmp_path, module: str, *words: str) -> dict:
    """Run a command, check its page and its picture, and return its table. A picture needs matplotlib."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words, "--out", str(tmp_path)]
    done = finished(command)
    assert done.returncode == 0, done.stdout + done.stderr
    name = f"{module}-here"
    drawn = (tmp_path / f"{name}.png").exists()
    assert drawn == bool(importlib.util.find_spec("matplotlib"))
    assert drawn == (f"![]({name}.png)" in (tmp_path / f"{name}.md").read_text())
    return json.loads((tmp_path / f"{name}.json").read_text())


def test_capacity(tmp_path):
    table = publish(tmp_path, "capacity")
    assert table["device_count"] == 1 and table["saturation"]["audio_s_per_s"] > 0 and table["trials"]
    (found,) = table["capacities"]
    assert found["ttfb_ms"] == 20000 and found["listeners"] in {0, *(row["level"] for row in table["trials"])}
    assert all(row["loop"] == "listening" and row["requests"] for row in table["trials"])


def test_front(tmp_path):
    short = ("--streams", "4", "--steps", "10", "--step-ms", "20", "--repeats", "1", "--clients", "1")
    (alone,) = published(tmp_path, "front", *short)["rows"]
    assert (alone["server"], alone["streams"]) == ("plain", 4) and alone["stream_kb"] >= 0
    plain, both = published(tmp_path, "front", *short, "--variants", "plain,keys+metrics")["rows"]
    assert (plain["server"], both["server"]) == ("plain", "keys+metrics")
    for row in (alone, plain, both):
        assert row["thread_share"] > 0 and 0 < row["chunk_p50_ms"] <= row["chunk_p99_ms"] and row["rpc_p99_ms"] > 0


def test_soak(tmp_path):
    words = ("--model", str(TINY), "--minutes", "0.3", "--samples", "4", "--users", "3")
    table = published(tmp_path, "soak", *words)
    assert len(table["samples"]) == 4 and table["samples"][-1]["calls"] == sum(table["calls"].values())
    assert {"front", "engine"} <= set(table["samples"][-1]["mib"]) and table["samples"][-1]["voices"] == 0
    assert set(table["calls"]) == {"speak", "break_off", "interrupt", "upload", "leave_an_upload"}, "no call failed"


def test_soak_with_deaths(tmp_path):
    words = ("--model", str(TINY), "--devices", "cpu:2", "--timesteps", "4", "--steps", "20")
    times = ("--minutes", "0.5", "--deaths", "15")
    command = [sys.executable, "-m", "benchmarks.soak", *words, *times, "--out", str(tmp_path)]
    done = finished(command)
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads((tmp_path / "soak-deaths-here.json").read_text())
    assert [death["way"] for death in table["deaths"]] == ["kill", "stop"]
    assert table["streams"] > 10 and not table["errors"]
    assert (tmp_path / "soak-deaths-here.png").exists()


def test_restart(tmp_path):
    words = ("--model", "tiny", "--device", "cpu", "--timesteps", "4", "--kills", "1", "--pause", "0")
    command = [sys.executable, "-m", "benchmarks.restart", *words, "--out", str(tmp_path)]
    done = finished(command)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "restart-here.json").read_text())["rows"]
    kills = [(row["standby"], row["kill"], row["took_standby"]) for row in rows]
    assert kills == [("on", 1, True), ("off", 1, False)]
    for row in rows:
        assert row["ready_s"] > 0.25, "the pause before the first restart"
        assert row["first_audio_s"] > row["usual_audio_s"] > 0 and row["refused"] == 0
    page = (tmp_path / "restart-here.md").read_text()
    assert all(f"| {row['standby']}, kill {row['kill']} | {row['ready_s']:.2f} |" in page for row in rows)


def test_call_census():
    command = [sys.executable, "tools/call_census.py", "--list"]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    sums, *lines = done.stdout.splitlines()
    packages = {line.split()[-1]: int(line.split()[0]) for line in lines if line.startswith(" ")}
    assert sums.startswith(f"{sum(packages.values())} functions, ")
    assert {"voxcpm_server/rpc", "voxcpm_server/speech", "voxcpm_grpc/pool", "voxcpm_grpc/engine"} <= set(packages)
    methods = {line.rpartition(".")[0] for line in lines}
    assert {"voxcpm_server/services/speech.py VoxCPMService", "voxcpm_grpc/engine/engine.py Engine"} <= {
        method.removeprefix("server/") for method in methods
    }


@pytest.mark.parametrize(
    ("speaker", "said"),
    [
        (("--model", str(TINY), "--timesteps", "4"), f"The model is {TINY}."),
        (("--step-ms", "5"), "a chunk for every stream in 5 ms"),
    ],
)
def test_gateway(speaker, said, tmp_path):
    shape = (*speaker, "--users", "1,3", "--rounds", "2", "--clients", "1")
    command = [sys.executable, "-m", "benchmarks.gateway", *shape, "--max-steps", "2", "--out", str(tmp_path)]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    one, three = json.loads((tmp_path / "gateway.json").read_text())["rows"]
    assert (one["users"], one["calls"], three["users"], three["calls"]) == (1, 2, 3, 6)
    for row in (one, three):
        assert 0 < row["grpc_p50_ms"] <= row["grpc_p90_ms"] and 0 < row["http_p50_ms"] <= row["http_p90_ms"]
        assert abs(row["added_p50_ms"] - row["http_p50_ms"] + row["grpc_p50_ms"]) < 1e-6
    page = (tmp_path / "gateway.md").read_text()
    assert said in page
    assert "|users|calls|" in page.replace(" ", "")


def test_scaling(tmp_path):
    table = publish(tmp_path, "scaling", "--device-sets", "cpu:1;cpu:2", "--fronts", "1,2", "--together")
    servers = [(row["devices"], row["fronts"], row["load"]["level"]) for row in table["rows"]]
    assert servers == [("cpu:1", 1, 2), ("cpu:2", 1, 4), ("cpu:2", 2, 4)]
    assert table["rows"][0]["efficiency"] == 1 and table["rows"][2]["efficiency"] > 0
    for row in table["rows"]:
        assert row["uses"]["engines"]["processes"] == row["device_count"] and row["uses"]["clients"]["processes"] == 1
        assert row["uses"]["engines"]["cores"] > 0 and row["host_cores"] > 0
    assert [found["devices"] for found in table["capacities"]] == ["cpu:1", "cpu:2"]
    assert {path.name for path in tmp_path.glob("capacity-*.md")} == {"capacity-here-1.md", "capacity-here-2.md"}


def test_a_report_names_the_parts_that_failed(tmp_path):
    """Without a GPU there are no ceilings and no trace, but the rows of the engine are there."""
    words = (
        "benchmarks.report",
        "--model",
        str(TINY),
        "--name",
        "here",
        "--out",
        str(tmp_path),
        "--parts",
        "engine,trace",
    )
    shape = ("--streams", "1", "--steps", "5", "--repeats", "1", "--timesteps", "4", "--chars", "40")
    command = [sys.executable, "-m", *words, *shape]
    done = finished(command)
    table = json.loads((tmp_path / "here.json").read_text())
    assert table.keys() == {"architecture", "step_audio_ms", "rows", "versions", "command"}
    assert table["rows"][0]["step_p50_ms"] > 0 and table["rows"][0]["floor_ms"] is None
    text = (tmp_path / "here.md").read_text()
    assert "## A burst" in text and "not measured in this run" in text
    if "trace:" in done.stderr:  # with a GPU the trace succeeds
        assert done.returncode == 1 and not (tmp_path / "launches.json").exists()
