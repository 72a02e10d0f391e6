"""Saved kernels of chains: inputs with which they are checked, and what they have to store."""

from __future__ import annotations

import numpy as np

from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype
from cpembed.targets.cuda.build import Tensor
from cpembed.targets.cuda.cases import Case, Drawing
from cpembed.targets.cuda.chains.build import ChainKernels
from cpembed.targets.cuda.chains.emit import parameters_of
from cpembed.targets.cuda.saving import SavedKernel
from cpembed.workloads.chains import (
    LENGTHS,
    MASK,
    SCALE,
    TOLERANCES,
    Pointwise,
    ProductChain,
)


def saved_chain(kernels: ChainKernels, name: str) -> SavedKernel:
    """Return the kernels of a chain with everything that a folder says of them.

    Parameters
    ----------
    kernels : ChainKernels
        The kernels.
    name : str
        Identifier that names of kernels and files begin with.
    """
    plan, chain = kernels.plan, kernels.plan.chain
    packed = {factor.role for factor in plan.factors if factor.operand.needs_packing}
    inputs: list[Tensor] = []
    for parameter, tensor in parameters_of(plan).items():
        shape, dtype = chain.inputs[tensor]
        buffer = f"{parameter}_original" if parameter in packed else parameter
        inputs.append(Tensor(buffer, tensor, tuple(shape), dtype))
    output = Tensor(
        "C",
        chain.second.output.name,
        tuple(plan.second.output.layout.original_shape),
        plan.second.output_dtype,
    )
    # Factors of attention are all activations; those of other chains are weights but for the first.
    weights = {"B", "B2"} & packed if isinstance(chain.function, Pointwise) else set[str]()
    return SavedKernel(
        name=name,
        text=kernels.text,
        inputs=inputs,
        output=output,
        prepares=frozenset(f"pack_{role}_kernel" for role in weights),
        cases=[_case(chain, output)],
        macs=chain.macs,
        about={"workload": str(chain), "schedule": str(plan.schedule)},
    )


def _case(chain: ProductChain, output: Tensor) -> Case:
    """Return inputs and the result, whose tolerance is a part of its largest element."""
    drawings = {
        name: _drawing(chain, name, dtype, seed)
        for seed, (name, (_, dtype)) in enumerate(chain.inputs.items(), start=1)
    }
    shapes = {name: tuple(shape) for name, (shape, _) in chain.inputs.items()}
    arrays = {name: drawing.array(shapes[name]) for name, drawing in drawings.items()}
    expected = chain.evaluate(arrays)
    largest = float(np.abs(expected).max())
    absolute = TOLERANCES.get(chain.factors, 0.0) * largest
    result = expected.astype(numpy_dtype(output.dtype)).reshape(output.shape)
    return Case("numbers", drawings, shapes, result, absolute=absolute)


def _drawing(chain: ProductChain, name: str, dtype: str, seed: int) -> Drawing:
    values: tuple[float, ...] = (-1.0, -0.5, 0.5, 1.0)
    if name == LENGTHS:
        values = tuple(float(n) for n in range(chain.first.extents["k"] + 1))
    elif name == MASK:
        values = (0.0, 0.5, -1.0, -np.inf)
    elif name == SCALE:
        values = (2.0**-7, 2.0**-8)
    elif is_integer(dtype):
        low, high = (-100, 100) if dtype == "int32" else dtype_info(dtype).integer_range
        values = tuple(float(n) for n in range(low, high + 1))
    return Drawing(seed, dtype, values)
