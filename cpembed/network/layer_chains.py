"""Pairs of products in a network that runs product by product: perceptrons, conv and 1 x 1.

The second product multiplies what the first one stores, element by element or row by row, so that
a kernel can compute both without storing what is between them. Whether one does is decided by the
estimates of both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpembed.codegen.epilogue import channel_axes
from cpembed.codegen.pointwise import pointwise_of
from cpembed.errors import LoweringError
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Kind, Product, Reshape, TensorType
from cpembed.graph.kinds.product import with_operand
from cpembed.graph.passes.rewriting import only_reader
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import IndexExpr
from cpembed.network.layout import Layout
from cpembed.network.stepwise_layouts import StepLayouts
from cpembed.targets.chains import ChainCandidate
from cpembed.workloads.chains import END, FACTORS, MIDDLE, RESIDUAL, ProductChain


@dataclass(frozen=True)
class ProductPair(Kind):
    """Two products, the second of which multiplies the first one's result.

    The inputs are those of the first, and those of the second but for its first factor.
    """

    first: Product
    second: Product

    @property
    def _inputs_of_first(self) -> int:
        return 2 + len(self.first.vectors)

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        count = self._inputs_of_first
        return self.second.types((*self.first.types(inputs[:count]), *inputs[count:]))

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        count = self._inputs_of_first
        return self.second.evaluate((*self.first.evaluate(inputs[:count]), *inputs[count:]))

    def sums(self, inputs: Sequence[Array]) -> Array:
        """Return the sums of the second product, before its epilogue."""
        count = self._inputs_of_first
        (middle,) = self.first.evaluate(inputs[:count])
        return self.second.sums(middle, inputs[count])

    @property
    def factors(self) -> str:
        """Element type of the factors."""
        return self.first.computation.inputs[0].dtype

    @property
    def label(self) -> str:
        return f"{self.first.label}, {self.second.label}"


@dataclass(frozen=True)
class LayerPair:
    """Two operators of a graph that may be one kernel.

    Attributes
    ----------
    first, second : Operator
    kind : ProductPair
    chain : ProductChain
        Products on their tensors as they lie in memory.
    image, result : Layout
        Layouts of the first factor and of the result.
    """

    first: Operator
    second: Operator
    kind: ProductPair
    chain: ProductChain
    image: Layout
    result: Layout

    @property
    def operator(self) -> Operator:
        """Operator that computes both."""
        inputs = (*self.first.inputs, *self.second.inputs[1:])
        return Operator(self.second.name, self.kind, inputs, self.second.outputs)


def layer_pair(layouts: StepLayouts, first: Operator) -> LayerPair | str | None:
    """Return the pair of a product and what multiplies its result.

    Parameters
    ----------
    layouts : StepLayouts
        Layouts of the graph.
    first : Operator

    Returns
    -------
    LayerPair, str or None
        The reason if both cannot be one kernel, after a kind and a colon; None for operators whose
        result no product multiplies.
    """
    graph, kind = layouts.graph, first.kind
    if not isinstance(kind, Product) or not _is_short_float(kind):
        return None
    readers = [r for name in first.outputs for r in _readers(graph, name) if _multiplies(r)]
    if not readers:
        return None
    second = readers[0]
    assert isinstance(second.kind, Product)
    if len(first.outputs) > 1 or _only_product(graph, first.output) is not second:
        outside = any(name in graph.outputs for name in first.outputs)
        return "an output of the network" if outside else "several readers"
    reason = _refusal(kind, second.kind)
    if reason:
        return reason
    try:
        before, after = (layouts.product(o, k) for o, k in ((first, kind), (second, second.kind)))
        chain = _chain(before.computation, after.computation, kind, second.kind)
        if isinstance(graph.readers[first.output][0].kind, Reshape):
            layouts.require_row_major(first)
    except LoweringError as error:
        return str(error)
    pair = ProductPair(kind, second.kind)
    return LayerPair(first, second, pair, chain, before.first, after.output)


def _is_short_float(kind: Product) -> bool:
    types = {operand.dtype for operand in kind.computation.inputs}
    return len(types) == 1 and types <= {*FACTORS} and not any(map(is_integer, types))


def _readers(graph: Graph, tensor: str) -> list[Operator]:
    """Return the readers of a tensor, also of the same elements in another shape."""
    readers: list[Operator] = []
    for operator in graph.readers[tensor]:
        is_reshape = isinstance(operator.kind, Reshape)
        readers += _readers(graph, operator.output) if is_reshape else [operator]
    return readers


def _only_product(graph: Graph, tensor: str) -> Operator | None:
    """Return the only reader of a tensor, or of the same elements in another shape."""
    reader = only_reader(graph, tensor)
    while reader is not None and isinstance(reader.kind, Reshape):
        reader = only_reader(graph, reader.output)
    return reader


def _multiplies(reader: Operator) -> bool:
    return isinstance(reader.kind, Product) and _is_short_float(reader.kind)


def _refusal(first: Product, second: Product) -> str:
    """Return why two products are no chain, by themselves; empty if they may be one."""
    if any(first.zero_points) or any(second.zero_points):
        return "zero points"
    middle, factor = first.computation.output, second.computation.inputs[0]
    if first.dtype != factor.dtype:
        return f"the first stores {first.dtype}"
    if first.epilogue is not None and first.epilogue.residual is not None:
        return "the first adds a residual"
    if middle.elements != factor.elements:
        return "the result is another factor"
    indices = _without_windows_of_one(second.computation).access(factor.name).index
    if any(index.single_iterator is None for index in indices):
        return "windows of several rows"
    for product in (first, second):
        if len(channel_axes(product.computation)) != 1:
            return "columns of several axes"
        if product.epilogue is not None and product.epilogue.second is not None:
            return "a second result"
        if pointwise_of(product.epilogue) is None:
            return "no epilogue of a chain"
    return ""


def _chain(
    before: Computation, after: Computation, first: Product, second: Product
) -> ProductChain:
    """Return the chain of two products, as they are computed in memory; see :func:`layer_pair`."""
    before = _named(before, "X", "W1", "S")
    after = _named(_without_windows_of_one(after), "H", "W2", "Y")
    if before.output.shape != after.inputs[0].shape:
        raise LoweringError(
            f"between the products: {list(before.output.shape)} is read as "
            f"{list(after.inputs[0].shape)}"
        )
    if {*before.access("S").index[-1].iterators} != {*channel_axes(before)}:
        raise LoweringError("between the products: columns are not innermost")
    function, epilogue = pointwise_of(first.epilogue), pointwise_of(second.epilogue)
    assert function is not None
    assert epilogue is not None
    return ProductChain(
        name="layers",
        first=before,
        second=after,
        function=function,
        output=second.dtype,
        epilogue=epilogue,
    )


def _without_windows_of_one(product: Computation) -> Computation:
    """Return a product whose first factor is not indexed by the taps of a window of one element."""
    factor = product.inputs[0]
    access, stored = product.access(factor.name), product.access(product.output.name)
    taps = {axis.name for axis in product.axes if axis.extent == 1} - {*stored.iterators}
    index = tuple(
        each.substitute({name: IndexExpr.sum([], 0) for name in taps & {*each.iterators}})
        if len(each.iterators) > 1
        else each
        for each in access.index
    )
    return with_operand(product, factor, replace(access, index=index))


def _named(product: Computation, *names: str) -> Computation:
    """Return a product with names of its inputs and of its output."""
    operands = [operand.name for operand in (*product.inputs, product.output)]
    return product.with_names(dict(zip(operands, names, strict=True)))


@dataclass(frozen=True)
class FusedLayers:
    """Pair of products as one kernel of a target.

    Attributes
    ----------
    pair : LayerPair
    candidate : ChainCandidate
        Kernel with the smallest estimate.
    """

    pair: LayerPair
    candidate: ChainCandidate

    @property
    def chain(self) -> ProductChain:
        """Products on their tensors as they lie in memory."""
        return self.pair.chain

    def inputs(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the chain's inputs from those of the operator."""
        pair, kind = self.pair, self.pair.kind
        count = 2 + len(kind.first.vectors)
        before, after = arrays[:count], [arrays[0], *arrays[count:]]
        named = {"X": pair.image.buffer_of(before[0]), "W1": before[1], "W2": after[1]}
        for first, product, inputs in ((MIDDLE, kind.first, before), (END, kind.second, after)):
            for name, array in product.epilogue_inputs(inputs).items():
                named[f"{first}{name.removeprefix('@').capitalize()}"] = array
        residual = f"{END}{RESIDUAL}"
        if residual in named:
            named[residual] = pair.result.buffer_of(named[residual])
        return {name: named[name].reshape(shape) for name, (shape, _) in pair.chain.inputs.items()}

    def result(self, _: Sequence[Array], output: Array) -> Array:
        """Return the operator's result from the kernel's."""
        return self.pair.result.elements_of(output)
