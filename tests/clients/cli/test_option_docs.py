"""Every public option, field and parameter of the client is documented where editors look for it."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from support.doubles import fake_engine

import voxcpm_client
from voxcpm_client.cli.speak.say import say
from voxcpm_grpc.audio import NO_EFFECTS, Encoding
from voxcpm_grpc.audio.encode import COMPRESSION_LEVEL
from voxcpm_grpc.audio.uploads import NO_CLEANING
from voxcpm_grpc.models.voxcpm.config.abilities import sampling_options
from voxcpm_grpc.request import MAX_SEED, Sampling
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.types import MAX_SECONDS
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values import inputs, languages
from voxcpm_server.wire import generate, voices
from voxcpm_server.wire.enums import CONTINUITIES, FIRST_SEGMENTS, MODES, PRIORITIES
from voxcpm_server.wire.texts import DEFAULT_ATTEMPTS

FOLDER = Path(inspect.getfile(voxcpm_client)).parent
TREES = [ast.parse(path.read_text("utf-8")) for path in FOLDER.rglob("*.py")]
INFO = replace(fake_engine.INFO, options=sampling_options(EngineSettings().timesteps))
DEFAULTS = INFO.completed(Sampling())
SERVER_DEFAULTS = {
    "no_voice": False,
    "normalize": inputs.TurnConfig().normalize,
    "denoise": NO_CLEANING.denoise,
    "trim_silence_vad": NO_CLEANING.trim_silence,
    "retry_badcase": inputs.TurnConfig().max_attempts > 1,
    "retry_badcase_max_times": DEFAULT_ATTEMPTS,
    "retry_badcase_ratio_threshold": DEFAULTS.steps_per_token,
    "speed": NO_EFFECTS.speed,
    "volume_gain_db": NO_EFFECTS.gain_db,
    "cfg_value": DEFAULTS.cfg_value,
    "timesteps": DEFAULTS.inference_timesteps,
    "temperature": DEFAULTS.temperature,
    "min_steps": DEFAULTS.min_steps,
    "format": Encoding.PCM_S16LE.value,
    "compression_level": COMPRESSION_LEVEL,
    "segmentation": MODES[pb.SEGMENTATION_MODE_UNSPECIFIED].value,
    "max_wait": inputs.DEFAULT_MAX_WAIT,
    "first_segment": FIRST_SEGMENTS[pb.FIRST_SEGMENT_UNSPECIFIED].value,
    "max_segment_chars": LimitSettings().max_segment_chars,
    "continuity": CONTINUITIES[pb.CONTINUITY_MODE_UNSPECIFIED].value,
    "max_lead": LimitSettings().max_lead_seconds,
    "max_queue_time": LimitSettings().max_queue_seconds,
    "trim_leading_silence": LimitSettings().trim_leading_silence_seconds,
    "priority": PRIORITIES[pb.PRIORITY_UNSPECIFIED].value,
    "ttl": VoiceSettings().ttl_seconds,
    "preview": False,
    "word_timestamps": False,
}
LIMITS = {
    ("TurnOptions", "style"): LimitSettings().max_style_chars,
    ("SpeechOptions", "language"): languages.MAX_LANGUAGE,
    ("SpeechOptions", "request_id"): generate.MAX_REQUEST_ID,
    ("VoiceOptions", "request_id"): generate.MAX_REQUEST_ID,
    ("VoiceOptions", "name"): inputs.MAX_NAME,
    ("Prompt", "transcript"): LimitSettings().max_transcript_chars,
}


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str, ast.expr | None]]:
    """Name, docstring and default of every public field: the docstring is the string below the field."""
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(doc))):
                    yield statement.target.id, " ".join(doc.split()), statement.value
                case _:
                    yield statement.target.id, "", statement.value


CLASSES = [node for tree in TREES for node in tree.body if isinstance(node, ast.ClassDef)]
PUBLIC = {node.name: node for node in CLASSES if node.name in {*voxcpm_client.__all__, "Limits"}}
FIELDS = {(name, field): doc for name, node in PUBLIC.items() for field, doc, _ in fields(node)}


def bases(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of the client whose methods a class has beside its own."""
    names = {ast.unparse(base) for base in node.bases}
    for one in CLASSES:
        if one.name in names:
            yield one
            yield from bases(one)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The public functions and methods, and the constructors of the clients."""
    for tree in TREES:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in voxcpm_client.__all__:
                yield node.name, node
    for name, node in PUBLIC.items():
        for inner in (inner for each in (node, *bases(node)) for inner in each.body):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                client = name in ("Client", "AsyncClient") and inner.name == "__init__"
                if client or not inner.name.startswith("_"):
                    yield f"{name}.{inner.name}", inner


FUNCTIONS = dict(functions())


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr | None]:
    """The parameters, without self, with their defaults."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    found = dict(zip([argument.arg for argument in plain], defaults, strict=True))
    found |= dict(zip([argument.arg for argument in arguments.kwonlyargs], arguments.kw_defaults, strict=True))
    if arguments.kwarg:
        found[arguments.kwarg.arg] = None
    found.pop("self", None)
    return found


