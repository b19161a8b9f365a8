"""Models that are compressed without becoming slim, as in Vulcan's Table 5: weights of zero, and weights in INT8."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


@torch.no_grad()
def zero_least(network: nn.Module, share: float) -> None:
    """Set this share of the weights of every layer to zero, in place: those of least magnitude.

    Layer by layer, as Han et al. (2015), whom the paper cites, give each layer a threshold of its own. Biases,
    normalisations and position embeddings stay.
    """
    for layer in network.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            weights = layer.weight.view(-1)
            weights[weights.abs().topk(round(share * len(weights)), largest=False).indices] = 0


def write_int8(file: Path, out: Path) -> None:
    """Quantise an fp32 file with ONNX Runtime's own tool: weights of products once, activations in each inference."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    model = onnx.load(file)
    del model.graph.value_info[:]  # the tool turns the classifier's weight and then trips over the shape that was noted
    add_pre_process_metadata(model)  # else it advises to fold constants first, which edgevit's exporter has done
    quantize_dynamic(model, out, op_types_to_quantize=["MatMul", "Gemm"], weight_type=QuantType.QInt8)
