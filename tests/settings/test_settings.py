"""Settings from the sources that people use: a TOML file, the environment and flags."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.deprecated import REMEDIES, deprecations
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.schema import Settings, engines
from voxcpm_grpc.settings.sources import CURRENT, FIELDS, describe, flags, help_text, load, to_toml
from voxcpm_grpc.settings.types import MAX_SECONDS
from voxcpm_grpc.settings.voices import VoiceSettings


def write(folder: Path, text: str) -> str:
    path = folder / "settings.toml"
    path.write_text(text, "utf-8")
    return str(path)


def refusal(argv=(), env=None) -> str:
    with pytest.raises(StartupError) as error:
        load(argv, env or {})
    return str(error.value)


def test_without_sources_the_settings_are_the_defaults():
    assert load() == load([], {}) == Settings()


def test_flags_override_the_environment_which_overrides_the_file(tmp_path):
    path = write(tmp_path, 'model = "a"\nlisten = "a:1"\nrevision = "a"\n[engine]\nmax_slots = 1\nthreads = 1\n')
    env = {"VOXCPM_LISTEN": "b:1", "VOXCPM_REVISION": "b", "VOXCPM_ENGINE__MAX_SLOTS": "2"}
    settings = load(["--config", path, "--revision=c", "--engine.max-slots", "3"], env)
    assert (settings.model, settings.listen, settings.revision) == ("a", "b:1", "c")
    assert (settings.engine.threads, settings.engine.max_slots) == (1, 3)


def test_the_environment_can_name_the_file_and_a_flag_overrides_it(tmp_path):
    path = write(tmp_path, 'model = "a"')
    assert load([], {"VOXCPM_CONFIG": path}).model == "a"
    assert load(["--config", path], {"VOXCPM_CONFIG": "/nowhere.toml"}).model == "a"


def test_every_type_is_read_from_text():
    env = {
        "VOXCPM_ENGINE__TIMESTEPS": "4, 10",
        "VOXCPM_FRONT_PORTS": "consecutive",
        "VOXCPM_ENGINE__PREFIX_CACHING": "false",
        "VOXCPM_ENGINE__GPU_MEMORY_UTILIZATION": "0.5",
        "VOXCPM_CACHE_DIR": "~/models",
    }
    settings = load([], env)
    assert settings.engine == EngineSettings(timesteps=(4, 10), prefix_caching=False, gpu_memory_utilization=0.5)
    assert settings.front_ports == "consecutive"
    assert settings.cache_dir == Path.home() / "models"
    assert load(["--engine.prefix-caching", "--model", "x"], env).engine.prefix_caching is True


def test_the_longest_silence_covers_three_heartbeats():
    message = refusal(["--supervision.silence-seconds", "0.3"])
    assert "silence-seconds" in message
    assert "0.75" in message
    assert load(["--supervision.silence-seconds", "0.75"]).supervision.silence_seconds == 0.75


def test_hosts_and_origins_have_the_form_in_which_browsers_send_them():
    argv = ["--http.allowed-hosts=TTS.Example.,*.Apps.example", "--http.allowed-origins=HTTPS://App.example:443/,*"]
    http = load(argv, {}).http
    assert http.allowed_hosts == ("tts.example", "*.apps.example")
    assert http.allowed_origins == ("https://app.example", "*")


def test_an_empty_value_restores_the_default(tmp_path):
    path = write(tmp_path, 'listen = "a:1"\n[engine]\nmax_slots = 3\n')
    settings = load(["--config", path, "--engine.max-slots="], {"VOXCPM_LISTEN": ""})
    assert settings == Settings()


def test_variables_of_the_client_and_of_kubernetes_are_not_settings():
    env = {
        "VOXCPM_CLIENT_TARGET": "x:1",
        "VOXCPM_SERVICE_HOST": "10.0.0.1",
        "VOXCPM_GRPC_SERVICE_PORT_GRPC": "50051",
        "VOXCPM_PORT": "tcp://10.0.0.1:50051",
        "VOXCPM_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "VOXCPM_PORT_50051_TCP_ADDR": "10.0.0.1",
        "HOME": "/root",
    }
    assert load([], env) == Settings()
    assert "VOXCPM_PORT" in refusal(env={"VOXCPM_PORT": "50051"})


@pytest.mark.parametrize(
    ("argv", "env", "toml", "named", "nearest"),
    [
        (["--engine.max-slot", "3"], {}, "", "--engine.max-slot", "--engine.max-slots?"),
        (["--max-slots", "3"], {}, "", "--max-slots", "--engine.max-slots?"),
        ([], {"VOXCPM_ENGINE_MAX_SLOTS": "3"}, "", "VOXCPM_ENGINE_MAX_SLOTS", "VOXCPM_ENGINE__MAX_SLOTS?"),
        ([], {}, "[engine]\nmax_slot = 3", "engine.max_slot", "engine.max_slots?"),
        ([], {}, "modle = 'x'", "modle", "model?"),
        ([], {}, "[quux]\nwhatever = 1", "quux", "--help"),
    ],
)
def test_an_unknown_key_is_named_with_its_nearest_neighbour(tmp_path, argv, env, toml, named, nearest):
    message = refusal(["--config", write(tmp_path, toml), *argv], env)
    assert f"unknown setting {named} in " in message
    assert nearest in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("argv", "env", "toml", "parts"),
    [
        (["--engine.max-slots", "0"], {}, "", ["engine.max_slots", "'0'", "flag --engine.max-slots", "greater than 0"]),
        ([], {"VOXCPM_ENGINE__DTYPE": "fp8"}, "", ["'fp8'", "VOXCPM_ENGINE__DTYPE", "'float32' or 'bfloat16'"]),
        ([], {}, "[limits]\nmax_streams = 1.5", ["limits.max_streams", "1.5", "settings.toml", "integer"]),
        ([], {}, "[engine]\ntimesteps = [4, 0]", ["engine.timesteps", "[4, 0]", "greater than 0"]),
        ([], {}, "[engine]\ntimesteps = []", ["engine.timesteps", "at least 1 item"]),
        ([], {"VOXCPM_ENGINE__PAGE_SIZE": "17"}, "", ["engine.page_size", "16 or 32"]),
        ([], {}, "cache_dir = 3", ["cache_dir", "must be a path"]),
        ([], {}, "engine = 3", ["engine", "section", "[engine]"]),
        ([], {}, "model = x", ["settings.toml", "not valid TOML", "line 1"]),
        (["--limits.max-lead-seconds", "inf"], {}, "", ["limits.max_lead_seconds", "'inf'", "less than or equal to"]),
        (["--devices", "0,gpu"], {}, "", ["devices", "'0,gpu'", "flag --devices", "cpu:N"]),
        (["--devices", "cpu:0"], {}, "", ["devices", "'cpu:0'", "cpu:N"]),
        (
            ["--http.allowed-hosts", "a,http://tts.example"],
            {},
            "",
            ["http.allowed_hosts", "'http://tts.example' is not"],
        ),
        ([], {"VOXCPM_HTTP__ALLOWED_HOSTS": "tts.example:8000"}, "", ["HTTP__ALLOWED_HOSTS", "without scheme, port"]),
        ([], {}, '[http]\nallowed_hosts = ["tts.example/v1"]', ["settings.toml", "scheme, port and path, such as"]),
        (["--http.allowed-hosts", "a,,b"], {}, "", ["'' is not the name of a host", "* for all"]),
        (["--http.allowed-hosts", "tüte.example"], {}, "", [r"'t\xfcte.example' is not", "xn--"]),
        (["--http.allowed-origins", "app.example"], {}, "", ["'app.example' is not the origin", "https://app.example"]),
        (["--http.allowed-origins", "https://a.example/b"], {}, "", ["http.allowed_origins", "scheme and host"]),
        ([], {"VOXCPM_HTTP__ALLOWED_ORIGINS": "null"}, "", ["'null' is not the origin", "* for all"]),
        (["--model"], {}, "", ["--model needs a value"]),
        (["--model", "--listen", "x:1"], {}, "", ["--model needs a value"]),
        (["serve"], {}, "", ["unexpected argument 'serve'"]),
    ],
)
def test_a_bad_value_is_one_line_with_source_key_value_and_rule(tmp_path, argv, env, toml, parts):
    message = refusal(["--config", write(tmp_path, toml), *argv], env)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_every_bad_value_has_its_line():
    message = refusal(["--engine.max-slots=0", "--engine.dtype=x"], {"VOXCPM_DRAIN_SECONDS": "-1"})
    assert [line.partition(" ")[0] for line in sorted(message.splitlines())] == [
        "drain_seconds",
        "engine.dtype",
        "engine.max_slots",
    ]


def test_an_unreadable_file_is_named(tmp_path):
    assert "/nowhere.toml cannot be read" in refusal(["--config", "/nowhere.toml"])
    assert "cannot be read" in refusal(["--config", str(tmp_path)])
    (tmp_path / "latin1.toml").write_bytes(b'model = "\xe9"')
    assert "not valid TOML" in refusal(["--config", str(tmp_path / "latin1.toml")])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {"auto": "auto"}),
        (["--engine.device", "cuda:3"], {"auto": "cuda:3"}),
        (["--devices", "0,2"], {"cuda:0": "cuda:0", "cuda:2": "cuda:2"}),
        (["--devices", "cpu:2"], {"cpu:0": "cpu", "cpu:1": "cpu"}),
        (["--devices=cuda:1, cpu,cpu"], {"cuda:1": "cuda:1", "cpu:0": "cpu", "cpu:1": "cpu"}),
    ],
)
def test_devices_become_engines(given, expected):
    settings = load([*given, "--engine.max-slots", "3"], {})
    found = engines(settings)
    assert {name: engine.device for name, engine in found.items()} == expected
    assert {engine.max_slots for engine in found.values()} == {3}


@pytest.mark.parametrize(("given", "expected"), [([], "auto"), (["--fronts", "auto"], "auto"), (["--fronts", "3"], 3)])
def test_fronts_are_a_number_or_auto(given, expected):
    settings = load(given, {})
    assert settings.fronts == expected
    assert settings.several_fronts is settings.fronts_share_port is (expected == 3)


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5", "true"])
def test_other_fronts_are_refused_with_the_rule(given):
    assert f"fronts is {given!r} in the flag --fronts; it must be auto, or a whole number from 1 on" in refusal(
        ["--fronts", given]
    )


def test_each_engine_has_its_own_device():
    with pytest.raises(StartupError, match="cuda:1 twice"):
        engines(load(["--devices", "0,1,cuda:1"], {}))
    with pytest.raises(StartupError, match="list all devices, or auto alone"):
        engines(load(["--devices", "auto,0"], {}))
    with pytest.raises(StartupError, match="devices is empty"):
        engines(Settings(devices=()))


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(text, text, st.lists(st.integers(1, 10**6), min_size=1), st.booleans(), st.floats(1e-9, MAX_SECONDS))
def test_printed_settings_read_back_equal(tmp_path_factory, model, folder, timesteps, caching, seconds):
    settings = Settings(
        model=model,
        engine=EngineSettings(timesteps=tuple(timesteps), prefix_caching=caching, max_slots=timesteps[0]),
        cache_dir=Path("/models", folder.replace("\0", "")),
        voices=VoiceSettings(url=folder, ttl_seconds=seconds),
    )
    path = write(tmp_path_factory.mktemp("printed"), to_toml(settings))
    assert load(["--config", path], {}) == settings


GIVEN = {"model": "demo", "engine.page_size": "32", "metrics.orca": "true", "max_connection_age_grace_seconds": "3600"}


@pytest.mark.parametrize("source", ["flags", "environment", "file"])
def test_a_deprecated_setting_works_and_its_warning_names_the_remedy(tmp_path, source):
    argv, env = [], {}
    if source == "flags":
        argv = [f"--{key.replace('_', '-')}={value}" for key, value in GIVEN.items()]
    elif source == "environment":
        env = {f"VOXCPM_{key.upper().replace('.', '__')}": value for key, value in GIVEN.items()}
    else:
        lines = "max_connection_age_grace_seconds = 3600\n[engine]\npage_size = 32\n[metrics]\norca = true\n"
        argv = ["--config", write(tmp_path, lines)]
    settings = load(argv, env)
    assert (settings.engine.page_size, settings.max_connection_age_grace_seconds) == (32, 3600.0)
    assert [*deprecations(settings)] == [
        f"{key} is deprecated, and the next version refuses it: {REMEDIES[key]}"
        for key in ("max_connection_age_grace_seconds", "engine.page_size", "metrics.orca")
    ]
    printed = to_toml(settings)
    assert load(["--config", write(tmp_path, printed)], {}) == settings
    assert "restart_limit" not in printed


def test_a_deprecated_setting_is_offered_nowhere():
    assert REMEDIES.keys() < FIELDS.keys() and not REMEDIES.keys() & CURRENT.keys()
    assert not [*deprecations(Settings())]
    offered = [
        help_text(),
        to_toml(Settings()),
        *(flag.name for flag in flags()),
        refusal(["--engine.page-sizes", "16"]),
    ]
    for key, remedy in REMEDIES.items():
        assert not any(f"--{key.replace('_', '-')} " in f"{text} " for text in offered)
        assert f"| `{key}` | {remedy} |" in describe()


def test_help_and_documentation_have_every_setting():
    shown, documented = help_text(), describe()
    for key in CURRENT:
        flag = "--" + key.replace("_", "-")
        assert f"  {flag} " in shown
        assert f"`{key}`" in documented
        assert "VOXCPM_" + key.upper().replace(".", "__") in documented
    assert "(default: 127.0.0.1:50051)" in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert tomllib.loads(to_toml(Settings()))["engine"]["timesteps"] == [4, 6, 10]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tls.cert", "cert.pem"), "tls.cert and tls.key need each other: set both or none of them"),
        (("--auth.issuer", "x"), "auth.issuer, auth.audience and auth.admin_scope need auth.jwks"),
        (
            ("--admin.lora-sources", "/adapters"),
            "admin.lora_sources needs admin.listen, the port of the service that registers adapters",
        ),
    ],
)
def test_settings_that_need_others_name_them(flags, message):
    with pytest.raises(StartupError) as caught:
        load(flags, {})
    assert str(caught.value) == message
