"""The weights of an ONNX file with dynamically quantized layers, under the names of the official modules.

The names of the nodes hold the names of the modules: `/encoder/F0.0/conv1/Conv_quant` is `predictor.F0.0.conv1`.
"""

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor


def module_name(node: str) -> str:
    """The module of a node by its name."""
    parts: list[str] = []
    for part in node.strip("/").split("/")[:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()  # a child of a sequence repeats the name of its parent
        parts.append(part)
    return renamed(re.sub(r"(?<=[a-z])_\d+$", "", ".".join(parts)))  # the layers of PLBERT share their weights


def renamed(name: str) -> str:
    """The official name of a name in the exported file."""
    name = re.sub(r"^(encoder|decoder)\.", "", name)
    return re.sub(r"^(F0|N|shared|F0_proj|N_proj)(?=\.|$)", r"predictor.\1", name)


def dequantized(values: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int) -> Tensor:
    """Integers as the numbers that they stand for. axis: of scale and zero, if these are vectors."""
    shape = [1] * values.ndim
    shape[axis] = -1
    whole = values.astype(np.float32) - zero.astype(np.float32).reshape(shape)
    return torch.from_numpy(whole * scale.astype(np.float32).reshape(shape))


def gates(weight: Tensor) -> Tensor:
    """Reorder the gates of an LSTM from input, output, forget, cell to input, forget, cell, output. Rows: gates."""
    i, o, f, c = weight.chunk(4)
    return torch.cat((i, f, c, o))


def lstm(name: str, node: Any, tensors: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The weights of an LSTM in both directions."""
    w, r, bias = (tensors[key] for key in node.input[1:4])
    scales = [tensors[key] for key in node.input[8:12]]
    found = {}
    for way, suffix in enumerate(("_l0", "_l0_reverse")):
        for kind, values, scale, zero in (("ih", w, *scales[:2]), ("hh", r, *scales[2:])):
            full = dequantized(values[way], scale[way : way + 1], zero[way : way + 1], 0)
            found[f"{name}.weight_{kind}{suffix}"] = gates(full.T).contiguous()
        for kind, part in zip(("ih", "hh"), np.split(bias[way], 2), strict=True):
            found[f"{name}.bias_{kind}{suffix}"] = gates(torch.from_numpy(part.copy()))
    return found


def read_onnx(content: bytes) -> dict[str, Tensor]:
    """The weights in an ONNX file."""
    import onnx  # not part of every installation
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(content).graph
    tensors = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    found: dict[str, Tensor] = {}
    for node in graph.node:
        name, kind = module_name(node.name), node.op_type
        if kind == "DynamicQuantizeLSTM":
            found |= lstm(name, node, tensors)
        elif kind == "DequantizeLinear":  # of an embedding
            scale, zero = (tensors[key] for key in node.input[1:3])
            plain = node.input[1].removesuffix("_scale")
            found[renamed(plain)] = dequantized(tensors[f"{plain}_quantized"], scale, zero, 0)
        elif kind in ("ConvInteger", "MatMulInteger"):
            scale = tensors[re.sub("_quantized$", "_scale", node.input[1])]
            axis = 0 if kind == "ConvInteger" else 1
            full = dequantized(tensors[node.input[1]], scale, tensors[node.input[3]], axis)
            found[f"{name}.weight"] = full if kind == "ConvInteger" else full.T.contiguous()
        elif kind in ("Conv", "ConvTranspose", "MatMul") and node.input[1] in tensors and "istft" not in name:
            weight = torch.from_numpy(tensors[node.input[1]].copy())
            found[f"{name}.weight"] = weight if kind != "MatMul" else weight.T.contiguous()
    for name, values in tensors.items():
        if re.match(r"(encoder|decoder)\.", name) and re.search(r"\.(bias|weight|gamma|beta|alpha\d\.\d)$", name):
            found[renamed(name)] = torch.from_numpy(values.copy())
    return found
