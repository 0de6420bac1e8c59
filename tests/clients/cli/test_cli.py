import json
import sys
import types
import wave

import numpy as np
import pytest
from support.clients.commands import cli_runner

from voxcpm_client.cli import main
from voxcpm_grpc import __version__
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.worker.standby import StandbyProcess

TEXT = "Hello, 你好!"


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    """Runs the program against the server, in an empty directory, on a machine without a sound library."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOXCPM_CLIENT_TARGET", server.target)
    monkeypatch.setitem(sys.modules, "sounddevice", None)

    def run(*arguments, **options):
        return cli_runner().invoke(main, [str(argument) for argument in arguments], **options)

    return run


def frames(path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_say_writes_a_wav_file_and_prints_a_report(run, server, tmp_path):
    result = run("say", TEXT, "--out", "hello.wav")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(frames(tmp_path / "hello.wav"), server.samples(TEXT))
    assert result.stdout.startswith("hello.wav: 0.10 s of audio, first audio after ")
    assert "real-time factor" in result.stdout
    assert result.stderr == ""


def test_the_models_are_listed(run):
    lines = run("models").stdout.splitlines()
    assert lines[0].split() == ["NAME", "ARCHITECTURE", "HZ", "ENGINES", "PRESETS", "FINGERPRINT"]
    assert lines[1].split()[:1] + lines[1].split()[-2:] == ["small", "1/2", "anna"]
    small, large = json.loads(run("models", "--json").stdout)
    assert (small["name"], small["is_default"], large["name"], large["engines"]) == ("small", True, "large", 0)


@pytest.mark.parametrize("given", [{"flag": True}, {"flag": False}])
def test_a_command_names_the_model(run, server, tmp_path, monkeypatch, given):
    named = ["--model", "large"] if given["flag"] else []
    if not named:
        monkeypatch.setenv("VOXCPM_CLIENT_MODEL", "large")
    assert run("say", TEXT, "--out", "a.wav", *named).exit_code == 0
    assert server.streams[-1].config.model == "large"
    assert json.loads(run("info", "--json", *named).stdout)["model"] == "large"
    assert run("clone", tmp_path / "a.wav", "--reference-only", "--say", TEXT, "--out", "b.wav", *named).exit_code == 0
    assert server.calls[-2].received[0].config.model == "large"
    assert server.streams[-1].config.model == "large"


def test_say_without_speakers_writes_speech_wav(run, server, tmp_path):
    assert run("say", TEXT).exit_code == 0
    np.testing.assert_array_equal(frames(tmp_path / "speech.wav"), server.samples(TEXT))


@pytest.mark.parametrize("arguments", [["-"], []])
def test_say_reads_stdin(run, server, tmp_path, arguments):
    assert run("say", *arguments, input=TEXT).exit_code == 0
    np.testing.assert_array_equal(frames(tmp_path / "speech.wav"), server.samples(TEXT))


def test_say_reads_a_file(run, server, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    assert run("say", "--file", "text.txt").exit_code == 0
    assert server.streams[-1].text == TEXT
    assert run("say", "too", "--file", "text.txt").exit_code == 2


def test_say_writes_raw_samples(run, server, tmp_path):
    assert run("say", TEXT, "--out", "hello.pcm").exit_code == 0
    assert (tmp_path / "hello.pcm").read_bytes() == server.samples(TEXT).tobytes()
    assert run("say", TEXT, "--out", "hello.wav", "--raw").exit_code == 0
    assert (tmp_path / "hello.wav").read_bytes() == server.samples(TEXT).tobytes()


@pytest.mark.parametrize(
    ("suffix", "encoding"),
    [("mp3", "MP3"), ("opus", "OGG_OPUS"), ("ogg", "OGG_OPUS"), ("flac", "FLAC"), ("ulaw", "MULAW"), ("alaw", "ALAW")],
)
def test_the_suffix_of_the_file_decides_the_encoding(run, server, tmp_path, suffix, encoding):
    assert run("say", TEXT, "--out", f"hello.{suffix}", "--rate", "8000").exit_code == 0
    output = server.streams[-1].config.output
    assert (output.encoding, output.sample_rate_hz) == (pb.AudioEncoding.Value(f"AUDIO_ENCODING_{encoding}"), 8000)
    assert (tmp_path / f"hello.{suffix}").read_bytes() == server.compressed(TEXT)


def test_compressed_audio_goes_to_stdout_and_to_a_file_of_its_own(run, server, tmp_path):
    said = run("say", TEXT, "--out", "-", "--encoding", "mp3", "--bitrate", "32000", "--compression-level", "0")
    assert said.stdout_bytes == server.compressed(TEXT)
    output = server.streams[-1].config.output
    assert (output.bitrate, output.compression_level) == (32000, 0) and output.HasField("compression_level")
    assert run("say", TEXT, "--encoding", "ogg_opus").exit_code == 0
    assert (tmp_path / "speech.opus").read_bytes() == server.compressed(TEXT)


def test_say_writes_to_stdout_and_reports_on_stderr(run, server):
    result = run("say", TEXT, "--out", "-")
    assert result.stdout_bytes[:4] == b"RIFF"
    assert result.stdout_bytes[44:] == server.samples(TEXT).tobytes()
    assert "stdout: 0.10 s of audio" in result.stderr
    assert run("say", TEXT, "--out", "-", "--raw").stdout_bytes == server.samples(TEXT).tobytes()


def test_say_writes_float_wav(run, server, tmp_path):
    assert run("say", TEXT, "--out", "f.wav", "--encoding", "pcm_f32le").exit_code == 0
    written = (tmp_path / "f.wav").read_bytes()
    assert written[20] == 3  # IEEE float
    np.testing.assert_array_equal(np.frombuffer(written[44:], "<f4"), server.samples(TEXT) / np.float32(32768))


def test_say_reports_as_json(run):
    report = json.loads(run("say", TEXT, "--json", "--seed", 11).stdout)
    assert report["output"] == "speech.wav"
    assert report["header"]["seed"] == 11
    assert report["summary"]["finish_reason"] == "complete"
    assert 0 < report["time_to_first_audio_seconds"] <= report["wall_seconds"]
    assert report["rtf"] == pytest.approx(report["wall_seconds"] / report["audio_seconds"])


def test_say_sends_every_option(run, server, tmp_path):
    (tmp_path / "p.wav").write_bytes(b"prompt")
    (tmp_path / "r.wav").write_bytes(b"reference")
    options = "--seed 1 --cfg 3 --timesteps 4 --temperature 0.5 --min-steps 3 --max-steps 30 --rate 8000"
    modes = "--segmentation manual --continuity independent --prompt p.wav --prompt-text said --reference r.wav"
    sound = "--speed 1.5 --volume -6 --language en --speech-language de"
    codes = "--top-k 7 --top-p 0.5 --repetition-penalty 1.5 --code-temperature 0 --code-top-k 3 --code-top-p 0.25"
    result = run("say", TEXT, *options.split(), *modes.split(), *sound.split(), *codes.split())
    assert result.exit_code == 0, result.output
    config = server.streams[-1].config
    sampling = config.turn.sampling
    assert (sampling.seed, sampling.cfg_value, sampling.inference_timesteps) == (1, 3.0, 4)
    assert (sampling.temperature, sampling.min_steps, sampling.max_steps) == (0.5, 3, 30)
    assert (config.turn.speed, config.turn.volume_gain_db) == (1.5, -6)
    assert (config.turn.language, config.segmentation.language) == ("de", "en")
    assert (sampling.top_k, sampling.top_p, sampling.repetition_penalty) == (7, 0.5, 1.5)
    assert (sampling.code_temperature, sampling.code_top_k, sampling.code_top_p) == (0, 3, 0.25)
    assert config.output.sample_rate_hz == 8000
    assert config.segmentation.mode == 1 and config.segmentation.continuity == 1
    assert config.conditioning.inline_prompt.transcript == "said"
    assert config.conditioning.inline_reference.audio.data == b"reference"
    assert run("say", TEXT, "--voice", "prm_1", "--voice", "ref_1").exit_code == 0
    assert server.streams[-1].config.conditioning.prompt_id == "prm_1"
    assert run("say", TEXT, "--voice", "Ada Lovelace").exit_code == 0
    assert server.streams[-1].config.conditioning.voice == "Ada Lovelace"
    assert run("say", TEXT, "--style", "calm").exit_code == 0
    assert server.streams[-1].config.turn.style == "calm"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["say", TEXT, "--out", "hello.aac"], "must end in .wav, .pcm, .raw, .mp3"),
        (["say", TEXT, "--out", "hello.wav", "--encoding", "mp3"], "must end in .mp3"),
        (["say", TEXT, "--play", "--encoding", "flac"], "cannot play flac"),
        (["say", TEXT, "--prompt-text", "said"], "need each other"),
        (["say", TEXT, "--cfg", "much"], "not a valid float"),
        (["say", TEXT, "--no-such"], "No such option"),
        (["clone", __file__], "--transcript"),
        (["clone", __file__, "--reference-only", "--hifi"], "cannot be combined"),
        (["clone", __file__, "--reference-only", "--label", "x"], "KEY=VALUE"),
        (["voices", "show"], "Missing argument"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_usage_exits_with_2_before_any_call(run, server, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not server.calls


def test_a_failure_is_one_line_with_the_request_id(run, server, tmp_path):
    server.fail("INVALID_ARGUMENT", message="seed is odd;\nsend an even one", request_id="r-9", field="seed")
    result = run("say", TEXT, "--out", "hello.wav")
    assert result.exit_code == 1
    assert result.stderr == "Error: seed is odd; send an even one (request r-9)\n"
    assert not (tmp_path / "hello.wav").exists()


def test_a_failure_during_the_speech_leaves_a_playable_file(run, server, tmp_path):
    server.fail("ABORTED", after_chunks=1)
    result = run("say", "--out", "hello.wav", input="x" * 5000)
    assert result.exit_code == 1
    np.testing.assert_array_equal(frames(tmp_path / "hello.wav"), server.samples("x" * 400))  # the first message


def test_contradicting_options_and_an_unreachable_server_are_failures(run):
    result = run("say", TEXT, "--voice", "anna", "--voice", "ref_1", "--voice", "prm_1")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "3 voices are given" in result.stderr
    result = run("info", "--target", "127.0.0.1:1", "--timeout", "60")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "no server answers at 127.0.0.1:1" in result.stderr


def test_a_file_that_cannot_be_written_is_a_failure(run):
    result = run("say", TEXT, "--out", "no/such/directory.wav")
    assert (result.exit_code, result.stderr) == (1, "Error: no/such/directory.wav: No such file or directory\n")


class Speakers:
    """A stand-in for the sound library that keeps the audio."""

    def __init__(self, **options):
        self.options, self.played, self.state = options, b"", "made"

    def start(self):
        self.state = "started"

    def write(self, data):
        self.played += data

    def stop(self):
        self.state = "drained"

    def close(self):
        self.state += ", closed"


@pytest.fixture
def speakers(monkeypatch):
    opened = []

    def open_stream(**options):
        opened.append(Speakers(**options))
        return opened[-1]

    library = types.SimpleNamespace(
        query_devices=lambda kind: {},
        RawOutputStream=open_stream,
        PortAudioError=type("PortAudioError", (Exception,), {}),
    )
    return lambda: (monkeypatch.setitem(sys.modules, "sounddevice", library), opened)[1]


def test_say_plays_on_the_speakers_if_there_are_any(run, server, speakers, tmp_path):
    opened = speakers()
    result = run("say", TEXT)
    assert result.exit_code == 0, result.output
    assert opened[0].options == {"samplerate": 16000, "channels": 1, "dtype": "int16"}
    assert (opened[0].played, opened[0].state) == (server.samples(TEXT).tobytes(), "drained, closed")
    assert result.stdout.startswith("speakers: ")
    assert list(tmp_path.iterdir()) == []


def test_say_plays_and_writes_at_once_and_stops_playing_on_a_failure(run, server, speakers, tmp_path):
    opened = speakers()
    assert run("say", TEXT, "--play", "--out", "too.wav").stdout.startswith("too.wav and speakers: ")
    np.testing.assert_array_equal(frames(tmp_path / "too.wav"), server.samples(TEXT))
    server.fail("ABORTED", after_chunks=1)
    assert run("say", "--play", input="x" * 5000).exit_code == 1
    assert opened[1].state == "started, closed"  # not drained


def test_play_without_a_sound_library_names_the_command_that_installs_it(run, server):
    result = run("say", TEXT, "--play")
    assert result.exit_code == 1
    assert result.stderr == "Error: cannot play: install the sound library with: pip install 'voxcpm-grpc[play]'\n"
    assert not server.calls


def test_clone_prints_the_id_of_the_voice(run, server, tmp_path):
    (tmp_path / "anna.wav").write_bytes(b"recording")
    result = run("clone", "anna.wav", "--transcript", "said", "--name", "anna", "--label", "a=b", "--label", "c=d")
    id = result.stdout.strip()
    assert server.handles[id].transcript == "said"
    assert dict(server.handles[id].labels) == {"a": "b", "c": "d"}
    assert server.recordings[id] == b"recording"
    again = run("clone", "anna.wav", "--transcript", "said")
    assert again.stdout.strip() == id
    assert "had this recording already" in again.stderr
    assert run("clone", "anna.wav", "--hifi", "--transcript", "said").stdout.startswith("hifi_")
    shown = json.loads(run("clone", "anna.wav", "--reference-only", "--json", "--preview", "preview.wav").stdout)
    assert shown["id"].startswith("ref_")
    np.testing.assert_array_equal(frames(tmp_path / "preview.wav"), server.samples("preview"))


def test_clone_speaks_with_the_new_voice(run, server, tmp_path):
    (tmp_path / "anna.wav").write_bytes(b"recording")
    result = run("clone", "anna.wav", "--reference-only", "--say", TEXT, "--out", "hello.wav", "--seed", "3")
    id, report = result.stdout.splitlines()
    assert server.streams[-1].config.conditioning.voice == id
    assert server.streams[-1].config.turn.sampling.seed == 3
    assert report.startswith("hello.wav: ")
    np.testing.assert_array_equal(frames(tmp_path / "hello.wav"), server.samples(TEXT))


def test_clone_writes_a_preview_that_the_new_voice_speaks(run, server, tmp_path):
    (tmp_path / "anna.wav").write_bytes(b"recording")
    clone = ("clone", "anna.wav", "--reference-only", "--preview", "preview.wav")
    assert run(*clone, "--preview-text", "Good day.", "--seed", "3", "--style", "calm").exit_code == 0
    np.testing.assert_array_equal(frames(tmp_path / "preview.wav"), server.samples("Good day."))
    preview = server.calls[-1].received[0].config.preview
    assert (preview.turn.sampling.seed, preview.turn.style) == (3, "calm")
    assert run(*clone, "--preview-mode", "synthesis").exit_code == 0
    np.testing.assert_array_equal(frames(tmp_path / "preview.wav"), server.samples("the default"))
    assert run(*clone, "--preview-mode", "reconstruction").exit_code == 0
    np.testing.assert_array_equal(frames(tmp_path / "preview.wav"), server.samples("preview"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--preview-text", "Hi."), "with --preview"),
        (("--preview-mode", "synthesis"), "with --preview"),
        (("--preview", "a.wav", "--preview-mode", "reconstruction", "--preview-text", "Hi."), "says no text"),
    ],
)
def test_a_preview_that_contradicts_itself_stores_no_voice(run, server, tmp_path, options, message):
    (tmp_path / "anna.wav").write_bytes(b"recording")
    result = run("clone", "anna.wav", "--reference-only", *options)
    assert result.exit_code == 2 and message in result.stderr
    assert not server.calls


def test_voices_are_listed_in_columns_shown_and_deleted(run, server, tmp_path):
    assert "there are no voices" in run("voices", "list").stderr
    (tmp_path / "anna.wav").write_bytes(b"recording")
    prompt = run("clone", "anna.wav", "-t", "What Anna says. " * 9, "--name", "anna").stdout.strip()
    reference = run("clone", "anna.wav", "--reference-only").stdout.strip()
    lines = run("voices", "list").stdout.splitlines()
    assert lines[0].split() == ["ID", "KIND", "NAME", "SECONDS", "EXPIRES", "TRANSCRIPT"]
    assert {line.split()[0] for line in lines[1:]} == {prompt, reference}
    assert {line.index(" prompt ") for line in lines[1:] if prompt in line} == {lines[0].index(" KIND ")}
    assert max(map(len, lines)) < 120
    assert run("voices", "list", "--kind", "reference").stdout.split()[6] == reference
    assert [voice["id"] for voice in json.loads(run("voices", "list", "--json").stdout)] == [prompt, reference]
    assert "transcript" in run("voices", "show", prompt).stdout
    assert json.loads(run("voices", "show", prompt, "--json").stdout)["name"] == "anna"
    assert run("voices", "delete", prompt, reference).exit_code == 0
    assert not server.handles
    assert run("voices", "delete", prompt).exit_code == 1
    assert run("voices", "delete", prompt, "--missing-ok").exit_code == 0


def test_the_owners_of_voices_are_listed_if_the_server_tells_them(run, server, tmp_path):
    (tmp_path / "anna.wav").write_bytes(b"recording")
    owned = run("clone", "anna.wav", "--reference-only", "--name", "anna").stdout.strip()
    run("clone", "anna.wav", "-t", "Said.")
    server.handles[owned].principal = "key:billing"
    lines = [line.split() for line in run("voices", "list").stdout.splitlines()]
    assert lines[0] == ["ID", "KIND", "NAME", "OWNER", "SECONDS", "EXPIRES", "TRANSCRIPT"]
    assert {line[3] for line in lines[1:]} == {"key:billing", "-"}
    assert json.loads(run("voices", "show", owned, "--json").stdout)["principal"] == "key:billing"


def test_voices_are_shown_renamed_and_deleted_by_their_names(run, server, tmp_path):
    (tmp_path / "ada.wav").write_bytes(b"recording")
    id = run("clone", "ada.wav", "--reference-only", "--name", "Ada").stdout.strip()
    assert json.loads(run("voices", "show", "Ada", "--json").stdout)["id"] == id
    renamed = run("voices", "rename", "Ada", "Bea\x1b[1m")
    assert (renamed.exit_code, renamed.stderr) == (0, f"{id} is named Bea\\x1b[1m\n")
    assert run("voices", "rename", id, "Bea").exit_code == 0
    assert run("voices", "show", "Ada").exit_code == 1
    assert "reference" in run("voices", "show", "Bea").stdout
    assert run("voices", "rename", "Bea", "").stderr == f"{id} is named nothing\n"
    run("voices", "rename", id, "Bea")
    assert run("voices", "delete", "Bea").exit_code == 0
    assert not server.handles


def test_the_labels_and_other_properties_of_a_voice_are_updated(run, server, tmp_path):
    (tmp_path / "ada.wav").write_bytes(b"recording")
    id = run("clone", "ada.wav", "--reference-only", "--name", "Ada", "--label", "old=1").stdout.strip()
    shown = json.loads(run("voices", "update", "Ada", "--label", "team=x", "--label", "of=me", "--json").stdout)
    assert (shown["id"], shown["labels"], shown["name"]) == (id, {"team": "x", "of": "me"}, "Ada")
    (request,) = server.calls[-1].received
    assert not request.HasField("display_name") and not request.HasField("ttl")
    result = run("voices", "update", id, "--clear-labels", "--name", "Bea", "--ttl", "90")
    assert result.exit_code == 0 and "Bea" in result.stdout
    (request,) = server.calls[-1].received
    assert (request.display_name, request.ttl.seconds, dict(request.labels.labels)) == ("Bea", 90, {})
    assert not server.handles[id].labels
    run("voices", "update", "Bea", "--ttl", "60")
    assert not server.calls[-1].received[0].HasField("labels")


def test_the_adapter_of_a_voice_is_stored_updated_removed_and_overridden(run, server, tmp_path):
    (tmp_path / "ada.wav").write_bytes(b"recording")
    id = run("clone", "ada.wav", "--reference-only", "--lora", "anna", "--say", TEXT).stdout.splitlines()[0]
    assert server.handles[id].lora == server.streams[-1].config.turn.lora == "anna"
    assert json.loads(run("voices", "show", id, "--json").stdout)["lora"] == "anna"
    run("clone", "ada.wav", "--reference-only", "--preview", "p.wav", "--preview-text", "Hi.")
    config = server.calls[-1].received[0].config
    assert not config.options.HasField("lora") and not config.preview.turn.HasField("lora")
    assert json.loads(run("voices", "update", id, "--lora", "bert", "--json").stdout)["lora"] == "bert"
    assert run("voices", "update", id, "--lora", "").exit_code == 0
    assert server.handles[id].lora == "" and not server.calls[-1].received[0].HasField("display_name")
    for flags, expected in (((), None), (("--lora", ""), ""), (("--lora", "anna"), "anna")):
        run("say", TEXT, "--voice", id, *flags)
        turn = server.streams[-1].config.turn
        assert (turn.lora if turn.HasField("lora") else None) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "there is nothing to change"),
        (("--label", "a=b", "--clear-labels"), "replaces all labels"),
        (("--label", "a"), "is not KEY=VALUE"),
        (("--ttl", "0"), "--ttl"),
    ],
)
def test_an_update_that_cannot_be_asks_no_server(run, server, options, message):
    result = run("voices", "update", "Ada", *options)
    assert result.exit_code == 2 and message in result.stderr
    assert not server.calls


def test_warnings_go_to_stderr_once(run, server, tmp_path):
    server.warnings = [
        pb.Warning(kind=pb.WARNING_KIND_NOISY_RECORDING, message="the recording is mostly noise"),
        pb.Warning(kind=pb.WARNING_KIND_LANGUAGE, message="a late\x1b[1m one"),
    ]
    expected = "warning: the recording is mostly noise\nwarning: a late\\x1b[1m one\n"
    said = run("say", TEXT, "--json")
    assert said.stderr == expected
    assert [warning["kind"] for warning in json.loads(said.stdout)["warnings"]] == ["noisy_recording", "language"]
    (tmp_path / "ada.wav").write_bytes(b"recording")
    cloned = run("clone", "ada.wav", "--reference-only")
    assert cloned.stdout.startswith("ref_")
    assert cloned.stderr == expected


def test_a_preview_in_an_unknown_format_stores_no_voice(run, server, tmp_path):
    (tmp_path / "anna.wav").write_bytes(b"recording")
    result = run("clone", "anna.wav", "--reference-only", "--preview", "anna.mp3")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "must end in .wav, .pcm or .raw" in result.stderr
    assert not server.handles


def test_health_exits_as_the_server_reports(run, server):
    server.statuses[""] = 2  # NOT_SERVING
    ready, alive = run("health"), run("health", "--service", "liveness")
    assert (ready.exit_code, ready.stdout) == (1, "NOT_SERVING\n")
    assert (alive.exit_code, alive.stdout) == (0, "SERVING\n")
    server.statuses[""] = 1
    assert run("health").exit_code == 0


def test_health_asks_once_and_explains_what_does_not_answer(run, monkeypatch):
    unknown = run("health", "--service", "voice")
    assert (unknown.exit_code, unknown.stderr) == (1, "Error: unknown service\n")
    monkeypatch.setenv("VOXCPM_CLIENT_RETRY_SECONDS", "600")
    nobody = run("health", "--target", "127.0.0.1:1")
    assert (nobody.exit_code, nobody.stderr.count("\n")) == (1, 1)


def test_info_prints_the_model_and_its_limits(run):
    shown = run("info").stdout
    assert "model " in shown and "fake" in shown and "60.5" in shown
    assert json.loads(run("info", "--json").stdout)["limits"]["max_prompt_seconds"] == 60.5


def test_version(run):
    assert __version__ in run("--version").stdout


def test_serve_prints_the_effective_settings(run, tmp_path, monkeypatch):
    (tmp_path / "file.toml").write_text("drain_seconds = 3\n[engine]\nmax_slots = 2\n")
    result = run("serve", "--model", "demo", "--engine.max-slots", "8", "--config", "file.toml", "--print-config")
    assert result.exit_code == 0, result.output
    assert "max_slots = 8" in result.stdout and "drain_seconds = 3" in result.stdout


def test_serve_help_lists_the_settings(run):
    result = run("serve", "--help")
    assert result.exit_code == 0
    assert "--engine.max-slots" in result.stdout


@pytest.mark.parametrize(("pool", "starts"), [("processes", True), ("ray", False)])
def test_serve_starts_the_process_of_its_first_engine_before_the_server(run, monkeypatch, pool, starts):
    given: list[StandbyProcess | None] = []
    alive: list[bool] = []

    def serve(settings: Settings, standby: StandbyProcess | None) -> None:
        given.append(standby)
        alive.append(bool(standby and standby.process.is_alive()))

    monkeypatch.setattr("voxcpm_server.main.serve", serve)
    run("serve", "--pool", pool, "--devices", "cpu")
    assert alive == [starts]
    assert not given[0] or given[0].orders.closed, "no engine took it"


def test_serve_refuses_an_unknown_setting(run):
    result = run("serve", "--engine.max-slot", "8")
    assert result.exit_code == 1
    assert "--engine.max-slots" in result.stderr


@pytest.mark.parametrize("missing", ["pydantic", "torch"])
def test_serve_without_its_packages_names_one_command(run, monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith(("voxcpm_grpc.settings.schema", "voxcpm_server"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    result = run("serve", "--model", "demo", "--listen", "127.0.0.1:0")
    assert result.exit_code == 1
    assert result.stderr.count("pip install 'voxcpm-grpc[server]'") == 1
    assert result.stderr.count("\n") == 1


def test_download_needs_its_package_only_for_a_repository(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    result = run("download", "someone/some-model")
    assert result.exit_code == 1
    assert "huggingface_hub" in result.stderr or "voxcpm-grpc[download]" in result.stderr
    assert run("download", "demo").exit_code == 0


def test_say_sends_the_words_of_a_lexicon(run, server, tmp_path):
    (tmp_path / "words.toml").write_text('GIF = "jif"\n"重庆" = "崇庆"\n', "utf-8")
    assert run("say", TEXT, "--lexicon", "words.toml").exit_code == 0
    entries = server.streams[-1].config.lexicon
    assert [(entry.word, entry.spelling) for entry in entries] == [("GIF", "jif"), ("重庆", "崇庆")]
    (tmp_path / "words.toml").write_text("GIF = 1\n")
    result = run("say", TEXT, "--lexicon", "words.toml")
    assert result.exit_code == 2
    assert "'GIF' that is not a string" in " ".join(result.stderr.split())


def test_clone_asks_for_a_recording_without_noise_and_silence(run, server, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    assert run("clone", "a.wav", "--reference-only", "--denoise", "--trim-silence").exit_code == 0
    config = server.calls[-1].received[0].config
    assert (config.denoise, config.trim_silence_vad) == (True, True)
    assert run("clone", "a.wav", "--reference-only").exit_code == 0
    config = server.calls[-1].received[0].config
    assert (config.denoise, config.trim_silence_vad) == (False, False)


def test_wyoming_without_its_package_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "wyoming"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wyoming", None)
    result = cli_runner().invoke(main, ["wyoming", "--listen", "127.0.0.1:0"])
    assert result.exit_code == 1
    assert "pip install 'voxcpm-grpc[wyoming]'" in result.stderr
