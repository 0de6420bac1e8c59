"""The setting `model` for several models, their engines, and their parts of the memory of a GPU."""

from __future__ import annotations

import pytest

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.models import ModelSettings, models, on_all_gpus
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.sources import load, to_toml


def served(*flags: str, **env: str) -> tuple[ModelSettings, ...]:
    return models(load(flags, env))


def parts(*flags: str) -> dict[str, float]:
    return {name: engine.gpu_memory_part for one in served(*flags) for name, engine in one.engines.items()}


@pytest.mark.parametrize("path", ["demo", "/data/a=b", "./a=b@1", "org/model", "/a;b/c", "../x"])
def test_a_plain_model_has_no_name_and_the_engines_of_devices(path):
    [one] = served("--model", path, "--devices", "0,1")
    assert (one.name, one.settings.model, list(one.engines)) == ("", path, ["cuda:0", "cuda:1"])
    assert all(engine == one.settings.engine.model_copy(update={"device": d}) for d, engine in one.engines.items())


def test_the_last_of_two_plain_models_counts():
    assert served("--model", "/a", "--model", "/b")[0].settings.model == "/b"


def test_each_model_has_its_path_and_its_engines():
    small, large = served("--model", "small=demo@cpu:2", "--model", "large=org/large@0,cuda:1")
    assert (small.name, small.settings.model, list(small.engines)) == ("small", "demo", ["small@cpu:0", "small@cpu:1"])
    assert (large.name, large.settings.model, list(large.engines)) == (
        "large",
        "org/large",
        ["large@cuda:0", "large@cuda:1"],
    )
    assert [engine.device for engine in large.engines.values()] == ["cuda:0", "cuda:1"]


def test_a_model_without_devices_has_those_of_the_setting():
    one, other = served("--model", "a=/a", "--model", "b=/b@cpu", "--devices", "0")
    assert list(one.engines) == ["a@cuda:0"]
    assert list(other.engines) == ["b@cpu:0"]


def test_the_environment_and_a_file_name_the_same_models(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('model = ["a=/a@0:0.5", "b=/b@0,1"]\n')
    flags = served("--model", "a=/a@0:0.5", "--model", "b=/b@0,1")
    assert served("--config", str(file)) == flags
    assert served(VOXCPM_MODEL="a=/a@0:0.5;b=/b@0,1") == flags
    printed = tmp_path / "printed.toml"
    printed.write_text(to_toml(load(["--config", str(file)])))
    assert served("--config", str(printed)) == flags


def test_models_on_one_gpu_have_their_parts_and_share_what_is_left():
    assert parts("--model", "a=/a@0:0.5", "--model", "b=/b@0:0.25", "--model", "c=/c@0", "--model", "d=/d@1") == {
        "a@cuda:0": 0.5,
        "b@cuda:0": 0.25,
        "c@cuda:0": 0.25,
        "d@cuda:1": 1.0,
    }
    assert parts("--model", "a=/a", "--model", "b=/b") == {"a@auto": 0.5, "b@auto": 0.5}
    assert parts("--model", "a=/a@auto:0.75", "--model", "b=/b@0") == {"a@auto": 0.75, "b@cuda:0": 0.25}
    assert parts("--model", "a=/a@0:0.3") == {"cuda:0": 0.3}
    assert parts("--model", "a=/a@cpu,0:0.3,1") == {"cpu:0": 1.0, "cuda:0": 0.3, "cuda:1": 1.0}


def test_only_stated_parts_count_on_ray():
    settings = Settings(model="a=/a@auto:0.75;b=/b@auto:0.75;c=/c", pool="ray")
    assert [one.engines[f"{one.name}@auto"].gpu_memory_part for one in models(settings)] == [0.75, 0.75, 1.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a=/a@0:0.75", "b=/b@cuda:0:0.5"), "the parts of GPU 0 are 0.75 (a) + 0.5 (b) = 1.25 and the whole is 1"),
        (("a=/a@1:1", "b=/b@1"), "the parts of GPU 1 are 1 (a) = 1, and nothing is left for b"),
        (("a=/a@0:0.0", "b=/b@1"), "model a has '0:0.0' after @"),
        (("a=/a@0:2", "b=/b@1"), "model a has '0:2' after @"),
        (("a=/a@gpu", "b=/b@1"), "model a has 'gpu' after @"),
        (("a=/a@cpu:2:0.5", "b=/b"), "only a GPU has parts"),
        (("a=/a@0,0", "b=/b@1"), "devices names cuda:0 twice"),
        (("a=/a", "a=/b"), "model names a twice"),
        (("a=", "b=/b"), "model a has no path"),
        (("a=/a", "/b"), "model is '/b' beside other models"),
        (("/a", "b=/b"), "model is '/a' beside other models"),
    ],
)
def test_models_that_do_not_fit_together_are_refused_with_the_reason(given, said):
    with pytest.raises(StartupError) as caught:
        served(*(word for model in given for word in ("--model", model)))
    assert said in str(caught.value)


