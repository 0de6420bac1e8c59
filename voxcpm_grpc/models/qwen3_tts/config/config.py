"""The configuration of a Qwen3-TTS model, without its codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from voxcpm_grpc.layers.transformer import StackShape

Kind = Literal["custom_voice", "base", "voice_design"]
CONTROL_IDS = 1024  # they follow the codes in the vocabulary of the talker; of these only the end is drawn
DEFAULT_POSITIONS = 4096  # positions of a sequence: 5.4 minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder of the Qwen3 architecture."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    num_code_groups: int
    max_position_embeddings: int
    hidden_act: str = "silu"
    attention_bias: bool = False
    use_sliding_window: bool = False

    @property
    def shape(self) -> StackShape:
        return StackShape(
            hidden=self.hidden_size,
            ffn=self.intermediate_size,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            layers=self.num_hidden_layers,
            eps=self.rms_norm_eps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSizes:
    """The embedding of text."""

    text_vocab_size: int
    text_hidden_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMarks:
    """Token ids of text that mark its parts."""

    im_start_token_id: int
    im_end_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecMarks:
    """Ids of the talker's vocabulary that mark the parts of a prompt, and the end of the speech."""

    codec_pad_id: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The defaults of sampling, of generation_config.json; temperature 0 is greedy."""

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    code_temperature: float = 0.9
    code_top_k: int = 50
    code_top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Config:
    kind: Kind
    size: str  # the sizes are 0b6 and 1b7
    talker: DecoderConfig
    predictor: DecoderConfig
    text: TextSizes
    text_marks: TextMarks
    marks: CodecMarks
    languages: Mapping[str, int]  # config.json gives their names and ids, those of dialects too
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # speakers that have a dialect have a name of `languages`

    @property
    def codes(self) -> int:
        """The size of a codebook."""
        return self.predictor.vocab_size

    @property
    def groups(self) -> int:
        """The codes of a step."""
        return self.talker.num_code_groups

    @property
    def takes_instructions(self) -> bool:
        return self.kind != "base" and self.size != "0b6"

    @property
    def projects(self) -> bool:
        """True if a linear map leads from the width of the talker to that of the predictor."""
        return self.talker.hidden_size != self.predictor.hidden_size
