"""Functions of sums in chains of products as epilogues of kernels, and the other way round.

>>> from cpembed.workloads.chains import ACTIVATIONS
>>> pointwise_of(Epilogue("float16", bias=True, relu=True)).expression == ACTIVATIONS["relu"]
True
"""

from __future__ import annotations

from cpembed.codegen.epilogue import Chain, Epilogue, Residual
from cpembed.ir.scalars import Apply, Input, Number, Scalar, substituted
from cpembed.workloads.chains import ACTIVATIONS, SUM, Pointwise


def epilogue_of(function: Pointwise, dtype: str) -> Epilogue:
    """Return the epilogue that computes a function and stores elements of a type.

    Parameters
    ----------
    function : Pointwise
    dtype : str
        Element type of the output.
    """
    # Without other inputs, ReLU is a step that all kernels have.
    relu = function.expression == ACTIVATIONS["relu"] and not function.residual
    expression = SUM if relu else function.expression
    is_chain = expression != SUM or function.vectors or function.residual
    return Epilogue(
        dtype,
        scale=function.scale,
        bias=function.bias,
        relu=relu,
        residual=Residual(function.residual) if function.residual else None,
        chain=Chain(expression, function.vectors) if is_chain else None,
    )


def pointwise_of(epilogue: Epilogue | None) -> Pointwise | None:
    """Return an epilogue of floats as a function of sums; None if it is none of one element."""
    if epilogue is None:
        return Pointwise()
    residual, chain = epilogue.residual, epilogue.chain
    if epilogue.second or epilogue.placement or epilogue.is_integral or epilogue.is_requantized:
        return None
    if residual is not None and residual != Residual(residual.dtype, relu=residual.relu):
        return None
    value: Scalar = _relu(SUM) if epilogue.relu else SUM
    if chain is not None:
        expression = substituted(chain.expression, lambda n: n if n.number else value)
    elif residual is not None:
        total = Apply("add", (value, Input(1)))
        expression = _relu(total) if residual.relu else total
    else:
        expression = value
    return Pointwise(
        bias=epilogue.bias,
        scale=epilogue.scale,
        expression=expression,
        vectors=0 if chain is None else chain.vectors,
        residual="" if residual is None else residual.dtype,
    )


def _relu(value: Scalar) -> Scalar:
    return Apply("max", (value, Number(0.0)))