def test_a_list_of_models_without_names_is_refused(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('model = ["/a", "/b"]\n')
    with pytest.raises(StartupError, match="each model of a list needs a name"):
        load(["--config", str(file)])


def test_a_revision_belongs_to_one_repository():
    with pytest.raises(StartupError, match=r"revision is v1 and several models are repositories"):
        served("--model", "a=org/a", "--model", "b=org/b", "--revision", "v1")
    assert len(served("--model", "a=org/a", "--model", "b=/b", "--revision", "v1")) == 2


def loras(*flags: str) -> dict[str, tuple[str, ...]]:
    return {one.name: engine.loras for one in served(*flags) for engine in one.engines.values()}


def test_adapters_belong_to_the_model_or_to_the_default_one():
    assert loras("--lora", "anna=/a=b", "--lora", "bert=c/d") == {"": ("anna=/a=b", "bert=c/d")}
    two = ("--model", "large=/l@0", "--model", "small=/s@1")
    assert loras(*two, "--lora", "anna=/a", "--lora", "small/bert=/b", "--lora", "large/carl=/c") == {
        "large": ("anna=/a", "carl=/c"),
        "small": ("bert=/b",),
    }


def test_adapters_of_the_environment_and_a_file_are_lists(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('lora = ["anna=/a", "bert=/b"]\n')
    assert loras("--config", str(file)) == {"": ("anna=/a", "bert=/b")}
    [one] = served(VOXCPM_LORA="anna=/a, bert=/b")
    assert [engine.loras for engine in one.engines.values()] == [("anna=/a", "bert=/b")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lora", "anna"), "lora has 'anna'; write NAME=DIRECTORY"),
        (("--lora", "a=/a", "--lora", "a=/b"), "lora names a twice"),
        (("--lora", "big/a=/a"), "there is no model big; the models are one without a name"),
        (("--model", "x=/x", "--model", "y=/y", "--lora", "z/a=/a"), "there is no model z; the models are x, y"),
    ],
)
def test_adapters_that_name_no_model_are_refused(flags, message):
    with pytest.raises(StartupError, match=message):
        served(*flags)


@pytest.mark.parametrize(
    ("flags", "count", "expected"),
    [
        ((), 2, {"cuda:0": 1.0, "cuda:1": 1.0}),
        ((), 1, {"auto": 1.0}),
        ((), 0, {"auto": 1.0}),
        (("--devices", "1"), 4, {"cuda:1": 1.0}),
        (("--devices", "cpu:2"), 4, {"cpu:0": 1.0, "cpu:1": 1.0}),
        (("--engine.device", "cuda"), 4, {"auto": 1.0}),
        (("--engine.device", "cpu"), 4, {"auto": 1.0}),
        (("--pool", "ray"), 4, {"auto": 1.0}),
        (
            ("--model", "a=/a@auto:0.75", "--model", "b=/b@0"),
            2,
            {"a@cuda:0": 0.75, "a@cuda:1": 0.75, "b@cuda:0": 0.25},
        ),
        (("--model", "a=/a", "--model", "b=/b@cpu"), 2, {"a@cuda:0": 1.0, "a@cuda:1": 1.0, "b@cpu:0": 1.0}),
        (
            ("--model", "a=/a", "--model", "b=/b@auto"),
            2,
            {f"{name}@cuda:{gpu}": 0.5 for name in "ab" for gpu in (0, 1)},
        ),
    ],
)
def test_auto_is_every_gpu_unless_one_device_is_named(flags, count, expected):
    served = models(on_all_gpus(load(flags, {}), count))
    assert {name: engine.gpu_memory_part for one in served for name, engine in one.engines.items()} == expected
