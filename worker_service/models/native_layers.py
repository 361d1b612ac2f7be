"""A stage's packed decoder layers as native kernels run them in one call, where they can.

Knows which parts of a decoder layer the kernels take; `kernels/decoder_layers.py` runs them.
"""

from typing import cast

import torch

from worker_service.kernels.decoder_layers import NativeLayer, NativeLayers
from worker_service.kernels.native import native_kernels_for
from worker_service.models.decoder import DecoderLayer, DecoderModel
from worker_service.models.layers.mlp import GatedMLP


def native_layers(model: DecoderModel) -> NativeLayers | None:
    """All layers of a model, or None: other dtypes, weights, devices, or sums over ranks within."""
    layers = [cast(DecoderLayer, layer) for layer in model.layers]
    norm = layers[0].attention_norm
    kernels = native_kernels_for(norm.weight)
    if not model.spec.is_plain:
        return None
    if kernels is None or norm.weight.dtype != torch.bfloat16 or model.stage.ranks.size > 1:
        return None
    described = [native for layer in layers if (native := _native_layer(layer)) is not None]
    if len(described) < len(layers):
        return None
    return NativeLayers(described, eps=norm.eps, kernels=kernels)


def _native_layer(layer: DecoderLayer) -> NativeLayer | None:
    if not isinstance(layer.mlp, GatedMLP):
        return None
    qkv, output = layer.attention.qkv.native(), layer.attention.output.native()
    gate_up, down = layer.mlp.gate_up.native(), layer.mlp.down.native()
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return NativeLayer(
        attention_norm_D=layer.attention_norm.weight,
        mlp_norm_D=layer.mlp_norm.weight,
        qkv=qkv,
        output=output,
        gate_up=gate_up,
        down=down,
    )
