"""The model during training: the official modules, and their forward pass for batches of fixed shape.

The result is that of the official `VoxCPM2Model.forward`, as tests show; only the computation differs. Text does not
pass through the patch encoder, several diffusion times of a target patch share one pass of the language model, and the
two parts of a transformer layer before and after its attention are functions that can be compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from tools.voice import official
from tools.voice.batches import AUDIO, STOP

UNCONDITIONAL = 0.1  # share of targets without condition, for guidance
STOP_WEIGHT = 0.5  # of the stop loss against the flow-matching loss
STOP_BALANCE = 2.0  # weight of a position that must stop
LETTER_WEIGHT = 0.1  # of the loss of letters against the flow-matching loss
HISTORY_NOISE = 0.15  # highest noise of the patches that the language model reads, over their deviation, in training
NEAR = (-2, -1, 0, 1, 2)  # letters to tell, from the one that sounds in the middle of a patch


def trained_weights(folder: Path) -> dict[str, Tensor]:
    """The averaged weights in a folder of tools.voice.train_model, or the weights of a checkpoint.

    Raises ValueError if there are none.
    """
    if (path := folder / "averaged.safetensors").exists():
        return load_file(path)
    if (path := folder / "brief.pt").exists():
        return torch.load(path, map_location="cpu", weights_only=True)["net"]
    if (path := folder / "model.safetensors").exists():
        return load_file(path)
    raise ValueError(f"{folder} has no weights: no averaged.safetensors, brief.pt or model.safetensors")


class VoiceModel(nn.Module):
    """The official modules under the official names, without the codec."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        minicpm4, locdit = official.module("modules.minicpm4"), official.module("modules.locdit")
        lm, h = config["lm_config"], config["lm_config"]["hidden_size"]
        enc, dit, code = config["encoder_config"], config["dit_config"], config["scalar_quantization_latent_dim"]

        def stack(**changes: Any) -> Any:
            return minicpm4.MiniCPM4Config(**{**lm, **changes})

        def local(c: dict[str, Any]) -> Any:
            return stack(
                hidden_size=c["hidden_dim"], intermediate_size=c["ffn_dim"], num_attention_heads=c["num_heads"],
                num_hidden_layers=c["num_layers"], kv_channels=c["kv_channels"], vocab_size=0,
            )  # fmt: skip

        self.base_lm = minicpm4.MiniCPMModel(stack())
        residual = stack(
            num_hidden_layers=config["residual_lm_num_layers"], vocab_size=0, no_rope=config["residual_lm_no_rope"]
        )
        self.residual_lm = minicpm4.MiniCPMModel(residual)
        self.feat_encoder = official.module("modules.locenc").VoxCPMLocEnc(local(enc), input_dim=config["feat_dim"])
        self.feat_decoder = locdit.UnifiedCFM(
            in_channels=config["feat_dim"],
            cfm_params=locdit.CfmConfig(**dit["cfm_config"]),
            estimator=locdit.VoxCPMLocDiTV2(local(dit), in_channels=config["feat_dim"]),
        )
        quantizer = official.module("modules.layers").ScalarQuantizationLayer
        self.fsq_layer = quantizer(h, h, code, config["scalar_quantization_scale"])
        self.enc_to_lm_proj = nn.Linear(enc["hidden_dim"], h)
        self.lm_to_dit_proj = nn.Linear(h, dit["hidden_dim"])
        self.res_to_dit_proj = nn.Linear(h, dit["hidden_dim"])
        self.fusion_concat_proj = nn.Linear(2 * h, h)
        self.stop_proj = nn.Linear(h, h)
        self.stop_head = nn.Linear(h, 2, bias=False)
        for model in (self.base_lm, self.residual_lm, self.feat_encoder.encoder, self.feat_decoder.estimator.decoder):
            for layer in model.layers:  # keeps the sum over all layers small
                for out in (layer.self_attn.o_proj, layer.mlp.down_proj):
                    out.weight.data /= (2 * len(model.layers)) ** 0.5


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    low, high = wide.chunk(2, -1)
    return (wide * cos + torch.cat((-high, low), -1) * sin).to(x.dtype)