def documented(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    """The lines of the docstring below "Args:". Editors show one line of each."""
    _, _, lines = (ast.get_docstring(function) or "").partition("Args:\n")
    return dict(line.strip().split(": ", 1) for line in lines.splitlines() if line)


def stated_default(doc: str) -> str:
    found = re.findall(r"Default: `([^`]*)`", doc)
    return found[0] if len(found) == 1 else ""


def value(default: ast.expr) -> object:
    return getattr(voxcpm_client, default.id) if isinstance(default, ast.Name) else ast.literal_eval(default)


def read(stated: str) -> object:
    """A default as the documentation writes it: a Python literal, or a bare word."""
    try:
        return ast.literal_eval(stated)
    except (SyntaxError, ValueError):
        return stated


def test_the_lists_are_complete():
    assert {"SpeechOptions", "VoiceOptions", "Prompt", "Chunk", "Voice", "ModelInfo", "SpeechError"} <= set(PUBLIC)
    options = {field for name, field in FIELDS if name in ("SpeechOptions", "TurnOptions")}
    assert options == set(voxcpm_client.SpeechOptions.__annotations__)
    assert {"Client.__init__", "AsyncClient.speak", "Session.flush", "tls_credentials"} <= set(FUNCTIONS)


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_every_field_has_a_docstring(name, field):
    doc = FIELDS[name, field]
    assert re.fullmatch(r"[A-Z`0-9].*\.", doc), doc
    assert not re.match(r"(What|Who|Where|Which|Whether|Whoever)\b", doc)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_class_has_a_docstring(name):
    assert ast.get_docstring(PUBLIC[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_has_a_line_in_the_docstring(name):
    assert ast.get_docstring(FUNCTIONS[name])
    lines = documented(FUNCTIONS[name])
    assert list(lines) == list(parameters(FUNCTIONS[name]))
    assert all(line.endswith(".") for line in lines.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_default_of_a_parameter_is_that_of_the_code(name):
    lines = documented(FUNCTIONS[name])
    for parameter, default in parameters(FUNCTIONS[name]).items():
        stated = stated_default(lines[parameter])
        assert bool(stated) == (default is not None), parameter
        assert default is None or read(stated) == value(default), parameter


@pytest.mark.parametrize("name", PUBLIC)
def test_the_default_of_a_field_is_that_of_the_code(name):
    for field, doc, default in fields(PUBLIC[name]):
        if default is None or name == "SpeechError":  # `code` has another value in each subclass
            continue
        made = {} if isinstance(default, ast.Call) else value(default)  # field(default_factory=dict)
        assert read(stated_default(doc)) == made, field


@pytest.mark.parametrize("name", ["SpeechOptions", "TurnOptions", "VoiceOptions"])
def test_the_default_of_an_option_is_that_of_the_server(name):
    for field, doc, _ in fields(PUBLIC[name]):
        assert "Default: " in doc, field
        if stated := stated_default(doc):
            if field != "timeout":  # names the client's option
                assert read(stated) == SERVER_DEFAULTS[field], field
        else:
            assert field not in SERVER_DEFAULTS, field


@pytest.mark.parametrize(("option", "limit"), LIMITS.items())
def test_the_limit_of_an_option_is_that_of_the_server(option, limit):
    assert f"at most {limit} " in FIELDS[option]


def test_other_numbers_are_those_of_the_server():
    assert MAX_SEED == 2**63 - 1
    assert "0 to 2**63 - 1" in FIELDS["TurnOptions", "seed"]
    assert MAX_SECONDS == 100 * 365 * 86400
    assert "at most 100 years" in FIELDS["VoiceOptions", "ttl"]
    labels = f"at most {voices.MAX_LABELS}, with keys and values of at most {voices.MAX_LABEL} characters"
    assert labels in FIELDS["VoiceOptions", "labels"]
    for client in ("Client", "AsyncClient"):
        doc = ast.get_docstring(FUNCTIONS[f"{client}.add_prompt"]) or ""
        assert f"to {LimitSettings().max_transcript_chars} characters" in doc


def test_the_program_shows_the_defaults_of_the_server():
    shown = {option.name: option.show_default for option in say.params if isinstance(option, click.Option)}
    for name, default in SERVER_DEFAULTS.items():
        if name in shown and name not in ("no_voice", "normalize", "retry_badcase"):  # flags
            assert shown[name] == (f"{default:g}" if isinstance(default, float | int) else default), name


def test_both_clients_are_documented_alike():
    pairs = [("Client", "AsyncClient"), ("Session", "AsyncSession"), ("Stream", "AsyncStream")]
    for blocking, asynchronous in pairs:
        own = {name.partition(".")[2] for name in FUNCTIONS if name.startswith(f"{blocking}.")}
        others = {name.partition(".")[2] for name in FUNCTIONS if name.startswith(f"{asynchronous}.")}
        for name in own & others:
            first, second = FUNCTIONS[f"{blocking}.{name}"], FUNCTIONS[f"{asynchronous}.{name}"]
            assert ast.get_docstring(first) == ast.get_docstring(second)
