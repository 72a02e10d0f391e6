"""Saved kernels of chains: their tensors, and inputs with which a GPU's results are checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype
from cpembed.targets.cuda.build import Tensor
from cpembed.targets.cuda.chains.apart import ApartPlan
from cpembed.targets.cuda.chains.build import ChainKernels, operands_of, prepares_of
from cpembed.targets.cuda.compiling import architectures_of
from cpembed.targets.cuda.saving.cases import Case, Drawing, Expected
from cpembed.targets.cuda.saving.folder import SavedKernel
from cpembed.workloads.chains import (
    LENGTHS,
    MASK,
    MIDDLE,
    SCALE,
    TOLERANCES,
    ProductChain,
    RowSoftmax,
    definition,
)


def saved_chain(kernels: ChainKernels, spec: HardwareSpec, name: str) -> SavedKernel:
    """Return the kernels of a chain with everything that a folder says of them.

    Parameters
    ----------
    kernels : ChainKernels
    spec : HardwareSpec
    name : str
        Identifier with which the names of kernels and files begin.
    """
    plan, chain = kernels.plan, kernels.plan.chain
    bulk = isinstance(plan, ApartPlan) and plan.copies_in_bulk
    output = chain.second.output
    pair = plan.pair
    return SavedKernel(
        name=name,
        text=replace(
            kernels.text, architectures=architectures_of(plan.second.instruction, bulk=bulk)
        ),
        inputs=operands_of(plan),
        outputs=[Tensor("C", output.name, output.shape, chain.output)],
        prepares=prepares_of(plan),
        cases=chain_cases(chain),
        macs=chain.macs,
        about={
            "workload": str(chain),
            "sizes": dict(chain.first.extents) | dict(chain.second.extents),
            "target": spec.name,
            "machine": next(iter(spec.machines), None),
            "embedding": [side.ranked.embedding.to_json() for side in (pair.first, pair.second)],
            "schedule": plan.schedule_text,
        },
    )


def chain_cases(chain: ProductChain) -> list[Case]:
    """Return inputs of a chain with their results, which floats may miss by their tolerance.

    A softmax has a second case with scores of all sizes: powers overflow unless the largest score
    is subtracted, and sums are scaled anew where a larger one follows.
    """
    drawings = {
        name: _drawing(chain, number + 1, name, dtype)
        for number, (name, (_, dtype)) in enumerate(chain.inputs.items())
    }
    cases = [_case("numbers", chain, drawings)]
    if isinstance(chain.function, RowSoftmax):
        first = chain.first.inputs[0].name
        large = replace(drawings[first], values=_LARGE)
        cases.append(_case("large", chain, drawings | {first: large}))
    return cases


_LARGE = (-32.0, -1.0, 1.0, 32.0)
"""Numbers of the queries for which some scores exceed what a power can hold, and others do not."""


def _case(name: str, chain: ProductChain, drawings: dict[str, Drawing]) -> Case:
    """Return a case with the result of the definition."""
    shapes = {name: shape for name, (shape, _) in chain.inputs.items()}
    arrays = {name: drawing.array(shapes[name]) for name, drawing in drawings.items()}
    expected = definition(chain, arrays)
    tolerance = TOLERANCES.get(chain.factors, 0.0) * expected.largest
    result = expected.result.astype(numpy_dtype(chain.output))
    results = {chain.second.output.name: Expected(result, absolute=tolerance)}
    return Case(name, drawings, shapes, results)


def _drawing(chain: ProductChain, seed: int, name: str, dtype: str) -> Drawing:
    """Return the numbers of an input."""
    values: tuple[float, ...] = (-2.0, -1.0, 1.0, 2.0)
    if name == LENGTHS:
        values = tuple(map(float, range(chain.first.extents[chain.columns] + 1)))
    elif name == MASK and dtype == "uint8":
        values = (0.0, 1.0, 1.0, 1.0)
    elif name == MASK:
        values = (-np.inf, -1.0, 0.0, 0.0, 0.5)
    elif name == f"{MIDDLE}{SCALE}":
        # Powers of two, so that products are exact, which bring sums to the range of bytes.
        values = (2.0**-9, 2.0**-8, 2.0**-7)
    elif dtype == chain.factors and is_integer(dtype):
        low, high = dtype_info(dtype).integer_range
        values = tuple(map(float, range(low, high + 1)))
    return Drawing(seed, dtype, values)
