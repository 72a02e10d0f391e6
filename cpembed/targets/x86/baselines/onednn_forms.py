"""Calls of PyTorch that end in one oneDNN primitive, weights packed ahead.

Integer sums come back as float32 at scale 1 (exact up to 2^24, rounded once beyond), or saturated
to uint8, which is less to store and sometimes faster; products of floats come back in their type.
PyTorch offers no int32 result except that of ``torch._int_mm``. Where the subject says what is
stored, its bias, scale and activation are the primitive's own.
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
from cpembed.targets.x86.baselines.problems import BatchedProduct, Convolution, Product, problem_of

_INTEGER = ("uint8", "int8", "int32")
_SIGNED = ("int8", "int8", "int32")
_BFLOAT = ("bfloat16", "bfloat16", "float32")
_FLOAT = ("float32", "float32", "float32")

_PLAIN, _RELU = ("none", [], ""), ("relu", [], "")
"""The operation after the product."""

_STORED = ("float32", "bfloat16", "uint8", "int8")
"""What products of integers are stored as."""


@dataclass(frozen=True)
class Form:
    """``call`` runs it, ``result`` turns what it returned into the workload's output, ``weights``
    are the sizes of the weights as oneDNN's log has them.
    """

    words: str
    call: Callable[[], Any]
    result: Callable[[Any], NDArray[Any]]
    weights: str


def forms_of(torch: ModuleType, subject: Subject, inputs: Arrays) -> Sequence[Form] | NotCovered:
    """Every call that computes the workload. Calls of the same words differ in how the weights are
    packed: for images of this shape, or of any.
    """
    problem = problem_of(subject)
    if isinstance(problem, NotCovered):
        return NotCovered(f"oneDNN through torch: {problem.reason}")
    types = tuple(dtype_info(operand.dtype).in_memory for operand in subject.workload.operands)
    make = {
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
    if make is None:
        words = f"{subject.operator} of {types[0]} and {types[1]} into {types[2]}"
        return NotCovered(f"oneDNN through torch has no {words}")
    # Tensors made here carry no history for gradients, so that calls do not look for any.
    with torch.inference_mode():
        try:
            return make(torch, problem, inputs, subject.stored)
        except RuntimeError as error:
            # PyTorch packs weights only for processors that oneDNN has a kernel for.
            return NotCovered(f"oneDNN through torch: {str(error).splitlines()[0]}")


@dataclass(frozen=True)
class _After:
    """What happens to integer sums: scales and zero points by filter, a bias that is added to what
    was scaled, the operation, and the types of results, by name.
    """

    scales: Any
    zeros: Any
    bias: Any
    operation: tuple[str, list[Any], str]
    results: dict[str, Any]

    @classmethod
    def of(
        cls, torch: ModuleType, filters: int, inputs: Arrays, stored: Epilogue | None
    ) -> _After | NotCovered:
        names = ("float32", "uint8") if stored is None else (stored.dtype,)
        if not set(names) <= set(_STORED):
            return NotCovered(
                f"oneDNN through torch stores {', '.join(_STORED)} of such products, not {names[0]}"
            )
        scale = inputs[SCALE].reshape(-1) if SCALE in inputs else np.ones(filters, np.float32)
        bias = None
        if BIAS in inputs:
            bias = torch.from_numpy(inputs[BIAS].reshape(-1).astype(np.float32) * scale)
        # Saturation of uint8 is an activation already.
        activated = stored is not None and stored.relu and stored.dtype != "uint8"
        return cls(
            torch.from_numpy(scale),
            torch.zeros(filters, dtype=torch.int8),
            bias,
            _RELU if activated else _PLAIN,
            {name: getattr(torch, name) for name in names},
        )


def _float_operation(
    dtype: str, stored: Epilogue | None
) -> tuple[str, list[Any], str] | NotCovered:
    """Of factors of a type."""
    if stored is None:
        return _PLAIN
    if stored.dtype != dtype or stored.vectors:
        return NotCovered(
            f"oneDNN through torch stores products of {dtype} as {dtype}, and is compared without "
            "a float32 bias or scale"
        )
    return _RELU if stored.relu else _PLAIN


def _integer_convolution(
    torch: ModuleType, problem: Convolution, inputs: Arrays, stored: Epilogue | None
) -> list[Form] | NotCovered:
    image = _image(torch, problem, inputs)
    weights = torch.from_numpy(problem.weights(inputs))
    geometry = (*map(list, (problem.stride, problem.pad, problem.dilation)), problem.groups)
    after = _After.of(torch, weights.shape[0], inputs, stored)
    if isinstance(after, NotCovered):
        return after
    if len(problem.image) == 3 and after.operation != _PLAIN:
        return NotCovered("torch has no activation after a quantized convolution of planes")
    call = torch.ops.onednn.qconv_pointwise if len(problem.image) == 3 else None
    call = call or torch.ops.onednn.qconv2d_pointwise

    def form(shape: list[int] | None, result: Any, name: str) -> Form:
        packed = torch.ops.onednn.qconv_prepack(weights, after.scales, 1.0, 0, *geometry, shape)

        def run() -> Any:
            return call(
                *(image, 1.0, 0),
                *(packed, after.scales, after.zeros, after.bias),
                *geometry,
                *(1.0, 0, result),
                *after.operation,
            )

        return _form(torch, problem, f"{_name(call)}, {name} result", run)

    return [
        form(shape, result, name)
        for name, result in after.results.items()
        for shape in (list(image.shape), None)
    ]


def _float_convolution(
    torch: ModuleType, problem: Convolution, inputs: Arrays, stored: Epilogue | None
) -> list[Form] | NotCovered:
    dtype = inputs["W"].dtype.name
    operation = _float_operation(dtype, stored)
    if isinstance(operation, NotCovered):
        return operation
    image = _image(torch, problem, inputs)
    weights = _tensor(torch, problem.weights(inputs)).to_mkldnn()
    pad, stride, dilation = map(list, (problem.pad, problem.stride, problem.dilation))
    nn = torch._C._nn
    if len(problem.image) == 3:
        pack = nn.mkldnn_reorder_conv3d_weight
    else:
        pack = nn.mkldnn_reorder_conv2d_weight
    packed = pack(weights, pad, stride, dilation, problem.groups, list(image.shape))
    call = torch.ops.mkldnn._convolution_pointwise

    def run() -> Any:
        return call(image, packed, None, pad, stride, dilation, problem.groups, *operation)

    return [_form(torch, problem, f"{_name(call)}, {dtype} result", run)]


def _integer_product(
    torch: ModuleType, problem: Product, inputs: Arrays, stored: Epilogue | None
) -> list[Form] | NotCovered:
    left = torch.from_numpy(problem.left(inputs))
    right = torch.from_numpy(problem.right(inputs))
    columns = right.T.contiguous()

    form = partial(_form, torch, problem)
    sums = [
        form("torch._int_mm, int32 result", lambda: torch._int_mm(left, right)),
        # The same matrix, its columns contiguous.
        form("torch._int_mm of columns, int32 result", lambda: torch._int_mm(left, columns.T)),
    ]
    if stored == Epilogue("int32"):
        return sums
    after = _After.of(torch, problem.n, inputs, stored)
    if isinstance(after, NotCovered):
        return after
    linear = torch.ops.onednn.qlinear_pointwise

    def quantized(shape: list[int] | None, result: Any) -> Callable[[], Any]:
        packed = torch.ops.onednn.qlinear_prepack(columns, shape)
        weights = (packed, after.scales, after.zeros, after.bias)
        return lambda: linear(left, 1.0, 0, *weights, 1.0, 0, result, *after.operation)

    found = [
        form(f"{_name(linear)}, {name} result", quantized(shape, result))
        for name, result in after.results.items()
        for shape in (list(left.shape), None)
    ]
    return [*found, *sums] if stored is None else found


def _float_product(
    torch: ModuleType, problem: Product, inputs: Arrays, stored: Epilogue | None
) -> list[Form] | NotCovered:
    dtype = inputs["A"].dtype.name
    operation = _float_operation(dtype, stored)
    if isinstance(operation, NotCovered):
        return operation
    left = _tensor(torch, problem.left(inputs))
    right = _tensor(torch, problem.right(inputs))
    packed = torch.ops.mkldnn._reorder_linear_weight(right.T.contiguous(), problem.m)
    linear = torch.ops.mkldnn._linear_pointwise

    form = partial(_form, torch, problem)
    of_linear = form(
        f"{_name(linear)}, {dtype} result", lambda: linear(left, packed, None, *operation)
    )
    if operation != _PLAIN:
        return [of_linear]
    return [of_linear, form(f"torch.mm, {dtype} result", lambda: torch.mm(left, right))]


def _float_batch(
    torch: ModuleType, problem: BatchedProduct, inputs: Arrays, stored: Epilogue | None
) -> list[Form] | NotCovered:
    dtype = inputs["A"].dtype.name
    operation = _float_operation(dtype, stored)
    if isinstance(operation, NotCovered):
        return operation
    if operation != _PLAIN:
        return NotCovered("torch.bmm has no operation after the product")
    left, right = _tensor(torch, inputs["A"]), _tensor(torch, inputs["B"])
    left = left.transpose(1, 2) if problem.left_transposed else left
    right = right.transpose(1, 2) if problem.right_transposed else right
    return [_form(torch, problem, f"torch.bmm, {dtype} result", lambda: torch.bmm(left, right))]


def _form(
    torch: ModuleType,
    problem: Convolution | Product | BatchedProduct,
    words: str,
    call: Callable[[], Any],
) -> Form:
    return Form(words, call, lambda found: problem.result(_array(torch, found)), _sizes(problem))


def _image(torch: ModuleType, problem: Convolution, inputs: Arrays) -> Any:
    """``[n, c, *image]`` in oneDNN's favourite layout. Made from channels-last memory: where an
    extent is 1, a conversion by name may leave the other layout's strides.
    """
    last = _tensor(torch, problem.images(inputs))
    return last.permute(0, last.dim() - 1, *range(1, last.dim() - 1))


def _tensor(torch: ModuleType, array: NDArray[Any]) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(torch: ModuleType, tensor: Any) -> NDArray[Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _name(operation: Any) -> str:
    """``onednn.qconv2d_pointwise``."""
    return str(operation).replace("::", ".")


def _sizes(problem: Convolution | Product | BatchedProduct) -> str:
    """Of the weights as oneDNN's log writes them; none of a batch, which packs none."""
    if isinstance(problem, BatchedProduct):
        return ""
    if isinstance(problem, Product):
        return f"{problem.k}x{problem.n}"
    groups = [problem.groups] if problem.groups > 1 else []
    sizes = [*groups, problem.filters, problem.channels, *problem.window]
    return "x".join(map(str, sizes))