def before_attention(
    x: Tensor, norm: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x: [..., rows, width] to q, k, v: [..., rows, heads, size]; cos, sin: [rows, 1, size]."""
    both = F.linear(normed(x, norm, eps), torch.cat((wq, wk, wv)).to(x.dtype))
    size = cos.shape[-1]
    q, k, v = both.split((wq.shape[0], wk.shape[0], wv.shape[0]), -1)
    q, k, v = q.unflatten(-1, (-1, size)), k.unflatten(-1, (-1, size)), v.unflatten(-1, (-1, size))
    return turned(q, cos, sin), turned(k, cos, sin), v


def after_attention(
    x: Tensor, attended: Tensor, wo: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor, eps: float
) -> Tensor:
    x = x + F.linear(attended.flatten(-2), wo.to(x.dtype))
    g, u = F.linear(normed(x, norm, eps), torch.cat((gate, up)).to(x.dtype)).chunk(2, -1)
    return x + F.linear(F.silu(g) * u, down.to(x.dtype))


def within(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention within short sequences. q: [batch, rows, heads, size], k, v: [batch, rows, groups, size]; like q."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class LayerFunctions:
    """The functions of a transformer layer: plain, or fast on a GPU."""

    before: Callable[..., tuple[Tensor, Tensor, Tensor]] = before_attention
    after: Callable[..., Tensor] = after_attention
    within: Callable[..., Tensor] = within

    @classmethod
    def fast(cls) -> "LayerFunctions":
        from tools.voice.tiny_attention import Attention  # Triton is not always installed

        return cls(
            torch.compile(before_attention, dynamic=False, fullgraph=True),
            torch.compile(after_attention, dynamic=False, fullgraph=True),
            Attention.apply,
        )


def linear(layer: Any, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)


def causal(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """Attention within rows of `width` positions. q, k, v: [rows * width, heads, size]."""
    q, k, v = (x.unflatten(0, (-1, width)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of a batch."""

    flow: Tensor  # of flow matching
    stop: Tensor
    letters: Tensor  # of the letters that sound in the next patch, told from what the language model says of it

    @property
    def all(self) -> Tensor:
        return self.flow + STOP_WEIGHT * self.stop + LETTER_WEIGHT * self.letters

    @property
    def each(self) -> Tensor:
        """Flow, stop and letters, [3]."""
        return torch.stack((self.flow, self.stop, self.letters)).detach()


class Forward:
    """The forward pass of a VoiceModel. dtype: of its activations.

    reader: tells the letters near the one that sounds next. It is no part of the checkpoint. history_noise: see
    HISTORY_NOISE.
    """

    def __init__(
        self, net: VoiceModel, reader: nn.Linear, dtype: torch.dtype, device: torch.device, functions: LayerFunctions,
        history_noise: float = 0.0,
    ) -> None:  # fmt: skip
        self.net, self.reader, self.dtype, self.functions = net, reader, dtype, functions
        self.history_noise = history_noise
        rope = net.base_lm.rope_emb
        self.cos, self.sin = (table.float().to(device) for table in (rope.cos_cached, rope.sin_cached))
        self.pull = torch.ones((), device=device)  # 0: the language model does not learn from the reader's loss
        self.near = torch.tensor(NEAR, device=device)  # here, because a captured step cannot copy from the host

    def tables(self, rows: int, repeat: int = 1, rotate: bool = True) -> tuple[Tensor, Tensor]:
        if not rotate:
            cos = torch.ones_like(self.cos[:rows])
            return cos.repeat(repeat, 1)[:, None], torch.zeros_like(cos).repeat(repeat, 1)[:, None]
        return self.cos[:rows].repeat(repeat, 1)[:, None], self.sin[:rows].repeat(repeat, 1)[:, None]

    def stack(self, model: Any, x: Tensor, turn: tuple[Tensor, Tensor], attend: Callable[..., Tensor]) -> Tensor:
        """All layers, without the final norm."""
        eps = model.norm.variance_epsilon
        for layer in model.layers:
            a, m = layer.self_attn, layer.mlp
            q, k, v = self.functions.before(
                x, layer.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight, *turn, eps
            )
            x = self.functions.after(
                x, attend(q, k, v), a.o_proj.weight, layer.post_attention_layernorm.weight,
                m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight, eps,
            )  # fmt: skip
        return x

    def end(self, model: Any, x: Tensor) -> Tensor:
        return normed(x, model.norm.weight, model.norm.variance_epsilon)

    def encoded(self, patches: Tensor) -> Tensor:
        """The input of the language model for each patch: [n, patch, latent] to [n, hidden]."""
        encoder = self.net.feat_encoder
        x = linear(encoder.in_proj, patches.to(self.dtype))
        first = encoder.special_token[0].to(self.dtype).expand(len(x), -1, -1)
        x = self.stack(encoder.encoder, torch.cat((first, x), 1), self.tables(x.shape[1] + 1), self.functions.within)
        return linear(self.net.enc_to_lm_proj, self.end(encoder.encoder, x[:, 0]))

    def quantized(self, x: Tensor) -> Tensor:
        layer = self.net.fsq_layer
        soft = torch.tanh(linear(layer.in_proj, x)).float()
        hard = torch.round(soft * layer.scale) / layer.scale
        return linear(layer.out_proj, (soft + (hard - soft).detach()).to(x.dtype))

    def hidden(self, ids: Tensor, audio: Tensor, context: Tensor, at: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The outputs of the two language models at every position, [positions, hidden] each.

        ids, audio: [positions]. context: patches [n, patch, latent] for the positions `at`; the position after the last
        one stands for none.
        """
        net, count = self.net, len(ids)
        table = net.base_lm.embed_tokens.weight
        chosen = ids[:, None] == torch.arange(len(table), device=ids.device)
        text = chosen.to(self.dtype) @ table.to(self.dtype)
        sound = self.encoded(context)
        sound = sound.new_zeros(count + 1, sound.shape[1]).index_copy(0, at, sound)[:count]
        mask = audio[:, None]
        turn = self.tables(width, count // width)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return causal(q, k, v, width)

        x = self.end(net.base_lm, self.stack(net.base_lm, torch.where(mask, sound, text), turn, attend))
        y = torch.where(mask, self.quantized(x), x)
        both = torch.cat((y, torch.where(mask, sound, 0)), 1)
        if net.residual_lm.rope_emb is None:
            turn = self.tables(width, count // width, rotate=False)
        z = self.stack(net.residual_lm, linear(net.fusion_concat_proj, both), turn, attend)
        return y, self.end(net.residual_lm, z)

    def conditions(self, y: Tensor, z: Tensor, at: Tensor) -> Tensor:
        """The condition of the diffusion transformer at the positions `at`: [n, 2, width]."""
        past = at - 1
        mu = (linear(self.net.lm_to_dit_proj, y), linear(self.net.res_to_dit_proj, z))
        return torch.stack([part.float().index_select(0, past) for part in mu], 1)

    def stop_logits(self, y: Tensor) -> Tensor:
        """The stop decision after each position: [positions, 2]."""
        net = self.net
        return linear(net.stop_head, F.silu(linear(net.stop_proj, y))).float()

    def letters_loss(self, y: Tensor, ids: Tensor, letter: Tensor) -> Tensor:
        """The loss of the letters near the one that sounds in the patch after each position. letter: see `Layout`."""
        vocabulary = len(self.net.base_lm.embed_tokens.weight)
        y = y.detach() + self.pull.to(y.dtype) * (y - y.detach())
        logits = linear(self.reader, y[:-1]).float().unflatten(1, (len(NEAR), vocabulary))
        near = letter[1:, None] + self.near
        each = F.cross_entropy(logits.transpose(1, 2), ids[near.clamp(0, len(ids) - 1)], reduction="none").mean(1)
        weight = (letter[1:] > 0).float()
        return (each * weight).sum() / weight.sum().clamp(min=1)

    def velocity(self, x: Tensor, mu: Tensor, time: Tensor, before: Tensor) -> Tensor:
        """The velocity of the flow. x, before: [n, patch, latent]. mu: [n, 2, width]. time: float32 [n]."""
        net = self.net.feat_decoder.estimator
        x, before = linear(net.in_proj, x.to(self.dtype)), linear(net.cond_proj, before.to(self.dtype))
        embedded = net.time_embeddings(time).to(self.dtype)
        zero = net.time_embeddings(torch.zeros_like(time[:1])).to(self.dtype)
        token = self.perceptron(net.time_mlp, embedded) + self.perceptron(net.delta_time_mlp, zero)
        count = x.shape[1]
        x = torch.cat((mu.to(self.dtype), token[:, None], before, x), 1)
        x = self.stack(net.decoder, x, self.tables(x.shape[1]), self.functions.within)[:, -count:]
        return linear(net.out_proj, self.end(net.decoder, x)).float()

    @staticmethod
    def perceptron(mlp: Any, x: Tensor) -> Tensor:
        return linear(mlp.linear_2, F.silu(linear(mlp.linear_1, x)))

    def losses(self, parts: dict[str, Tensor], table: Tensor, width: int) -> Losses:
        """The losses of a batch. parts: see `batches.Layout`. table: all patches."""
        parts = {name: part.long() for name, part in parts.items()}
        marks = parts["marks"]
        audio, wanted = marks >= AUDIO, marks % AUDIO
        context = table[parts["context"]]
        if self.history_noise:
            amount = self.history_noise * torch.rand(len(context), 1, 1, device=context.device)
            context = context + amount * torch.randn_like(context, dtype=torch.float32)
        y, z = self.hidden(parts["ids"], audio, context, parts["context_at"], width)

        mu = self.conditions(y, z, parts["target_at"])
        count, device = len(mu), mu.device
        mu = mu * (torch.rand(count, 1, 1, device=device) > UNCONDITIONAL)
        target, before = table[parts["target"]].float(), table[parts["previous"]]
        noise, time = torch.randn_like(target), times(count, device)
        at = time[:, None, None]
        flow = self.velocity((1 - at) * target + at * noise, mu, time, before)
        flow_loss = F.mse_loss(flow, noise - target)

        logits = self.stop_logits(y)[:-1]
        wanted = wanted[1:]  # the stop head decides at the position before the patch
        each = F.cross_entropy(logits, (wanted == STOP).long(), reduction="none")
        weight = (wanted > 0).float() * torch.where(wanted == STOP, STOP_BALANCE, 1.0)
        stop_loss = (each * weight).sum() / weight.sum().clamp(min=1)
        return Losses(flow_loss, stop_loss, self.letters_loss(y, parts["ids"], parts["letter"]))


def new_reader(net: VoiceModel) -> nn.Linear:
    """A reader of letters for `Forward`."""
    vocabulary, hidden = net.base_lm.embed_tokens.weight.shape
    return nn.Linear(hidden, len(NEAR) * vocabulary)


def times(count: int, device: torch.device) -> Tensor:
    """Diffusion times, half of them uniform and half logit-normal. 1 is noise; inference starts at 0.96."""
    even = torch.rand(count, device=device)
    centred = torch.sigmoid(torch.randn(count, device=device) - 0.2)
    return torch.where(torch.arange(count, device=device) % 2 == 0, even, centred)
