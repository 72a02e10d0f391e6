"""Every operator of floats and of shapes beside ONNX Runtime, on random inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.unit.frontends.onnx.referee import MICROSOFT, Array, check, single

RANDOM = np.random.default_rng(7)


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return RANDOM.uniform(0.1, 3, shape).astype(np.float32)


def i(*values: int) -> Array:
    return np.asarray(values, np.int64)


def whole(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    return RANDOM.integers(low, high, shape).astype(dtype)


@dataclass
class Case:
    operator: str
    inputs: Sequence[Array | None]
    constants: Sequence[int] = ()
    outputs: int = 1
    version: int = 21
    domain: str = ""
    note: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operator}{' ' + self.note if self.note else ''}"


def case(
    operator: str,
    *inputs: Array | None,
    constants: Sequence[int] = (),
    outputs: int = 1,
    version: int = 21,
    domain: str = "",
    note: str = "",
    **attributes: Any,
) -> Case:
    return Case(operator, inputs, constants, outputs, version, domain, note, attributes)


X4 = f(2, 6, 9, 7)
CONVOLUTIONS = [
    case("Conv", f(2, 4, 9, 7), f(6, 4, 3, 3), constants=[1], note="plain"),
    case("Conv", f(1, 4, 9, 7), f(6, 4, 3, 3), f(6), constants=[1, 2], pads=[1, 0, 2, 1],
         strides=[2, 1], note="asymmetric padding"),
    case("Conv", f(1, 4, 12, 11), f(6, 2, 3, 2), f(6), constants=[1, 2], group=2,
         dilations=[2, 3], pads=[2, 2, 2, 2], note="groups and dilation"),
    case("Conv", f(1, 5, 9, 8), f(5, 1, 3, 3), f(5), constants=[1, 2], group=5,
         pads=[1, 1, 1, 1], note="depthwise"),
    case("Conv", f(1, 5, 9, 8), f(10, 1, 3, 3), constants=[1], group=5, note="several a channel"),
    case("Conv", f(2, 3, 13), f(4, 3, 5), f(4), constants=[1, 2], strides=[2], pads=[2, 1],
         note="1-D"),
    case("Conv", f(1, 4, 13), f(4, 1, 5), constants=[1], group=4, note="1-D depthwise"),
    case("Conv", f(1, 2, 5, 6, 7), f(3, 2, 2, 3, 3), constants=[1], pads=[0, 1, 1, 1, 1, 1],
         note="3-D"),
    case("Conv", f(1, 3, 10, 9), f(4, 3, 3, 3), constants=[1], auto_pad="SAME_UPPER",
         strides=[2, 2], note="same upper"),
    case("Conv", f(1, 3, 10, 9), f(4, 3, 4, 2), constants=[1], auto_pad="SAME_LOWER",
         strides=[3, 2], note="same lower"),
    case("Conv", f(1, 3, 10, 9), f(4, 3, 4, 2), constants=[1], auto_pad="VALID", note="valid"),
    case("Conv", f(1, 3, 10, 9), f(4, 3, 4, 2), f(4), note="varying weights"),
    case("ConvTranspose", f(1, 4, 5, 6), f(4, 3, 3, 3), f(3), constants=[1, 2], strides=[2, 2],
         pads=[1, 1, 1, 1], note="stride"),
    case("ConvTranspose", f(2, 4, 5, 6), f(4, 3, 3, 2), constants=[1], strides=[2, 3],
         output_padding=[1, 2], note="output padding"),
    case("ConvTranspose", f(1, 4, 5, 6), f(4, 3, 3, 3), constants=[1], group=2, strides=[2, 1],
         dilations=[2, 1], pads=[0, 1, 2, 1], note="groups"),
    case("ConvTranspose", f(1, 4, 5, 6), f(4, 2, 3, 3), constants=[1], strides=[3, 2],
         output_shape=[14, 12], note="output shape"),
    case("ConvTranspose", f(1, 4, 5, 6), f(4, 2, 3, 3), constants=[1], strides=[2, 2],
         auto_pad="SAME_UPPER", note="same upper"),
    case("ConvTranspose", f(1, 4, 5), f(4, 2, 3), constants=[1], strides=[2], note="1-D"),
]  # fmt: skip

MATRICES = [
    case("Gemm", f(3, 5), f(5, 4), f(4), constants=[1, 2], note="plain"),
    case("Gemm", f(3, 5), f(4, 5), f(3, 1), constants=[1, 2], transB=1, alpha=0.5, beta=2.0,
         note="transposed, scaled"),
    case("Gemm", f(5, 3), f(5, 4), constants=[1], transA=1, note="transposed A"),
    case("Gemm", f(3, 5), f(5, 4), f(3, 4), note="nothing constant"),
    case("MatMul", f(3, 5), f(5, 4), constants=[1], note="matrices"),
    case("MatMul", f(2, 3, 5), f(5, 4), constants=[1], note="rows of a batch"),
    case("MatMul", f(2, 3, 5), f(2, 5, 4), note="batches"),
    case("MatMul", f(2, 1, 3, 5), f(4, 5, 6), note="broadcast"),
    case("MatMul", f(3, 5), f(2, 5, 4), note="one times several"),
    case("MatMul", f(5), f(5, 4), constants=[1], note="vector"),
    case("MatMul", f(3, 5), f(5), note="column"),
    case("MatMul", f(5), f(5), note="vectors"),
    case("MatMul", f(4, 5), f(2, 5, 3), constants=[0], note="constant first"),
    case("Einsum", f(2, 3, 4), f(2, 4, 5), equation="bij,bjk->bik", note="batch"),
    case("Einsum", f(2, 3, 4, 5), f(2, 6, 4, 5), equation="bqhd,bkhd->bhqk", note="attention"),
    case("Einsum", f(3, 4), equation="ij->ji", note="transposed"),
    case("Einsum", f(3, 4), equation="ij->j", note="sum"),
    case("Einsum", f(3, 4), f(4, 5), f(5, 2), equation="ij,jk,kl->il", note="three"),
    case("Einsum", f(2, 3, 4), f(4, 5), equation="...j,jk->...k", note="dots"),
]  # fmt: skip

POOLS = [
    case("MaxPool", X4, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", X4, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, note="ceil"),
    case("MaxPool", X4, kernel_shape=[2, 3], dilations=[2, 2], note="dilation"),
    case("MaxPool", X4, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER", note="same"),
    case("MaxPool", f(1, 3, 11), kernel_shape=[4], strides=[3], note="1-D"),
    case("MaxPool", whole(-128, 127, 1, 3, 8, 8, dtype="int8"), kernel_shape=[3, 3],
         pads=[1, 1, 1, 1], note="int8"),
    case("AveragePool", X4, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
    case("AveragePool", X4, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1,
         note="padding counts"),
    case("AveragePool", X4, kernel_shape=[4, 3], strides=[3, 2], ceil_mode=1, note="ceil"),
    case("AveragePool", X4, kernel_shape=[4, 3], strides=[3, 2], pads=[1, 1, 1, 0], ceil_mode=1,
         count_include_pad=1, note="ceil, padding counts"),
    case("MaxPool", f(1, 2, 6, 5), kernel_shape=[3, 2], strides=[4, 3], pads=[0, 0, 2, 1],
         ceil_mode=1, note="ceil, a window in the padding"),
    case("AveragePool", f(1, 2, 5, 6, 7), kernel_shape=[2, 3, 2], note="3-D"),
    case("GlobalAveragePool", X4),
    case("GlobalMaxPool", X4),
    case("LRN", f(1, 7, 4, 5), size=5, alpha=0.01, beta=0.75, bias=2.0),
    case("LRN", f(2, 7, 4, 3), size=3, note="defaults"),
]  # fmt: skip

_UNARY = [
    "Abs", "Neg", "Exp", "Sign", "Floor", "Ceil", "Round", "Erf", "Sin", "Cos", "Tanh", "Sigmoid",
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Softplus", "Softsign",
    "Mish", "ThresholdedRelu", "Gelu", "Shrink", "Sinh", "Cosh", "Tan", "IsNaN", "IsInf",
]  # fmt: skip
_BINARY = ["Add", "Sub", "Mul", "Div", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
_MIXED = [("Add", "int64"), ("Sub", "int32"), ("Mul", "int64"), ("Div", "int32"), ("Less", "int32"),
          ("Equal", "int64"), ("Max", "int64"), ("Min", "int32"), ("Add", "uint8")]  # fmt: skip
SPECIAL = np.asarray([np.inf, -np.inf, np.nan, 0, -1, 3e38], np.float32)
ELEMENTWISE = [
    *(case(name, f(3, 5) * 2) for name in _UNARY),
    *(case(name, positive(3, 5)) for name in ("Sqrt", "Log", "Reciprocal")),
    *(case(name, f(2, 3, 5), f(3, 1), note="broadcast") for name in _BINARY),
    *(case(name, whole(-9, 9, 4, 6, dtype=d) if d[0] == "i" else whole(0, 255, 4, 6, dtype=d),
           whole(1, 5, 6, dtype=d), note=d) for name, d in _MIXED),
    case("Div", whole(-20, 20, 50, dtype="int32"), np.where(RANDOM.random(50) < 0.5, -3, 4)
         .astype(np.int32), note="towards zero"),
    case("LeakyRelu", f(9), alpha=0.3, note="slope"),
    case("Elu", f(9), alpha=0.3, note="alpha"),
    case("Gelu", f(9), approximate="tanh", note="tanh"),
    case("Gelu", f(9), domain=MICROSOFT, note="Microsoft's"),
    case("QuickGelu", f(9), domain=MICROSOFT),
    case("HardSigmoid", f(9), alpha=0.25, beta=0.4, note="alpha"),
    case("ThresholdedRelu", f(9), alpha=0.2, note="alpha"),
    case("Pow", positive(4, 3), f(3), constants=[1]),
    *(case("Pow", f(4, 3), np.float32(p), constants=[1], note=str(p)) for p in (2, 3, 1)),
    case("Pow", positive(4, 3), np.float32(0.5), constants=[1], note="root"),
    case("PRelu", X4, f(6, 1, 1), constants=[1]),
    case("Clip", f(3, 5), np.float32(-0.5), np.float32(0.5), constants=[1, 2]),
    case("Clip", f(3, 5), None, np.float32(0.5), constants=[2], note="above"),
    case("Clip", f(3, 5), np.asarray(-0.2, np.float32), np.asarray(0.5, np.float32),
         note="computed"),
    case("Clip", f(3, 5), version=6, min=-0.1, max=0.2, note="attributes"),
    case("Clip", whole(-9, 9, 20, dtype="int32"), np.int32(-3), np.int32(5), constants=[1, 2],
         note="integers"),
    case("Max", f(3, 5), f(5), f(3, 1), note="three"),
    case("Min", f(3, 5), f(5)),
    case("Sum", f(3, 5), f(5), f(3, 1)),
    case("Mean", f(3, 5), f(5), f(3, 1)),
    case("Mod", whole(-20, 20, 40), whole(1, 7, 40), note="integers"),
    case("Mod", whole(-20, 20, 40), -whole(1, 7, 40), note="divisor below 0"),
    case("Mod", f(40), positive(40), fmod=1, note="floats"),
    case("IsNaN", SPECIAL, note="special"),
    case("IsInf", SPECIAL, note="special"),
    case("IsInf", SPECIAL, detect_negative=0, note="positive"),
    case("Equal", f(3), f(3)),
    *(case(name, whole(0, 2, 9, dtype="bool"), whole(0, 2, 9, dtype="bool"))
      for name in ("And", "Or", "Xor")),
    case("Not", whole(0, 2, 9, dtype="bool")),
    case("Where", whole(0, 2, 3, 5, dtype="bool"), f(5), f(3, 1)),
    case("Where", whole(0, 2, 5, dtype="bool"), whole(0, 9, 5), whole(0, 9, 5), note="integers"),
    case("Cast", f(20) * 5, to=6, note="to int32"),
    case("Cast", f(20), to=9, note="to bool"),
    case("Cast", f(20), to=10, note="to float16"),
    case("Cast", whole(-300, 300, 20, dtype="int32"), to=3, note="wraps"),
    case("Cast", whole(0, 2, 20, dtype="bool"), to=1, note="from bool"),
    case("Cast", whole(-9, 9, 20), to=1, note="from int64"),
    case("CastLike", f(5) * 4, whole(0, 9, 1, dtype="int32")),
]  # fmt: skip

_REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
               "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]  # fmt: skip
REDUCTIONS = [
    *(case(name, f(2, 3, 4), i(1), constants=[1], keepdims=k, note=f"keepdims={k}")
      for name in _REDUCTIONS for k in (0, 1)),
    case("ReduceLogSum", positive(2, 3, 4), i(0, 2), constants=[1]),
    case("ReduceSum", f(2, 3, 4), note="all"),
    case("ReduceSum", f(2, 3, 4), noop_with_empty_axes=1, note="none"),
    case("ReduceSum", X4, i(1), constants=[1], noop_with_empty_axes=1, note="one anyway"),
    case("ReduceMean", f(2, 3, 4), axes=[0, -1], version=13, note="attribute"),
    case("ReduceMean", X4, i(2, 3), constants=[1], note="of an image"),
    case("ReduceMax", X4, i(2, 3), constants=[1], keepdims=0, note="of an image"),
    case("ReduceSum", whole(-9, 9, 3, 4), i(1), constants=[1], note="integers"),
    case("ReduceMax", whole(0, 2, 3, 4, dtype="bool"), i(1), constants=[1], version=20,
         note="Booleans"),
    *(case(name, whole(0, 4, 5, 6).astype(np.float32), axis=1, keepdims=k, select_last_index=last,
           note=f"{k} {last}") for name in ("ArgMax", "ArgMin") for k in (0, 1) for last in (0, 1)),
    *(case(name, f(2, 3, 4), axis=axis, version=v, note=f"axis {axis} version {v}")
      for name in ("Softmax", "LogSoftmax") for axis in (0, 1, -1) for v in (11, 13)),
    case("LayerNormalization", f(2, 3, 4), f(4), f(4), constants=[1, 2]),
    case("LayerNormalization", f(2, 3, 4), f(3, 4), constants=[1], axis=1, note="two axes"),
    case("LayerNormalization", f(2, 3, 4), f(4), f(4), constants=[1, 2], outputs=3,
         note="statistics"),
    case("InstanceNormalization", X4, f(6), f(6), constants=[1, 2]),
    case("GroupNormalization", X4, f(6), f(6), constants=[1, 2], num_groups=3),
    case("LpNormalization", f(3, 4), axis=0, p=1),
    case("LpNormalization", f(3, 4), p=2, note="2"),
    case("MeanVarianceNormalization", X4),
    case("BatchNormalization", X4, positive(6), f(6), f(6), positive(6), constants=[1, 2, 3, 4]),
    case("BatchNormalization", X4, positive(6), f(6), f(6), positive(6), note="computed"),
]  # fmt: skip

MOVES = [
    case("Identity", f(2, 3)),
    case("Dropout", f(2, 3)),
    case("Reshape", f(2, 3, 4), i(0, -1), constants=[1]),
    case("Reshape", f(2, 3, 4), i(4, 6), constants=[1], note="sizes"),
    case("Flatten", f(2, 3, 4, 5), axis=2),
    case("Flatten", f(2, 3, 4), axis=-1, note="from the end"),
    case("Flatten", f(2, 3, 4), axis=0, note="row"),
    case("Squeeze", f(2, 1, 3, 1), i(1), constants=[1]),
    case("Squeeze", f(2, 1, 3, 1), note="all"),
    case("Unsqueeze", f(2, 3), i(0, -1), constants=[1]),
    case("Transpose", f(2, 3, 4), perm=[2, 0, 1]),
    case("Transpose", f(2, 3, 4), note="reversed"),
    case("Concat", f(2, 3), f(2, 4), axis=1),
    case("Concat", f(2, 3), f(1, 3), f(2, 3), axis=-2, note="three"),
    case("Split", f(6, 4), outputs=3, num_outputs=3),
    case("Split", f(7, 4), outputs=3, num_outputs=3, note="rest"),
    case("Split", f(3, 6), i(1, 2, 3), constants=[1], outputs=3, axis=1, note="sizes"),
    case("Slice", f(6, 7), i(1, -3), i(5, 100), i(0, 1), i(2, 1), constants=[1, 2, 3, 4]),
    case("Slice", f(6, 7), i(-1, 5), i(-100, 1), i(0, 1), i(-1, -2), constants=[1, 2, 3, 4],
         note="backwards"),
    case("Slice", f(6, 7), version=9, starts=[1, 2], ends=[4, -1], note="attributes"),
    case("Pad", f(2, 3), i(1, 0, 2, 1), constants=[1]),
    case("Pad", f(2, 3), i(1, 0, 2, 1), np.float32(1.5), constants=[1, 2], note="value"),
    case("Pad", f(4, 5), i(1, 2, 2, 1), constants=[1], mode="reflect", note="reflect"),
    case("Pad", f(4, 5), i(1, 2, 2, 1), constants=[1], mode="edge", note="edge"),
    case("Pad", f(4, 5), i(1, 2, 2, 1), constants=[1], mode="wrap", note="wrap"),
    case("Pad", f(4, 5), i(-1, 2, 0, -1), constants=[1], note="cropped"),
    case("Pad", f(2, 3, 4), i(1, 2), None, i(-1), constants=[1, 3], note="axes"),
    case("Gather", f(5, 4), i(3, -1, 0), constants=[1]),
    case("Gather", f(5, 4), whole(-4, 4, 2, 3), axis=1, note="computed"),
    case("Gather", f(5, 4), np.int64(2), constants=[1], note="one"),
    case("GatherElements", f(5, 4), whole(-5, 5, 3, 4)),
    case("GatherElements", f(2, 5, 4), whole(-4, 4, 2, 5, 3), axis=2, note="axis"),
    case("GatherND", f(2, 3, 4), whole(-2, 2, 5, 2)),
    case("GatherND", f(2, 3, 4), whole(0, 3, 2, 5, 1), batch_dims=1, note="batch"),
    case("ScatterElements", f(3, 4), i(2, 0, 1, 1).reshape(1, 4), f(1, 4), constants=[1]),
    case("ScatterND", f(4, 3), i(2, 0).reshape(2, 1), f(2, 3), constants=[1]),
    case("OneHot", whole(-3, 3, 2, 4), i(5), np.asarray([0.5, 2], np.float32), constants=[1, 2]),
    case("OneHot", whole(0, 3, 2, 4), i(5), i(0, 1), constants=[1, 2], axis=0, note="axis"),
    case("Trilu", f(2, 4, 5), np.int64(1), constants=[1]),
    case("Trilu", f(4, 5), upper=0, note="lower"),
    case("CumSum", f(3, 5), np.int64(1), constants=[1]),
    case("CumSum", f(3, 5), np.int64(0), constants=[1], exclusive=1, reverse=1, note="reverse"),
    case("CumSum", whole(0, 9, 3, 5), np.int64(-1), constants=[1], note="integers"),
    case("Expand", f(3, 1), i(2, 1, 4), constants=[1]),
    case("Tile", f(2, 3), i(3, 2), constants=[1]),
    case("DepthToSpace", f(1, 12, 2, 3), blocksize=2),
    case("DepthToSpace", f(1, 12, 2, 3), blocksize=2, mode="CRD", note="CRD"),
    case("SpaceToDepth", f(1, 3, 4, 6), blocksize=2),
    case("Shape", f(2, 3, 4)),
    case("Shape", f(2, 3, 4), start=1, end=-1, note="part"),
    case("Size", f(2, 3, 4)),
    case("EyeLike", f(3, 4), k=1),
    case("Range", np.int64(2), np.int64(11), np.int64(3), constants=[0, 1, 2]),
    case("ConstantOfShape", i(2, 3), constants=[0]),
]  # fmt: skip

_MODES = ["half_pixel", "asymmetric", "pytorch_half_pixel"]
_NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
FACTORS = np.asarray([1, 1, 1.6, 0.7], np.float32)
RESIZES = [
    *(case("Resize", f(1, 2, 5, 7), None, FACTORS, constants=[2], mode=mode, note=f"{mode} {c}",
           coordinate_transformation_mode=c) for mode in ("linear", "cubic", "nearest")
      for c in _MODES),
    *(case("Resize", f(1, 2, 5, 6), None, np.asarray([1, 1, 1.6, 0.5], np.float32), constants=[2],
           mode=mode, note=f"{mode} align_corners", coordinate_transformation_mode="align_corners")
      for mode in ("linear", "cubic", "nearest")),
    *(case("Resize", f(1, 2, 5, 7), None, None, i(1, 2, 8, 3), constants=[3], mode="nearest",
           nearest_mode=n, note=n) for n in _NEAREST),
    case("Resize", f(1, 2, 5, 7), None, None, i(1, 2, 10, 14), constants=[3], mode="linear",
         note="twice"),
    case("Resize", f(1, 2, 4, 4), None, np.asarray([1, 1, 2, 2], np.float32), constants=[2],
         mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
         note="nearest twice"),
    case("Resize", f(1, 2, 3, 4, 5), None, None, i(1, 2, 6, 8, 10), constants=[3], mode="linear",
         note="three axes"),
    case("Resize", f(1, 2, 5), None, None, i(1, 2, 8), constants=[3], mode="linear",
         note="one axis"),
    case("Resize", f(1, 2, 5, 7), None, None, i(1, 2, 1, 3), constants=[3], mode="linear",
         coordinate_transformation_mode="pytorch_half_pixel", note="one row"),
    case("Resize", f(1, 2, 9, 8), None, None, i(1, 2, 4, 5), constants=[3], mode="linear",
         antialias=1, note="antialias"),
    case("Resize", f(1, 2, 9, 8), None, None, i(1, 2, 4, 5), constants=[3], mode="cubic",
         exclude_outside=1, note="exclude outside"),
    case("Resize", f(1, 2, 5, 6), np.asarray([1, 1, 2, 2], np.float32), constants=[1], version=10,
         mode="nearest", note="version 10"),
    case("Upsample", f(1, 2, 5, 6), np.asarray([1, 1, 2, 3], np.float32), constants=[1], version=9),
    case("Upsample", f(1, 2, 5, 6), np.asarray([1, 1, 2, 2], np.float32), constants=[1], version=9,
         mode="linear", note="linear"),
]  # fmt: skip

FUSED = [
    case("BiasGelu", f(3, 5), f(5), domain=MICROSOFT),
    case("FastGelu", f(3, 5), domain=MICROSOFT),
    case("FastGelu", f(3, 5), f(5), domain=MICROSOFT, note="bias"),
    case("FusedMatMul", f(2, 5, 3), f(2, 4, 5), domain=MICROSOFT, transA=1, transB=1, alpha=0.5),
    *(case("FusedConv", f(1, 4, 6, 5), f(3, 4, 3, 3), f(3), constants=[1, 2], domain=MICROSOFT,
           activation=name, activation_params=numbers, note=name)
      for name, numbers in (("Clip", [-0.5, 0.7]), ("LeakyRelu", [0.2]))),
    case("FusedConv", f(1, 4, 6, 5), f(3, 4, 3, 3), f(3), f(1, 3, 4, 3), constants=[1, 2],
         domain=MICROSOFT, activation="Relu", kernel_shape=[3, 3], note="a sum"),
    case("SkipLayerNormalization", f(2, 3, 4), f(2, 3, 4), f(4), f(4), f(4),
         constants=[2, 3, 4], domain=MICROSOFT),
]  # fmt: skip


def grids(*shape: int) -> Array:
    """Points inside and outside an image, some at its edge and some at the middle of pixels."""
    points = RANDOM.uniform(-1.6, 1.6, shape).astype(np.float32)
    points.reshape(-1)[:4] = [-1, 1, 0, 1]
    return points


def boxes(count: int, size: float) -> Array:
    corners = RANDOM.uniform(0, size, (count, 2, 2))
    return np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)


ORDERED = [
    case("TopK", f(3, 9), i(4), constants=[1], outputs=2),
    case("TopK", f(3, 9, 2), i(9), constants=[1], outputs=2, axis=1, largest=0, note="smallest"),
    case("TopK", whole(0, 4, 3, 20), i(20), constants=[1], outputs=2, note="equal elements"),
    case("ScatterElements", f(3, 4), whole(-3, 3, 3, 2), f(3, 2), reduction="add", note="add"),
    case("ScatterElements", f(3, 4), whole(-4, 4, 3, 2), f(3, 2), axis=1, reduction="max",
         note="max"),
    case("ScatterElements", f(3, 4), i(2, 0, 1, 1).reshape(1, 4), f(1, 4), note="computed"),
    case("ScatterND", f(4, 3), whole(0, 4, 5, 1), f(5, 3), reduction="mul", note="mul"),
    case("ScatterND", f(4, 3, 2), whole(-3, 3, 2, 5, 2), f(2, 5, 2), reduction="add", note="add"),
    case("ReverseSequence", f(5, 3, 2), i(2, 5, 0)),
    case("ReverseSequence", f(3, 5, 2), i(2, 5, 1), batch_axis=0, time_axis=1, note="batch first"),
    case("Hardmax", f(3, 5)),
    case("Hardmax", f(2, 3, 5), version=11, axis=1, note="version 11"),
    case("Compress", f(3, 5), np.asarray([True, False, True]), constants=[1], axis=0),
    case("BitShift", whole(0, 200, 4, 5, dtype="uint8"), whole(0, 8, 4, 5, dtype="uint8"),
         direction="RIGHT"),
    case("BitShift", whole(0, 2**40, 4, 5, dtype="uint64"), whole(0, 60, 5, dtype="uint64"),
         direction="LEFT"),
    case("BitwiseAnd", whole(-99, 99, 4, 5), whole(-99, 99, 5)),
    case("BitwiseOr", whole(0, 99, 4, 5, dtype="uint8"), whole(0, 99, 5, dtype="uint8")),
    case("BitwiseXor", whole(-99, 99, 4, 5, dtype="int16"), whole(-9, 9, 5, dtype="int16")),
    case("BitwiseNot", whole(-99, 99, 4, 5, dtype="int32")),
    *(case(name, RANDOM.uniform(-1, 1, (4, 9)).astype(np.float32))
      for name in ("Asin", "Acos", "Atan", "Atanh", "Asinh", "Sinh", "Cosh")),
    case("Acosh", positive(4, 9) + 1),
]  # fmt: skip
SAMPLED = [
    *(case("GridSample", f(2, 3, 5, 7), grids(2, 4, 6, 2), mode=mode, padding_mode=padding,
           align_corners=aligned, note=f"{mode} {padding} {aligned}")
      for mode in ("linear", "nearest", "cubic") for padding in ("zeros", "border", "reflection")
      for aligned in (0, 1)),
    case("GridSample", f(1, 2, 3, 4, 5), grids(1, 2, 3, 4, 3), note="a volume"),
    *(case("RoiAlign", f(2, 3, 9, 8), boxes(4, 15), i(0, 1, 1, 0), output_height=3, output_width=2,
           sampling_ratio=2, spatial_scale=0.5, mode=mode, coordinate_transformation_mode=shift,
           note=f"{mode} {shift}")
      for mode in ("avg", "max") for shift in ("half_pixel", "output_half_pixel")),
    case("MaxPool", f(2, 3, 7, 8), outputs=2, kernel_shape=[3, 2], strides=[2, 2],
         pads=[1, 0, 1, 1], note="indices"),
    case("MaxUnpool", f(1, 2, 2, 2), i(0, 3, 9, 15, 17, 20, 26, 30).reshape(1, 2, 2, 2),
         kernel_shape=[2, 2], strides=[2, 2]),
    case("LpPool", f(1, 3, 7, 8), kernel_shape=[3, 2], strides=[2, 2], p=2),
    case("LpPool", f(1, 3, 7, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 1], p=3, note="p"),
    case("GlobalLpPool", f(2, 3, 4, 5), p=1),
    case("Col2Im", f(2, 3 * 6, 12), i(5, 5), i(2, 3), constants=[1, 2]),
    case("DFT", f(2, 12, 3, 1), axis=1, version=17),
    case("DFT", f(2, 9, 1), onesided=1, version=17, note="one side"),
    case("DFT", f(2, 150, 2), inverse=1, version=17, note="two factors"),
    case("DFT", f(1, 1024, 2) / 32, version=17, note="1024"),
    case("STFT", f(2, 64, 1), np.int64(8), None, np.int64(16), constants=[1, 3], version=17),
    case("STFT", f(2, 64, 1), i(8), positive(16), constants=[1, 2], onesided=0, version=17,
         note="window"),
    case("MelWeightMatrix", np.int64(8), np.int64(32), np.int64(8000), np.float32(0),
         np.float32(4000), constants=[0, 1, 2, 3, 4], version=17),
]  # fmt: skip
CONTRIBUTED = [
    case("NhwcMaxPool", whole(0, 99, 1, 6, 7, 4, dtype="uint8"), domain=MICROSOFT,
         kernel_shape=[2, 3], strides=[2, 1]),
    case("FusedGemm", f(3, 5), f(5, 4), f(4), constants=[1, 2], domain=MICROSOFT,
         activation="LeakyRelu", activation_alpha=0.2),
    case("FusedMatMul", f(4, 2, 3), f(2, 3, 5), domain=MICROSOFT, transBatchA=1, note="batches"),
    case("TransposeMatMul", f(2, 5, 3), f(2, 5, 4), domain=MICROSOFT, transA=1),
    case("SkipSimplifiedLayerNormalization", f(2, 3, 8), f(2, 3, 8), f(8), f(8), outputs=1,
         domain=MICROSOFT),
    case("EmbedLayerNormalization", whole(0, 9, 2, 3, dtype="int32"),
         whole(0, 2, 2, 3, dtype="int32"), f(9, 4), f(5, 4), f(2, 4), f(4), f(4),
         whole(0, 2, 2, 3, dtype="int32"), outputs=2, domain=MICROSOFT),
    case("CDist", f(4, 6), f(5, 6), domain=MICROSOFT, metric="euclidean"),
    *(case("RotaryEmbedding", f(2, 5, 24), whole(0, 9, 2, 5), f(9, 4), f(9, 4), constants=[2, 3],
           domain=MICROSOFT, interleaved=pairs, note=f"{pairs}") for pairs in (0, 1)),
    case("RotaryEmbedding", f(2, 3, 5, 8), i(2), f(9, 4), f(9, 4), constants=[2, 3],
         domain=MICROSOFT, note="offset"),
    case("RotaryEmbedding", f(2, 5, 24), whole(0, 9, 2, 5), f(9, 2), f(9, 2), constants=[2, 3],
         domain=MICROSOFT, rotary_embedding_dim=4, num_heads=3, note="a part"),
    case("ExpandDims", f(2, 3), np.int32(1), constants=[1], domain=MICROSOFT),
    case("UnfoldTensor", f(2, 9), domain=MICROSOFT, dim=-1, size=3, step=2),
    case("Trilu", f(4, 5), np.int64(1), constants=[1], domain=MICROSOFT, note="contributed"),
]  # fmt: skip

CASES = [
    *ORDERED, *SAMPLED, *CONTRIBUTED,
    *CONVOLUTIONS, *MATRICES, *POOLS, *ELEMENTWISE, *REDUCTIONS, *MOVES, *RESIZES, *FUSED,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_computes_what_onnx_runtime_does(case: Case, tmp_path: Path) -> None:
    model = single(
        case.operator,
        case.inputs,
        case.constants,
        outputs=case.outputs,
        version=case.version,
        domain=case.domain,
        **case.attributes,
    )
    given = {
        f"x{k}": array
        for k, array in enumerate(case.inputs)
        if array is not None and k not in case.constants
    }
    check(model, given, tmp_path)
