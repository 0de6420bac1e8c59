"""The kernels of the codec's decoder under the names of `codec_reference`."""

from voxcpm_grpc.kernels.conv.state import load_windows, store_windows
from voxcpm_grpc.models.qwen3_tts.kernels.codec_rows import depthwise_norm, look_up, mix_down
from voxcpm_grpc.models.qwen3_tts.kernels.convolution import convolve
from voxcpm_grpc.models.qwen3_tts.kernels.ring_attention import advance, attend_next

__all__ = [
    "advance",
    "attend_next",
    "convolve",
    "depthwise_norm",
    "load_windows",
    "look_up",
    "mix_down",
    "store_windows",
]
