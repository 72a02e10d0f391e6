"""Every operator that is known, beside PyTorch's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends.torch.operators import HANDLERS  # noqa: E402
from tests.unit.frontends.torch.comparing import Function, compared  # noqa: E402

F = torch.nn.functional
aten = torch.ops.aten


def floats(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator)


def positive(*shape: int) -> Any:
    return floats(*shape).abs() + 0.1


def integers(*shape: int, low: int = -9, high: int = 10, dtype: Any = torch.int64) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def booleans(*shape: int) -> Any:
    return floats(*shape) > 0


def _with_half(function: Callable[..., Any], x: Any) -> Any:
    return function(x, 0.5)


Case = tuple[Callable[..., Any], tuple[Any, ...]]

X, Y, ROW = floats(2, 3, 4), floats(2, 3, 4) * 2 + 0.3, floats(4)
IMAGE = floats(2, 4, 7, 9)

UNARY = {
    name: (getattr(torch, name), (X * 3,))
    for name in (
        "neg",
        "abs",
        "exp",
        "erf",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "tan",
        "floor",
        "ceil",
        "round",
        "sign",
        "trunc",
        "square",
        "expm1",
        "reciprocal",
        "relu",
        "exp2",
    )
} | {
    name: (getattr(torch, name), (positive(2, 5),))
    for name in ("log", "sqrt", "rsqrt", "log1p", "log2", "log10")
}
ACTIVATIONS = {
    name: (getattr(F, name), (X * 4,))
    for name in (
        "relu6",
        "silu",
        "mish",
        "selu",
        "softsign",
        "logsigmoid",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "elu",
        "celu",
        "gelu",
        "leaky_relu",
        "softplus",
        "tanhshrink",
    )
} | {
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (X * 3,)),
    "elu with alpha": (lambda x: F.elu(x, 0.3), (X,)),
    "softplus with beta": (lambda x: F.softplus(x, 2.0, 3.0), (X * 4,)),
    "hardtanh with bounds": (lambda x: F.hardtanh(x, -0.3, 2), (X,)),
    "prelu": (F.prelu, (IMAGE, floats(4))),
    "prelu of one": (F.prelu, (IMAGE, floats(1))),
    "threshold": (lambda x: F.threshold(x, 0.1, 20), (X,)),
    "glu": (lambda x: F.glu(x, -1), (X,)),
    "round to even": (torch.round, (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]),)),
    "nan": (torch.isnan, (torch.tensor([float("nan"), 1.0]),)),
    "inf": (torch.isinf, (torch.tensor([float("inf"), -float("inf"), 1.0]),)),
}
ARITHMETIC: dict[str, Case] = {
    "add": (lambda x, y: x + y, (X, ROW)),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=0.5), (X, Y)),
    "add number": (lambda x: 2 + x, (X,)),
    "add integers": (lambda x, y: x + y, (integers(3, 4), integers(4))),
    "add bytes": (lambda x, y: x + y, (integers(9, high=127, dtype=torch.int8),) * 2),
    "integers and floats": (lambda x, y: x * y - 1, (integers(3, 4), floats(4))),
    "Booleans and floats": (lambda x, y: x * y, (booleans(3, 4), floats(4))),
    "Booleans and integers": (lambda x, y: x + y, (booleans(3, 4), integers(4))),
    "sub": (lambda x, y: x - y, (X, Y)),
    "rsub": (lambda x: 1 - x, (X,)),
    "rsub alpha": (lambda x, y: torch.rsub(x, y, alpha=3), (X, Y)),
    "mul number": (lambda x: x * 0.3, (X,)),
    "div": (lambda x, y: x / y, (X, Y)),
    "div integers": (lambda x, y: x / y, (integers(3, 4), integers(3, 4, low=1))),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, Y)),
    "div trunc": (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), (X,)),
    "div floor integers": (lambda x, y: x // y, (integers(9), integers(9, low=1))),
    "floor divide": (lambda x: aten.floor_divide(x, 3), (integers(9),)),
    "remainder": (lambda x: torch.remainder(x, 0.7), (X,)),
    "remainder integers": (lambda x: x % 4, (integers(9),)),
    "fmod": (lambda x: torch.fmod(x, 0.7), (X,)),
    "pow 2": (lambda x: x**2, (X,)),
    "pow 3": (lambda x: x**3, (X,)),
    "pow half": (lambda x: x**0.5, (positive(5),)),
    "pow 1.7": (lambda x: x**1.7, (positive(5),)),
    "pow tensor": (torch.pow, (positive(3, 4), floats(4))),
    "pow integers": (lambda x: x**2, (integers(5),)),
    "maximum": (torch.maximum, (X, Y)),
    "minimum": (torch.minimum, (X, Y)),
    "max of two": (torch.max, (X, Y)),
    "min of two": (torch.min, (X, Y)),
    "clamp": (lambda x: x.clamp(-0.5, 0.3), (X,)),
    "clamp below": (lambda x: x.clamp(min=0.1), (X,)),
    "clamp above": (lambda x: x.clamp(max=0.1), (X,)),
    "clamp tensors": (torch.clamp, (X, ROW - 1, ROW + 1)),
    "addcmul": (lambda x, a, b: torch.addcmul(x, a, b, value=0.3), (X, Y, ROW)),
    "addcdiv": (torch.addcdiv, (X, ROW, Y)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "lerp tensor": (torch.lerp, (X, Y, ROW)),
    "numbers alone": (
        lambda x: aten.mul.Scalar(aten.sub.Scalar(aten.div.Scalar(x, 3), 0.5), 2),
        (X,),
    ),
    "quotients of numbers": (
        lambda x: aten.floor_divide.Scalar(aten.div.Scalar_mode(x, 2, rounding_mode="floor"), 2),
        (integers(9),),
    ),
    "quotients of tensors": (lambda x, y: torch.fmod(x, y) + x % y, (X, Y)),
    "where": (torch.where, (booleans(2, 3, 4), X, ROW)),
    "where number": (lambda c, x: torch.where(c, x, 0.5), (booleans(2, 3, 4), X)),
    "where integers": (torch.where, (booleans(4), integers(4), integers(4) + 1)),
    "masked fill by a tensor": (
        lambda x, m, v: x.masked_fill(m, v[0]),
        (X, booleans(3, 4), ROW),
    ),
    "masked fill": (lambda x, m: x.masked_fill(m, -1e9), (X, booleans(3, 4))),
    "in place": (lambda x: (x + 1).relu_().mul_(2).add_(x), (X,)),
}
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    ARITHMETIC[_name] = (getattr(torch, _name), (integers(4, 5), integers(5)))
    ARITHMETIC[f"{_name} number"] = (partial(_with_half, getattr(torch, _name)), (integers(9),))
for _name in (
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
):
    ARITHMETIC[_name] = (getattr(torch, _name), (booleans(4, 5), booleans(5)))
ARITHMETIC |= {
    "logical and of numbers": (torch.logical_and, (integers(4, low=-1, high=2), floats(4))),
    "logical not": (torch.logical_not, (integers(9, low=-1, high=2),)),
    "bitwise not": (lambda x: ~x, (booleans(9),)),
    "to integers": (lambda x: x.to(torch.int32), (X * 5,)),
    "to Booleans": (lambda x: x.to(torch.bool), (integers(9, low=-1, high=2),)),
    "to floats": (lambda x: x.float() / 3, (integers(9),)),
    "to double": (lambda x: x.double() * 0.1, (X,)),
    "type as": (lambda x, y: x.type_as(y), (X, integers(3))),
}
MOVEMENT: dict[str, Case] = {
    "view": (lambda x: x.view(6, 4), (X,)),
    "flatten": (lambda x: x.flatten(1), (IMAGE,)),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), (IMAGE,)),
    "unsqueeze": (lambda x: x.unsqueeze(-2), (X,)),
    "squeeze": (lambda x: x[:, :1].squeeze(1), (X,)),
    "permute": (lambda x: x.permute(0, 2, -1, 1), (IMAGE,)),
    "transpose": (lambda x: x.transpose(1, -1), (X,)),
    "t": (lambda x: x.t(), (floats(3, 5),)),
    "T": (lambda x: x.T, (floats(3, 5),)),
    "mT": (lambda x: x.mT, (X,)),
    "movedim": (lambda x: x.movedim((0, 3), (2, 0)), (IMAGE,)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), (X,)),
    "expand": (lambda x: x.expand(3, 5, -1), (floats(5, 1).expand(5, 4),)),
    "expand as": (lambda x, y: x.expand_as(y), (ROW, X)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (floats(2, 3),)),
    "tile": (lambda x: x.tile(2, 3), (floats(2, 3),)),
    "repeat each": (lambda x: x.repeat_interleave(3, 1), (X,)),
    "repeat each of all": (lambda x: x.repeat_interleave(2), (X,)),
    "slice": (lambda x: x[:, 1:6:2, -3:], (IMAGE.transpose(1, 2).contiguous(),)),
    "slice beyond": (lambda x: x[:, -99:99], (X,)),
    "select": (lambda x: x[:, -1], (X,)),
    "narrow": (lambda x: x.narrow(2, 1, 2), (X,)),
    "split": (lambda x: x.split(3, -1), (X,)),
    "split sizes": (lambda x: x.split([1, 2], 1), (X,)),
    "chunk": (lambda x: x.chunk(2, 1), (X,)),
    "tensor split": (lambda x: x.tensor_split(3, 2), (X,)),
    "unbind": (lambda x: x.unbind(1), (X,)),
    "cat": (lambda x, y: torch.cat([x, y, x], 1), (X, Y)),
    "cat of types": (lambda x, y: torch.cat([x, y], -1), (X, integers(2, 3, 2))),
    "stack": (lambda x, y: torch.stack([x, y], -1), (X, Y)),
    "flip": (lambda x: x.flip(0, -1), (X,)),
    "roll": (lambda x: x.roll((1, -2), (0, 2)), (X,)),
    "roll of all": (lambda x: x.roll(5), (X,)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), (X,)),
    "pad cut": (lambda x: F.pad(x, (-1, 2, -1, 0)), (X,)),
    "pad reflect": (lambda x: F.pad(x, (2, 1, 3, 0), mode="reflect"), (IMAGE,)),
    "pad edge": (lambda x: F.pad(x, (2, 1, 3, 0), mode="replicate"), (IMAGE,)),
    "pad circular": (lambda x: F.pad(x, (2, 1, 3, 0), mode="circular"), (IMAGE,)),
    "reflection pad": (lambda x: aten.reflection_pad1d(x, [2, 1]), (X,)),
    "replication pad": (lambda x: aten.replication_pad2d(x, [2, 1, 1, 0]), (IMAGE,)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (floats(2, 8, 3, 5),)),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (floats(2, 3, 4, 6),)),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), (IMAGE,)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    "nearest to a size": (lambda x: F.interpolate(x, (10, 5)), (IMAGE,)),
    "nearest exact": (lambda x: F.interpolate(x, (10, 5), mode="nearest-exact"), (IMAGE,)),
    "nearest 1d": (lambda x: F.interpolate(x, 9), (X,)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "bilinear smaller": (lambda x: F.interpolate(x, (5, 4), mode="bilinear"), (IMAGE,)),
    "bilinear aligned": (
        lambda x: F.interpolate(x, (13, 1), mode="bilinear", align_corners=True),
        (IMAGE,),
    ),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "linear": (lambda x: F.interpolate(x, 9, mode="linear"), (X,)),
    "trilinear": (
        lambda x: F.interpolate(x, (4, 5, 6), mode="trilinear"),
        (floats(1, 2, 3, 3, 4),),
    ),
    "store a slice": (lambda x, y: _stored(x, y, 1), (X, floats(2, 2, 4))),
    "store at an index": (lambda x, y: _stored(x, y, None), (X, floats(2, 4))),
    "upper triangle": (lambda x: x.triu(1), (floats(4, 5),)),
    "lower triangle": (lambda x: x.tril(), (floats(4, 5),)),
    "shape of zeros": (lambda x: torch.zeros_like(x) + torch.arange(4), (X,)),
    "filled": (
        lambda x: x * torch.full_like(x, 0.3) + torch.ones_like(x) + x.new_zeros(4),
        (X,),
    ),
    "views": (
        lambda x, y: x.reshape(4, -1).view_as(y).reshape_as(x).ravel() + x.view(1, 24),
        (X, floats(3, 8)),
    ),
    "squeeze all": (lambda x: x.squeeze() + x.squeeze((0, 2)), (floats(1, 3, 1),)),
    "split at places": (lambda x: x.tensor_split([1, 2], 1), (X,)),
    "other padding": (
        lambda x: aten.reflection_pad2d(aten.replication_pad2d(x, [1, 0, 2, 1]), [1, 2, 0, 1]),
        (IMAGE,),
    ),
    "other sizes": (
        lambda x: aten.upsample_nearest2d(aten.upsample_bilinear2d(x, [9, 6], False), [18, 6]),
        (IMAGE,),
    ),
    "identity": (lambda x: x, (X,)),
    "twice": (lambda x: (x + 1, x, x), (X,)),
    "copies": (lambda x: x.clone().contiguous().detach() + F.dropout(x, 0.5, False), (X,)),
}


def _stored(x: Any, y: Any, start: int | None) -> Any:
    x = x.clone()
    if start is None:
        x[:, 1] = y
    else:
        x[:, start:] = y
    return x * 2


INDEXING: dict[str, Case] = {
    "embedding": (F.embedding, (integers(2, 5, low=0), floats(10, 3))),
    "index select": (lambda x, i: x.index_select(1, i), (X, integers(5, low=0, high=3))),
    "index": (lambda x, i: x[:, i], (X, integers(5, low=-3, high=3))),
    "two indices": (
        lambda x, i, j: x[:, i, j],
        (IMAGE, integers(5, 1, low=-4, high=4), integers(6, low=0, high=7)),
    ),
    "indices apart": (
        lambda x, i, j: x[i, :, j],
        (IMAGE, integers(6, low=0, high=2), integers(6, low=0, high=7)),
    ),
    "gather": (lambda x, i: x.gather(1, i), (X, integers(2, 5, 4, low=0, high=3))),
    "gather fewer": (lambda x, i: x.gather(2, i), (X, integers(1, 2, 6, low=0, high=4))),
}
REDUCTIONS: dict[str, Case] = {
    "sum": (lambda x: x.sum(), (X,)),
    "sum of axes": (lambda x: x.sum((0, -1), keepdim=True), (X,)),
    "sum of Booleans": (lambda x: x.sum(1), (booleans(3, 4),)),
    "mean": (lambda x: x.mean(), (X,)),
    "mean of axes": (lambda x: x.mean((2, 3)), (IMAGE,)),
    "prod": (lambda x: x.prod(1), (X,)),
    "amax": (lambda x: x.amax((0, 2)), (X,)),
    "amin": (lambda x: x.amin(1, keepdim=True), (X,)),
    "max": (lambda x: x.max(), (X,)),
    "max of an axis": (lambda x: x.max(1).values, (X,)),
    "min of an axis": (lambda x: x.min(-1, keepdim=True)[0], (X,)),
    "var": (lambda x: x.var((0, 2)), (X,)),
    "var unbiased": (lambda x: x.var(1, unbiased=False, keepdim=True), (X,)),
    "std": (lambda x: x.std(-1), (X,)),
    "var and mean": (lambda x: torch.var_mean(x, 1), (X,)),
    "norm": (lambda x: x.norm(dim=1), (X,)),
    "norm 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=1), (X,)),
    "norm inf": (lambda x: torch.linalg.vector_norm(x, float("inf")), (X,)),
    "normalize": (lambda x: F.normalize(x, dim=1), (X,)),
    "softmax": (lambda x: x.softmax(1), (X,)),
    "log softmax": (lambda x: x.log_softmax(-1), (X,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X * 30,)),
    "std of all": (lambda x: x.std() + x.var() + x.min() + x.prod() + x.norm(), (X,)),
    "any of all": (lambda x: x.any() | x.all(0), (booleans(4, 2),)),
    "any": (lambda x: x.any(1), (booleans(4, 2),)),
    "all": (lambda x: x.all(), (booleans(4, 2),)),
    "cumsum": (lambda x: x.cumsum(1), (X,)),
    "cumsum integers": (lambda x: x.cumsum(0), (integers(7),)),
}
WINDOWS: dict[str, Case] = {
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "max pool dilated": (lambda x: F.max_pool2d(x, (2, 3), 1, 0, dilation=2), (IMAGE,)),
    "max pool ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (floats(1, 2, 8, 6),)),
    "max pool 1d": (lambda x: F.max_pool1d(x, 2), (X,)),
    "max pool 3d": (lambda x: F.max_pool3d(x, 2), (floats(1, 2, 4, 5, 6),)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "average pool inside": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (IMAGE,),
    ),
    "average pool ceil": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        (floats(1, 2, 8, 6),),
    ),
    "average pool ceil inside": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        (floats(1, 2, 8, 6),),
    ),
    "average pool divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (IMAGE,)),
    "average pool 1d": (lambda x: F.avg_pool1d(x, 2, 1, 1), (X,)),
    "global average": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (floats(1, 3, 6, 9),)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (floats(1, 3, 6, 9),)),
    "adaptive 1d": (lambda x: F.adaptive_avg_pool1d(x, 2), (X,)),
    "average pool 3d": (lambda x: F.avg_pool3d(x, 2), (floats(1, 2, 4, 5, 6),)),
    "adaptive 3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 1, 3)), (floats(1, 2, 4, 5, 6),)),
    "pool of one image": (lambda x: F.max_pool2d(x, 2), (IMAGE[0],)),
}
NORMALIZATION: dict[str, Case] = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b), (X, floats(3, 4), floats(3, 4))),
    "layer norm without weights": (lambda x: F.layer_norm(x, (4,)), (X,)),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), (X, ROW)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, ROW, ROW)),
    "instance norm": (F.instance_norm, (IMAGE,)),
}
PRODUCTS: dict[str, Case] = {
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, 2, (1, 0)),
        (IMAGE, floats(6, 4, 3, 3), floats(6)),
    ),
    "conv2d without bias": (lambda x, w: F.conv2d(x, w, dilation=2), (IMAGE, floats(6, 4, 3, 3))),
    "conv2d of one image": (F.conv2d, (IMAGE[0], floats(6, 4, 3, 3))),
    "grouped": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), (IMAGE, floats(6, 2, 3, 3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), (IMAGE, floats(4, 1, 3, 3))),
    "depthwise twice": (lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, floats(8, 1, 3, 3))),
    "same": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, floats(6, 4, 3, 5))),
    "same of even filters": (
        lambda x, w: F.conv2d(x, w, padding="same"),
        (IMAGE, floats(6, 4, 2, 4)),
    ),
    "valid": (lambda x, w: F.conv2d(x, w, padding="valid"), (IMAGE, floats(6, 4, 2, 4))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 1, 1), (X, floats(5, 3, 3), floats(5))),
    "conv1d depthwise": (lambda x, w: F.conv1d(x, w, groups=3), (X, floats(3, 1, 3))),
    "conv3d": (
        lambda x, w: F.conv3d(x, w, stride=(1, 2, 1)),
        (floats(1, 2, 4, 5, 6), floats(3, 2, 2, 3, 2)),
    ),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, dilation=(1, 2)),
        (IMAGE, floats(4, 3, 3, 2), floats(3)),
    ),
    "transposed by itself": (F.conv_transpose2d, (IMAGE, floats(4, 3, 2, 2))),
    "transposed groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3), groups=2),
        (IMAGE, floats(4, 3, 3, 3)),
    ),
    "transposed depthwise": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=4),
        (IMAGE, floats(4, 1, 2, 2)),
    ),
    "transposed 1d": (lambda x, w: F.conv_transpose1d(x, w, stride=3), (X, floats(3, 2, 4))),
    "transposed 3d": (
        lambda x, w: F.conv_transpose3d(x, w, stride=2),
        (floats(1, 2, 2, 3, 2), floats(2, 3, 2, 2, 2)),
    ),
    "linear": (F.linear, (X, floats(5, 4), floats(5))),
    "linear of a vector": (F.linear, (ROW, floats(5, 4), floats(5))),
    "linear to a scalar": (F.linear, (X, floats(4))),
    "mm": (torch.mm, (floats(3, 4), floats(4, 5))),
    "mv": (torch.mv, (floats(3, 4), floats(4))),
    "dot": (torch.dot, (floats(4), floats(4))),
    "outer": (torch.outer, (floats(4), floats(3))),
    "bmm": (torch.bmm, (X, floats(2, 4, 5))),
    "matmul": (torch.matmul, (floats(2, 1, 3, 4), floats(5, 4, 6))),
    "matmul of a row": (torch.matmul, (floats(4), floats(5, 4, 6))),
    "matmul of a column": (torch.matmul, (X, floats(4))),
    "matmul of shared rows": (torch.matmul, (floats(3, 4), floats(5, 4, 6))),
    "matmul crosswise": (torch.matmul, (floats(2, 1, 3, 4), floats(1, 5, 4, 2))),
    "addmm": (torch.addmm, (floats(5), floats(3, 4), floats(4, 5))),
    "addmm scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
        (floats(3, 5), floats(3, 4), floats(4, 5)),
    ),
    "addmm alone": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0),
        (floats(3, 5), floats(3, 4), floats(4, 5)),
    ),
    "addmv": (torch.addmv, (floats(3), floats(3, 4), ROW)),
    "baddbmm": (torch.baddbmm, (floats(2, 3, 5), X, floats(2, 4, 5))),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), (X, floats(2, 5, 4))),
    "einsum of three axes": (lambda a, b: torch.einsum("abc,cb->ca", a, b), (X, floats(4, 3))),
    "attention": (F.scaled_dot_product_attention, (floats(2, 3, 5, 4),) * 3),
    "causal": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        (floats(2, 3, 5, 4), floats(2, 3, 5, 4)),
    ),
    "masked": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m, scale=0.3),
        (floats(2, 3, 5, 4), floats(2, 3, 6, 4), floats(5, 6)),
    ),
    "masked by Booleans": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
        (floats(2, 3, 5, 4), floats(2, 3, 6, 4), booleans(5, 6) | (torch.arange(6) == 0)),
    ),
    "shared keys": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (floats(2, 6, 5, 4), floats(2, 2, 5, 4)),
    ),
}

CASES: dict[str, Case] = {
    f"{group} {name}": case
    for group, cases in {
        "unary": UNARY,
        "activation": ACTIVATIONS,
        "arithmetic": ARITHMETIC,
        "movement": MOVEMENT,
        "indexing": INDEXING,
        "reduction": REDUCTIONS,
        "window": WINDOWS,
        "normalization": NORMALIZATION,
        "product": PRODUCTS,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.quick(40)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_pytorch_computes(name: str) -> None:
    function, inputs = CASES[name]
    compared(Function(function), *inputs)


@pytest.mark.quick(6)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_an_operator_in_core_aten(name: str) -> None:
    function, inputs = CASES[name]
    compared(Function(function), *inputs, core=True)


def test_operators_that_are_known_exist() -> None:
    for name in HANDLERS:
        space, operator, overload = name.split(".")
        if space == "aten":
            assert hasattr(getattr(aten, operator), overload), name
