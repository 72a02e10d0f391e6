"""Fuse elementwise operators after products of floats, activations above all, into epilogues.

They come as one operator each, merged by :mod:`cpembed.graph.passes.elementwise_fusion`, with the
quantization that ends them. Whether a kernel pays is decided when kernels are chosen
(:mod:`cpembed.network.plan`), which splits off the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import (
    PROCESSOR_CHAIN_TYPES,
    Chain,
    Epilogue,
    Residual,
    channel_numbers,
)
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Elementwise, Input, Number, Product, Scalar
from cpembed.graph.passes.elementwise_fusion import Form, elementwise_form
from cpembed.graph.passes.epilogue_matching import result_vector, without_constant_axes
from cpembed.graph.passes.rewriting import Rewriting, only_reader
from cpembed.ir.scalars import apply, substituted

# Maximum number of vectors per channel: each is one more pointer in the kernel's loop.
_MAX_VECTORS = 6


def fuse_chains(graph: Graph, types: Collection[str] = PROCESSOR_CHAIN_TYPES) -> Graph:
    """Fuse the elementwise operator that alone reads a product's floats into the product.

    Its other operands are constants with an element per channel, and at most one tensor of the
    result's shape. Results are equal bit for bit. Of two products that one operator reads, the
    later one takes it.

    Parameters
    ----------
    graph : Graph
    types : collection of str, default :data:`PROCESSOR_CHAIN_TYPES`
        Element types that kernels of chains read and store.
    """
    rewriting = Rewriting(graph)
    for operator in reversed(graph.operators):
        if isinstance(operator.kind, Product) and operator.kind.dtype == "float32":
            _fuse(rewriting, operator, operator.kind, types)
    return rewriting.graph()


def _fuse(
    rewriting: Rewriting, operator: Operator, product: Product, types: Collection[str]
) -> None:
    graph, epilogue = rewriting.source, product.epilogue or Epilogue("float32")
    reader = only_reader(graph, operator.output)
    if reader is None or rewriting.is_replaced(reader) or epilogue.chain is not None:
        return
    form = elementwise_form(graph, reader)
    if form is None or form.computing != "float32" or form.dtype not in types:
        return
    if graph.types[reader.output].shape != product.shape:
        return
    operands = _operands(graph, operator.output, product, form.tensors, types)
    if operands is None:
        return
    residual = epilogue.residual
    if residual is not None and operands.addend is not None:
        return
    count = len(product.vectors)
    inputs = list(operator.inputs[: 2 + count])
    for number, vector in enumerate(operands.vectors):
        inputs.append(rewriting.constant(f"{reader.name} vector {number}", vector))
    addend, dtype = operands.addend, "float32"
    if residual is not None:
        addend = operator.inputs[2 + count]
        dtype = residual.dtype
    elif addend is not None:
        dtype = graph.types[addend].dtype
    inputs += [] if addend is None else [addend]
    fused = replace(
        epilogue,
        dtype=form.dtype,
        residual=None if addend is None else Residual(dtype),
        chain=Chain(_expression(form, operands, residual), len(operands.vectors)),
    )
    kind = product.with_epilogue(fused)
    rewriting.replace(
        reader, replace(operator, kind=kind, inputs=tuple(inputs), outputs=reader.outputs)
    )


@dataclass(frozen=True)
class _Operands:
    """Operands of a chain besides the product's result.

    Attributes
    ----------
    roles : tuple of int, float or None
        For each tensor of the expression, the number of its vector, its only element as a float,
        or None for the product's result; -1 for the addend.
    vectors : tuple of ndarray
        Vectors per channel.
    addend : str or None
        Tensor of the result's shape.
    """

    roles: tuple[int | float | None, ...]
    vectors: tuple[Array, ...]
    addend: str | None


def _operands(
    graph: Graph, result: str, product: Product, tensors: Sequence[str], types: Collection[str]
) -> _Operands | None:
    """Return the operands of an expression of tensors, or None if an epilogue cannot read one."""
    roles: list[int | float | None] = []
    vectors: list[Array] = []
    addend: str | None = None
    for name in tensors:
        kind, array = graph.types[name], graph.constants.get(name)
        if name == result:
            roles.append(None)
        elif array is not None:
            if array.dtype == np.bool_:
                return None
            if array.size == 1:
                roles.append(float(array.astype(np.float32).reshape(-1)[0]))
                continue
            vector = result_vector(product, product.shape, array)
            if vector is None or len(vectors) == _MAX_VECTORS:
                return None
            roles.append(len(vectors))
            vectors.append(vector.astype(np.float32))
        else:
            fits = kind.shape == product.shape and kind.dtype in types
            if not fits or addend not in (None, name):
                return None
            roles.append(-1)
            addend = name
    return _Operands(tuple(roles), tuple(vectors), addend)


def _expression(form: Form, operands: _Operands, residual: Residual | None) -> Scalar:
    """Return the expression of a form over the inputs of a chain."""
    has_addend = residual is not None or operands.addend is not None
    value: Scalar = Input(0)
    if residual is not None:
        value = apply("add", Input(0), Input(1))
        value = apply("max", value, 0.0) if residual.relu else value

    def change(node: Input) -> Scalar:
        role = operands.roles[node.number]
        if role is None:
            return value
        if isinstance(role, float):
            return Number(role)
        return Input(1 if role < 0 else 1 + has_addend + role)

    return substituted(form.expression, change)


def split_chain(
    graph: Graph, operator: Operator, product: Product, between: str
) -> tuple[tuple[Operator, Operator], dict[str, Array]]:
    """Return a product with a chain as a product of floats and an elementwise operator.

    Parameters
    ----------
    graph : Graph
    operator, product : Operator, Product
        Operator of the product, whose epilogue has a chain.
    between : str
        Name of the tensor of floats.

    Returns
    -------
    tuple
        The two operators, and constants that they read and the graph lacks.
    """
    epilogue = product.epilogue
    assert epilogue is not None
    assert epilogue.chain is not None
    plain = replace(epilogue, dtype="float32", residual=None, chain=None, placement=None)
    kind = product.with_epilogue(None if plain == Epilogue("float32") else plain)
    first, last = 2 + len(kind.vectors), 2 + len(product.vectors)
    constants: dict[str, Array] = {}
    if epilogue.chain.vectors:
        # The channel of each element of the result, in a shape that broadcasts to it.
        numbers = channel_numbers(product.computation).reshape(product.shape)
        numbers = without_constant_axes(numbers)
        for name in operator.inputs[first:last]:
            constants[f"{between}: {name}"] = graph.constants[name].reshape(-1)[numbers]
    elementwise = Elementwise(epilogue.chain.expression, epilogue.dtype, "float32")
    reads = (between, *operator.inputs[last:], *constants)
    before = replace(operator, kind=kind, inputs=operator.inputs[:first], outputs=(between,))
    after = Operator(f"{operator.name} chain", elementwise, reads, operator.outputs)
    return (before, after), constants
