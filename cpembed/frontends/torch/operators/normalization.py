"""Batch, layer, group and instance normalisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cpembed.frontends.convolutions import scaled_channels
from cpembed.frontends.rows import group_normalized
from cpembed.frontends.torch.call import Call, Handler, Results
from cpembed.graph.kinds import LayerNorm
from cpembed.graph.kinds.base import Array

_BY_THE_BATCH = (
    "a batch normalisation by the statistics of the batch itself: call model.eval() before the "
    "export"
)


def _scale_and_shift(call: Call, channels: int) -> tuple[Array, Array]:
    """Of a batch normalisation with known statistics, in float64."""
    mean, variance = (
        call.known(call[name], "a statistic of a batch normalisation").astype(np.float64)
        for name in ("running_mean", "running_var")
    )
    weight, bias = (
        np.full(channels, default, np.float64)
        if call[name] is None
        else call.known(call[name], "a weight of a batch normalisation").astype(np.float64)
        for name, default in (("weight", 1.0), ("bias", 0.0))
    )
    scale = weight / np.sqrt(variance + call["eps"])
    return scale, bias - mean * scale


def _batch_norm(call: Call) -> Results:
    x = call["input"]
    if call.get("training") or call["running_mean"] is None:
        raise call.error(_BY_THE_BATCH)
    scale, shift = _scale_and_shift(call, call.shape(x)[1])
    return call.first_of(scaled_channels(call, x, scale, shift, call.reads_alone))


def _vector(call: Call, tensor: str | None, shape: tuple[int, ...], default: float) -> str:
    return call.tensor(np.full(shape, default, np.float32)) if tensor is None else tensor


def _layer_norm(call: Call) -> Results:
    x, shape = call["input"], tuple(call["normalized_shape"])
    scale = _vector(call, call["weight"], shape, 1)
    bias = _vector(call, call["bias"], shape, 0)
    axis = len(call.shape(x)) - len(shape)
    result = call.emit(LayerNorm(axis, call["eps"]), x, scale, bias)
    return call.first_of(result)


def _group_norm(call: Call) -> Results:
    x = call["input"]
    groups = call.get("num_groups") or call["group"]
    value = group_normalized(call, x, groups, call["eps"], call["weight"], call["bias"])
    return call.first_of(value)


def _by_channels(call: Call) -> str:
    """Each channel of each image by itself."""
    x = call["input"]
    return group_normalized(call, x, call.shape(x)[1], call["eps"], call["weight"], call["bias"])


def _statistics_of_one(call: Call) -> Results:
    """By the statistics of a batch of one: what instance normalisation is written as."""
    if call.shape(call["input"])[0] != 1:
        raise call.error(_BY_THE_BATCH)
    return call.first_of(_by_channels(call))


def _instance_norm(call: Call) -> Results:
    if not call["use_input_stats"]:
        return _batch_norm(call)
    call.in_result("running_mean", "running_var")  # They are updated, and not returned.
    return _by_channels(call)


OPERATORS: Mapping[str, Handler] = {
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten._native_batch_norm_legit.no_stats": _statistics_of_one,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.group_norm.default": _group_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
}
