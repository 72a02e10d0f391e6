"""Calls of PyTorch that end in one oneDNN primitive, with weights packed ahead.

Integer sums come back as float32 at scale 1 (exact up to 2^24, rounded once beyond), or saturated
to uint8, which is less to store and sometimes faster; products of floats come back in their type.
PyTorch offers no int32 result except that of ``torch._int_mm``. If the subject has an epilogue, its
bias, scale and activation are the primitive's own.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue
from cpembed.ir.dtypes import dtype_info
from cpembed.runtime.baselines import Arrays, NotCovered, Subject
from cpembed.targets.x86.baselines import BatchedProduct, Convolution, Problem, Product, problem_of

_INTEGER = ("uint8", "int8", "int32")
_SIGNED = ("int8", "int8", "int32")
_BFLOAT = ("bfloat16", "bfloat16", "float32")
_FLOAT = ("float32", "float32", "float32")

Activation = tuple[str, list[Any], str]
_NO_ACTIVATION: Activation = ("none", [], "")
_RELU: Activation = ("relu", [], "")

_INTEGER_OUTPUTS = ("float32", "bfloat16", "uint8", "int8")
"""Output types of integer products."""


@dataclass(frozen=True)
class Form:
    """Call of the library that computes a layer.

    ``result`` converts what ``call`` returns to the workload's output; ``weights`` are the sizes of
    the weights as in oneDNN's log.
    """

    name: str
    call: Callable[[], Any]
    result: Callable[[Any], NDArray[Any]]
    weights: str


def forms_of(torch: ModuleType, subject: Subject, inputs: Arrays) -> Sequence[Form] | NotCovered:
    """Return every call that computes a layer.

    Those of the same name differ in how weights are packed: for images of this shape, or of any.

    Parameters
    ----------
    torch : module
        PyTorch.
    subject : Subject
        Layer.
    inputs : mapping of str to ndarray
        Its inputs.
    """
    problem = problem_of(subject)
    if isinstance(problem, NotCovered):
        return NotCovered(f"oneDNN through torch: {problem.reason}")
    types = tuple(dtype_info(operand.dtype).in_memory for operand in subject.workload.operands)
    create = {
        (Convolution, _INTEGER): _integer_convolution,
        (Convolution, _BFLOAT): _float_convolution,
        (Convolution, _FLOAT): _float_convolution,
        (Product, _INTEGER): _integer_product,
        (Product, _SIGNED): _integer_product,
        (Product, _BFLOAT): _float_product,
        (Product, _FLOAT): _float_product,
        (BatchedProduct, _BFLOAT): _float_batch,
        (BatchedProduct, _FLOAT): _float_batch,
    }.get((type(problem), types))
    if create is None:
        layer = f"{subject.operator} of {types[0]} and {types[1]} into {types[2]}"
        return NotCovered(f"oneDNN through torch has no {layer}")
    # Tensors made in this mode carry no history of gradients, so that calls do not look for it.
    with torch.inference_mode():
        try:
            return create(torch, problem, inputs, subject.stored)
        except _NotOfferedError as error:
            return NotCovered(str(error))
        except RuntimeError as error:
            # PyTorch packs weights only for processors that oneDNN has a kernel for.
            return NotCovered(f"oneDNN through torch: {str(error).splitlines()[0]}")


class _NotOfferedError(Exception):
    """PyTorch has no operation with this output or activation."""


@dataclass(frozen=True, kw_only=True)
class _IntegerOutput:
    """Conversion of integer sums: ``activation(sum * scale + bias)``, by filter.

    ``zeros`` are the zero points of the weights, ``types`` the possible output types by name.
    """

    scales: Any
    zeros: Any
    bias: Any
    activation: Activation
    types: dict[str, Any]


def _integer_output(
    torch: ModuleType, filters: int, inputs: Arrays, stored: Epilogue | None
) -> _IntegerOutput:
    names = ("float32", "uint8") if stored is None else (stored.dtype,)
    if not set(names) <= set(_INTEGER_OUTPUTS):
        raise _NotOfferedError(
            f"oneDNN through torch stores {', '.join(_INTEGER_OUTPUTS)} of such products, not "
            f"{names[0]}"
        )
    scale = inputs[SCALE].reshape(-1) if SCALE in inputs else np.ones(filters, np.float32)
    bias = None
    if BIAS in inputs:
        # The primitive adds the bias after scaling; an epilogue adds it before.
        bias = torch.from_numpy(inputs[BIAS].reshape(-1).astype(np.float32) * scale)
    # Saturation to uint8 is a ReLU already.
    has_relu = stored is not None and stored.relu and stored.dtype != "uint8"
    return _IntegerOutput(
        scales=torch.from_numpy(scale),
        zeros=torch.zeros(filters, dtype=torch.int8),
        bias=bias,
        activation=_RELU if has_relu else _NO_ACTIVATION,
        types={name: getattr(torch, name) for name in names},
    )


def _float_activation(dtype: str, stored: Epilogue | None) -> Activation:
    if stored is None:
        return _NO_ACTIVATION
    if stored.dtype != dtype or stored.vectors:
        raise _NotOfferedError(
            f"oneDNN through torch stores products of {dtype} as {dtype}, and is compared without "
            "a float32 bias or scale"
        )
    return _RELU if stored.relu else _NO_ACTIVATION


def _integer_convolution(
    torch: ModuleType, problem: Convolution, inputs: Arrays, stored: Epilogue | None
) -> list[Form]:
    image = _image(torch, problem, inputs)
    weights = torch.from_numpy(problem.weights(inputs))
    geometry = (*map(list, (problem.stride, problem.pad, problem.dilation)), problem.groups)
    output = _integer_output(torch, weights.shape[0], inputs, stored)
    has_planes = len(problem.image) == 3
    if has_planes and output.activation != _NO_ACTIVATION:
        raise _NotOfferedError("torch has no activation after a quantized convolution of planes")
    operations = torch.ops.onednn
    operation = operations.qconv_pointwise if has_planes else operations.qconv2d_pointwise

    def form(shape: list[int] | None, dtype: Any, name: str) -> Form:
        packed = operations.qconv_prepack(weights, output.scales, 1.0, 0, *geometry, shape)

        def run() -> Any:
            return operation(
                *(image, 1.0, 0),
                *(packed, output.scales, output.zeros, output.bias),
                *geometry,
                *(1.0, 0, dtype),
                *output.activation,
            )

        return _form(torch, problem, f"{_name(operation)}, {name} result", run)

    return [
        form(shape, dtype, name)
        for name, dtype in output.types.items()
        for shape in (list(image.shape), None)
    ]


def _float_convolution(
    torch: ModuleType, problem: Convolution, inputs: Arrays, stored: Epilogue | None
) -> list[Form]:
    dtype = inputs["W"].dtype.name
    activation = _float_activation(dtype, stored)
    image = _image(torch, problem, inputs)
    weights = _tensor(torch, problem.weights(inputs)).to_mkldnn()
    pad, stride, dilation = map(list, (problem.pad, problem.stride, problem.dilation))
    pack = getattr(torch._C._nn, f"mkldnn_reorder_conv{len(problem.image)}d_weight")
    packed = pack(weights, pad, stride, dilation, problem.groups, list(image.shape))
    operation = torch.ops.mkldnn._convolution_pointwise
    geometry = (pad, stride, dilation, problem.groups)

    def run() -> Any:
        return operation(image, packed, None, *geometry, *activation)

    return [_form(torch, problem, f"{_name(operation)}, {dtype} result", run)]


def _integer_product(
    torch: ModuleType, problem: Product, inputs: Arrays, stored: Epilogue | None
) -> list[Form]:
    left = torch.from_numpy(problem.left(inputs))
    right = torch.from_numpy(problem.right(inputs))
    columns = right.T.contiguous()

    form = partial(_form, torch, problem)
    sums = [
        form("torch._int_mm, int32 result", lambda: torch._int_mm(left, right)),
        # The same matrix with contiguous columns.
        form("torch._int_mm of columns, int32 result", lambda: torch._int_mm(left, columns.T)),
    ]
    if stored == Epilogue("int32"):
        return sums
    output = _integer_output(torch, problem.n, inputs, stored)
    linear = torch.ops.onednn.qlinear_pointwise

    def quantized(shape: list[int] | None, dtype: Any) -> Callable[[], Any]:
        packed = torch.ops.onednn.qlinear_prepack(columns, shape)
        weights = (packed, output.scales, output.zeros, output.bias)
        return lambda: linear(left, 1.0, 0, *weights, 1.0, 0, dtype, *output.activation)

    forms = [
        form(f"{_name(linear)}, {name} result", quantized(shape, dtype))
        for name, dtype in output.types.items()
        for shape in (list(left.shape), None)
    ]
    return [*forms, *sums] if stored is None else forms


def _float_product(
    torch: ModuleType, problem: Product, inputs: Arrays, stored: Epilogue | None
) -> list[Form]:
    dtype = inputs["A"].dtype.name
    activation = _float_activation(dtype, stored)
    left = _tensor(torch, problem.left(inputs))
    right = _tensor(torch, problem.right(inputs))
    packed = torch.ops.mkldnn._reorder_linear_weight(right.T.contiguous(), problem.m)
    linear = torch.ops.mkldnn._linear_pointwise

    form = partial(_form, torch, problem)
    linear_form = form(
        f"{_name(linear)}, {dtype} result", lambda: linear(left, packed, None, *activation)
    )
    if activation != _NO_ACTIVATION:
        return [linear_form]
    return [linear_form, form(f"torch.mm, {dtype} result", lambda: torch.mm(left, right))]


def _float_batch(
    torch: ModuleType, problem: BatchedProduct, inputs: Arrays, stored: Epilogue | None
) -> list[Form]:
    dtype = inputs["A"].dtype.name
    activation = _float_activation(dtype, stored)
    if activation != _NO_ACTIVATION:
        raise _NotOfferedError("torch.bmm has no operation after the product")
    left, right = _tensor(torch, inputs["A"]), _tensor(torch, inputs["B"])
    left = left.transpose(1, 2) if problem.left_transposed else left
    right = right.transpose(1, 2) if problem.right_transposed else right
    return [_form(torch, problem, f"torch.bmm, {dtype} result", lambda: torch.bmm(left, right))]


def _form(torch: ModuleType, problem: Problem, name: str, call: Callable[[], Any]) -> Form:
    def result(tensor: Any) -> NDArray[Any]:
        # numpy has no bfloat16 that PyTorch knows: its bits are reinterpreted.
        if tensor.dtype == torch.bfloat16:
            bits = tensor.contiguous().view(torch.int16).numpy()
            return problem.result(bits.view(ml_dtypes.bfloat16))
        return problem.result(tensor.numpy())

    return Form(name, call, result, _weight_sizes(problem))


def _image(torch: ModuleType, problem: Convolution, inputs: Arrays) -> Any:
    """Return the image as ``[n, c, *image]``, channels last in memory, as oneDNN prefers it."""
    # From channels-last memory: where an extent is 1, a conversion by the format's name may keep
    # the strides of the other layout.
    last = _tensor(torch, problem.images(inputs))
    return last.permute(0, last.dim() - 1, *range(1, last.dim() - 1))


def _tensor(torch: ModuleType, array: NDArray[Any]) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _name(operation: Any) -> str:
    """Return a name such as ``onednn.qconv2d_pointwise``."""
    return str(operation).replace("::", ".")


def _weight_sizes(problem: Problem) -> str:
    """Return the weights' sizes as in oneDNN's log; empty for a batch, which packs none."""
    if isinstance(problem, BatchedProduct):
        return ""
    if isinstance(problem, Product):
        return f"{problem.k}x{problem.n}"
    groups = [problem.groups] if problem.groups > 1 else []
    sizes = [*groups, problem.filters, problem.channels, *problem.window]
    return "x".join(map(str, sizes))
