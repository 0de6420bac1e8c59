"""VoxCPM-0.5B and VoxCPM1.5: their configurations, files and codecs. test_modules.py compares their modules."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.checkpoints import OLDER

from tools.make_checkpoint import MODELS, VOXCPM05, VOXCPM15, config, model_shapes, vae_shapes
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import measure_model
from voxcpm_grpc.models.voxcpm.codec.vae import decoder_context
from voxcpm_grpc.models.voxcpm.config.parse import parse_config

SMALLEST, MIDDLE = OLDER
MODEL, CODEC = "model.safetensors", "audiovae.safetensors"


@pytest.fixture
def copy(tmp_path):
    """A copy of the tiny VoxCPM-0.5B that a test may damage."""
    return shutil.copytree(SMALLEST, tmp_path / "copy")


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.name)
def test_info_describes_the_checkpoint(load, path):
    info = load(path).info
    assert (info.name, info.architecture) == (path.name, "voxcpm")
    assert not info.can("reference") and not info.can("hifi") and not info.can("style")
    rate, patch, hop = (16000, 2, 640) if path == SMALLEST else (44100, 4, 1764)
    assert (info.input_sample_rate, info.output_sample_rate, info.latents.frames) == (rate, rate, patch)
    assert (info.input_samples_per_step, info.samples_per_step) == (patch * hop, patch * hop)


def test_defaults_are_those_of_the_released_code():
    content = config(True, "bfloat16", VOXCPM05) | {"architecture": "voxcpm"}
    for name in ("audio_vae_config", "max_length", "patch_size", "residual_lm_num_layers", "dtype"):
        del content[name]
    del content["scalar_quantization_latent_dim"]
    found = parse_config(content)
    assert found == parse_config(
        config(True, "bfloat16", VOXCPM05) | {"architecture": "voxcpm", "audio_vae_config": None}
    )
    assert (found.patch_size, found.residual_lm_num_layers, found.max_length) == (2, 6, 4096)
    assert (found.vae.decoder_dim, found.vae.output_rate, found.vae.decode_hop) == (1536, 16000, 640)
    assert (decoder_context(found.vae), found.base.head_dim) == (19, 64)
    assert decoder_context(parse_config(config(True, "bfloat16", VOXCPM15)).vae) == 21


def test_keys_of_voxcpm2_have_no_effect_and_the_residual_model_has_the_positions_of_the_base_model():
    content = config(False, "float32", VOXCPM15)
    content |= {"residual_lm_no_rope": True}
    content["audio_vae_config"] |= {"out_sample_rate": 48000, "sr_bin_boundaries": [20000]}
    found = parse_config(content)
    assert found == parse_config(config(False, "float32", VOXCPM15))
    assert found.residual_rotates and found.vae.output_rate == 44100
    content["lm_config"]["no_rope"] = content["dit_mean_mode"] = True
    changed = parse_config(content)
    assert not changed.residual_rotates and changed.mean_mode and not found.mean_mode


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"decoder_rates": [8, 8, 5, 4]}, "encoder_rates make a frame of 640 samples and decoder_rates make 1280"),
        ({"encoder_rates": [1, 10, 8, 8]}, "encoder_rates has a rate of 1, it must be 2 or more"),
        ({"use_noise_block": True}, "audio_vae_config.use_noise_block is true"),
        ({"sample_rate": 0}, "audio_vae_config.sample_rate is 0, it must be 1 or more"),
    ],
)
def test_codecs_that_cannot_be_run_are_refused(change, fault):
    content = config(False, "float32", VOXCPM05) | {"architecture": "voxcpm"}
    content["audio_vae_config"] |= change
    with pytest.raises(StartupError, match=fault):
        parse_config(content)


def test_the_official_layout_with_pickles_is_loaded(load, copy):
    torch.save({"state_dict": load_file(copy / MODEL)}, copy / "pytorch_model.bin")
    torch.save({"state_dict": load_file(copy / CODEC)}, copy / "audiovae.pth")
    (copy / MODEL).unlink()
    (copy / CODEC).unlink()
    assert resolve(str(copy)) == copy
    model, expected = load(copy), load(SMALLEST)
    assert torch.equal(model.networks.embedding, expected.networks.embedding)
    frames, memory = torch.ones(1, 8, 2), torch.zeros(1, model.codec.decoder.memory)
    assert torch.equal(model.codec.decoder(frames, memory)[0], expected.codec.decoder(frames, memory)[0])


def test_tensors_of_another_generation_are_named(load, copy):
    tensors = load_file(copy / MODEL)
    tensors["fusion_concat_proj.weight"] = tensors.pop("res_to_dit_proj.weight")
    (copy / MODEL).unlink()
    save_file(tensors, copy / MODEL)
    with pytest.raises(StartupError, match=r"missing: res_to_dit_proj\.weight.*unknown: fusion_concat_proj\.weight"):
        load(copy)
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(content | {"architecture": "voxcpm2"}))
    with pytest.raises(StartupError, match=r"missing: res_to_dit_proj\.weight, fusion_concat_proj\.bias"):
        load(copy)


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.name)
@pytest.mark.parametrize("cuts", [(1, 2, 4, 9), tuple(range(1, 24))], ids=len)
def test_chunks_of_any_length_equal_the_whole_result(load, path, cuts):
    """Also where a stride is odd: the encoder then looks one sample further back."""
    model = load(path)
    hop = model.config.vae.encode_hop
    draw = torch.Generator().manual_seed(0)
    for net, x, unit in (
        (model.codec.encoder, 0.3 * torch.randn(1, 1, 24 * hop, generator=draw), hop),
        (model.codec.decoder, torch.randn(1, 8, 24, generator=draw), 1),
    ):
        exact = net(x, torch.zeros(1, net.memory))[0]
        memory, pieces = torch.zeros(1, net.memory), []
        for begin, end in zip((0, *cuts), (*cuts, 24), strict=True):
            piece, memory = net(x[..., begin * unit : end * unit], memory)
            pieces.append(piece)
        assert (torch.cat(pieces, -1) - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.name)
def test_audio_depends_on_its_context_only(load, path):
    model = load(path)
    net, hop, context = model.codec.decoder, model.config.vae.decode_hop, decoder_context(model.config.vae)
    x = torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(0))
    start = torch.zeros(1, net.memory)
    primed, short = (net(x[..., 30 - n :], start)[0][..., n * hop :] for n in (context, context - 4))
    exact = net(x, start)[0][..., 30 * hop :]
    assert (primed - exact).abs().max() < 1e-6
    assert (short - exact).abs().max() > 1e-6
    assert model.prompt_layout.context * model.info.latents.frames >= context


@pytest.mark.parametrize(("model", "weights"), [(VOXCPM05, 652_287_296), (VOXCPM15, 801_729_856)])
def test_the_footprint_of_the_released_dimensions(tmp_path, model, weights):
    content = config(True, "bfloat16", model)
    (tmp_path / "config.json").write_text(json.dumps(content))
    found = measure_model(tmp_path, LoadOptions(device=torch.device("meta"), dtype=torch.bfloat16))
    assert found.weights == pytest.approx(2 * weights, rel=0.02)  # and tables
    assert found.single_stream == 0, "the kernel of a single stream has the shape of VoxCPM2"
    assert found.layout.bytes_per_position == (15_360 if model == VOXCPM05 else 16_384)


@pytest.mark.parametrize(("model", "tensors", "codec"), [(VOXCPM05, 377, 243), (VOXCPM15, 467, 299)])
def test_the_tool_writes_the_tensors_of_the_released_models(model, tensors, codec):
    assert model in MODELS
    content = config(True, "bfloat16", model)
    assert len(dict(model_shapes(content))) == tensors
    assert len(dict(vae_shapes(content["audio_vae_config"]))) == codec
