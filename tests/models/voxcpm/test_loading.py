"""The loading of checkpoint directories, and the errors of unusable ones."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from voxcpm_grpc.abilities import LatentShape
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.errors import StartupError

MODEL, CODEC = "model.safetensors", "audiovae.safetensors"


def rewrite(path, change):
    tensors = load_file(path)
    change(tensors)
    path.unlink()  # mapped memory of the old file stays valid
    save_file(tensors, path)


def test_info_describes_the_checkpoint(load):
    model = load(max_slots=5, timesteps=(4, 10), max_model_len=512)
    info = model.info
    assert (info.name, info.architecture, info.dtype, info.device) == ("tiny", "voxcpm2", "float32", "cpu")
    assert (info.input_sample_rate, info.output_sample_rate) == (16000, 48000)
    assert (info.input_samples_per_step, info.samples_per_step) == (2560, 7680)
    assert info.latents == LatentShape(frames=4, dim=8)
    assert (info.max_slots, info.max_model_len, info.option("inference_timesteps").choices) == (5, 512, (4, 10))
    assert (model.layout.layers, model.layout.heads, model.layout.head_dim) == (5, 2, 16)
    assert load(name="other").info.name == "other"


def test_a_checkpoint_may_name_defaults_of_sampling(load, checkpoint):
    def defaults():
        info = load(checkpoint).info
        return info.option("cfg_value").default, info.option("temperature").default

    assert defaults() == (2.0, 1.0)  # those of the official package
    file = checkpoint / "generation_config.json"
    file.write_text('{"temperature": 0.7, "transformers_version": "5.0"}')
    assert defaults() == (2.0, 0.7)
    file.write_text('{"cfg_value": 3}')
    assert defaults() == (3.0, 1.0)
    for wrong in ('{"temperature": 3}', '{"temperature": NaN}', '{"cfg_value": true}', '{"cfg_value": "2"}', "[]", "{"):
        file.write_text(wrong)
        with pytest.raises(StartupError, match=r"^generation_config.json.* correct it"):
            load(checkpoint)


def test_loading_changes_no_global_state(load):
    load(dtype=torch.bfloat16)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("file", ["pytorch_model.bin", "pytorch_model.pth"])
def test_pickles_are_loaded_without_safetensors(load, checkpoint, tiny, file):
    for name, other, wrap in (
        (MODEL, file, lambda tensors: tensors),
        (CODEC, "audiovae.pth", lambda tensors: {"state_dict": tensors}),
    ):
        torch.save(wrap(load_file(checkpoint / name)), checkpoint / other)
        (checkpoint / name).unlink()
    assert resolve(str(checkpoint)) == checkpoint
    model = load(checkpoint)
    assert torch.equal(model.networks.embedding, tiny.networks.embedding)
    frames = torch.ones(1, model.info.latents.dim, 2)
    memory = torch.zeros(1, model.codec.decoder.memory)
    assert torch.equal(model.codec.decoder(frames, memory)[0], tiny.codec.decoder(frames, memory)[0])


def test_unused_tensors_may_be_absent(load, checkpoint):
    unused = ("decoder.sr_bin_boundaries", "encoder.fc_logvar.")

    def strip(tensors):
        names = [name for name in tensors if name.startswith(unused)]
        assert len(names) == 4
        for name in names:
            del tensors[name]

    rewrite(checkpoint / CODEC, strip)
    load(checkpoint)


def misshape(tensors):
    tensors["stop_head.weight"] = tensors["stop_head.weight"].T.contiguous()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            MODEL,
            lambda t: t.pop("residual_lm.layers.1.mlp.up_proj.weight"),
            r"missing: residual_lm\.layers\.1\.mlp\.up",
        ),
        (MODEL, lambda t: t.update(stray=torch.zeros(2)), "1 tensors of model.safetensors are unknown: stray"),
        (MODEL, misshape, r"stop_head\.weight is float32 \[28, 2\] instead of \[2, 28\]"),
        (CODEC, lambda t: t.pop("decoder.model.3.block.2.block.1.weight_g"), r"audiovae.*missing: decoder\.model\.3"),
        (CODEC, lambda t: t.update(stray=torch.zeros(2)), r"audiovae\.safetensors are unknown: stray"),
    ],
)
def test_a_missing_unknown_or_misshapen_tensor_is_refused(load, checkpoint, file, change, message):
    rewrite(checkpoint / file, change)
    with pytest.raises(StartupError, match=message):
        load(checkpoint)


def test_faults_of_both_files_are_reported_together(load, checkpoint):
    for file in (MODEL, CODEC):
        rewrite(checkpoint / file, lambda tensors: tensors.update(stray=torch.zeros(1)))
    with pytest.raises(StartupError, match=r"model\.safetensors .*audiovae\.safetensors "):
        load(checkpoint)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", MODEL, CODEC])
@pytest.mark.parametrize("fault", ["missing", "truncated", "empty"])
def test_a_missing_or_broken_file_is_named(load, checkpoint, name, fault):
    path = checkpoint / name
    content = path.read_bytes()
    path.unlink()
    if fault != "missing":
        path.write_bytes(content[: len(content) // 2] if fault == "truncated" else b"")
    with pytest.raises(StartupError, match=name.split(".")[0]):
        load(checkpoint)


def test_the_fingerprint_depends_on_the_content(load, checkpoint, tiny):
    assert load(checkpoint).info.fingerprint == tiny.info.fingerprint
    for name in ("config.json", "tokenizer.json"):
        before = load(checkpoint).info.fingerprint
        path = checkpoint / name
        path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
        assert load(checkpoint).info.fingerprint != before
    for name in (MODEL, CODEC):
        before = load(checkpoint).info.fingerprint
        rewrite(checkpoint / name, lambda tensors: next(iter(tensors.values())).flatten()[0:1].add_(1))
        assert load(checkpoint).info.fingerprint != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 4096}, "max_model_len is 4096, this model supports 1 to 2048"),
        ({"timesteps": ()}, "name one or more counts"),
        ({"timesteps": (4, 101)}, "from 1 to 100"),
        ({"recorded_noise": torch.zeros(3, 4, 8)}, r"shape \[3, 4, 8\], this model needs \[steps, 8, 4\]"),
    ],
)
def test_options_that_the_model_does_not_support_are_refused(load, options, message):
    with pytest.raises(StartupError, match=message):
        load(**options)
