import pytest
import torch
from safetensors.torch import save_file

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.weights import Weights, check, read_tensors


def weights(tensors, dtype=torch.float32, table=torch.float32) -> Weights:
    return Weights("model.safetensors", tensors, torch.device("cpu"), dtype, table)


def test_tensors_are_rounded_to_the_table_before_the_compute_dtype():
    value = torch.tensor([1.001, 2.003])
    exact = weights({"w": value.clone()}).take("w", 2)
    rounded = weights({"w": value.clone()}, table=torch.bfloat16).take("w", 2)
    narrow = weights({"w": value.clone()}, dtype=torch.bfloat16).take("w", 2)
    assert torch.equal(exact, value)
    assert torch.equal(rounded, value.bfloat16().float())
    assert torch.equal(narrow, value.bfloat16())


def test_a_taken_tensor_has_its_own_memory():
    value = torch.zeros(2)
    weights({"w": value}).take("w", 2).fill_(1)
    assert torch.equal(value, torch.zeros(2))


def test_all_faults_are_reported_at_once():
    file = weights({"a.shape": torch.zeros(2, 3), "a.kind": torch.zeros(2, dtype=torch.int32), "stray": torch.zeros(1)})
    scope = file.scope("a")
    assert scope.take("shape", 3, 2).shape == (3, 2)
    scope.take("kind", 2)
    scope.take("gone", 4)
    with pytest.raises(StartupError) as caught:
        check(file)
    message = str(caught.value)
    for part in (
        "1 tensors of model.safetensors are missing: a.gone",
        "a.shape is float32 [2, 3] instead of [3, 2]",
        "a.kind is int32 [2] instead of [2]",
        "unknown: stray",
        "same release",
    ):
        assert part in message


def test_long_lists_of_names_are_cut_and_counted():
    file = weights({f"stray.{i:02}": torch.zeros(1) for i in range(25)})
    with pytest.raises(StartupError, match=r"25 tensors .*stray\.09 and 15 more") as caught:
        check(file)
    assert "stray.10" not in str(caught.value)


def test_dropped_tensors_are_allowed_and_not_needed():
    file = weights({"head.unused": torch.zeros(1)})
    file.scope("head").drop("unused", "absent")
    check(file)


@pytest.mark.parametrize("nested", [False, True])
def test_a_pickle_of_weights_is_read_flat_or_nested(tmp_path, nested):
    tensors = {"w": torch.arange(3.0)}
    torch.save({"state_dict": tensors} if nested else tensors, tmp_path / "model.bin")
    path, read = read_tensors(tmp_path, ("model.safetensors", "model.bin"))
    assert path.name == "model.bin"
    assert torch.equal(read["w"], tensors["w"])


def test_the_first_file_that_exists_is_read(tmp_path):
    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    torch.save({"w": torch.zeros(1)}, tmp_path / "b.bin")
    assert read_tensors(tmp_path, ("a.safetensors", "b.bin"))[1]["w"] == 1


class Surprise:
    def __reduce__(self):
        return print, ("a pickle must not run code",)


@pytest.mark.parametrize(
    "content", [{"w": Surprise()}, {"w": 1}, [torch.zeros(1)]], ids=["code", "no tensor", "no table"]
)
def test_a_pickle_of_anything_else_is_refused(tmp_path, content, capsys):
    torch.save(content, tmp_path / "model.bin")
    with pytest.raises(StartupError, match=r"model\.bin"):
        read_tensors(tmp_path, ("model.bin",))
    assert capsys.readouterr().out == ""


def test_the_error_of_a_pickle_with_code_does_not_advise_to_run_it(tmp_path):
    torch.save({"w": Surprise()}, tmp_path / "model.bin")
    with pytest.raises(StartupError) as error:
        read_tensors(tmp_path, ("model.bin",))
    assert "holds objects of " in str(error.value)
    assert "print" in str(error.value)
    assert "use a checkpoint in safetensors, or convert this one" in str(error.value)
    assert "weights_only" not in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "model.bin"])
def test_a_truncated_file_is_named(tmp_path, name):
    path, tensors = tmp_path / name, {"w": torch.zeros(1000)}
    (save_file if name.endswith("safetensors") else torch.save)(tensors, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StartupError, match=r"model\..*download it again"):
        read_tensors(tmp_path, (name,))


def test_a_missing_file_is_named_with_its_alternatives(tmp_path):
    with pytest.raises(StartupError, match=r"has no a\.safetensors or b\.bin"):
        read_tensors(tmp_path, ("a.safetensors", "b.bin"))
