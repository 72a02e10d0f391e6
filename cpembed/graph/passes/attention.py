"""Recognize attention in products of matrices around a softmax, as exporters write it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Attention,
    Dequantize,
    Elementwise,
    Expand,
    Input,
    Number,
    Product,
    Reduce,
    Reshape,
    Softmax,
    Transpose,
)
from cpembed.graph.kinds.attention import AXES
from cpembed.graph.passes.expressions import combines_inputs, number_operand
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of
from cpembed.ir.scalars import apply

_HIDDEN = -1e30
"""Score from which on a key is excluded by a constant mask: its power is 0 beside any other."""


_FLOATS = ("float32", "bfloat16")
"""Types of query, key, value and softmax."""


def recognize_attention(graph: Graph) -> Graph:
    """Replace the products and the softmax of an attention of floats by one operator.

    Recognized are scales of query, key or scores, masks that are added or selected, causal masks
    that are constants, and keys and values that are repeated for several heads. Transpositions
    before and after become orders of axes. The scores are rounded in another order, so that results
    differ by roundings of float32. In bfloat16, scores and weights are no longer rounded to it.
    Keys that a mask excludes by -inf do not count any more, even if their values are NaN.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        if isinstance(operator.kind, Softmax) and not operator.kind.log:
            attention = _attention(graph, operator)
            if attention is not None:
                attention.write(rewriting)
    return rewriting.graph()


@dataclass(frozen=True)
class _Tensor:
    """Tensor, the letters of its axes, and the factor by which it is multiplied."""

    name: str
    axes: str
    scale: float = 1.0


@dataclass(frozen=True)
class _Mask:
    """Mask of scores: a tensor to add, or a Boolean one with the score of what it excludes."""

    name: str
    excluded: float | None = None
    inverted: bool = False


@dataclass(frozen=True)
class _Recognized:
    """Attention in a graph: its kind without a mask, and the ``last`` operator that it replaces."""

    kind: Attention
    tensors: tuple[str, str, str]
    last: Operator
    masks: tuple[_Mask, ...]

    def write(self, rewriting: Rewriting) -> None:
        """Replace the last operator; the others are dropped where nothing else reads them."""
        kind, before = self.kind, list[Operator]()
        names: list[str] = []
        for mask in self.masks:
            if mask.excluded is None:
                names.append(_in_float32(rewriting, mask.name, before))
            else:
                kind = replace(kind, excluded=mask.excluded)
                names.append(_selecting(rewriting, mask, before))
        if len(names) > 1:
            total = rewriting.fresh(f"{self.last.name} mask")
            added = Elementwise(apply("add", Input(0), Input(1)), "float32")
            before.append(Operator(total, added, tuple(names), (total,)))
            names = [total]
        kind = replace(kind, masked=bool(names))
        new = Operator(self.last.name, kind, (*self.tensors, *names), self.last.outputs)
        rewriting.replace(self.last, *before, new)


def _in_float32(rewriting: Rewriting, mask: str, before: list[Operator]) -> str:
    """Return the float32 tensor of a mask that is added."""
    if rewriting.source.types[mask].dtype == "float32":
        return mask
    name = rewriting.fresh(f"{mask} as float32")
    before.append(Operator(name, Elementwise(Input(0), "float32"), (mask,), (name,)))
    return name


def _selecting(rewriting: Rewriting, mask: _Mask, before: list[Operator]) -> str:
    """Return the Boolean tensor that is true for the keys that count."""
    if not mask.inverted:
        return mask.name
    array = rewriting.source.constants.get(mask.name)
    if array is not None:
        return rewriting.constant(f"{mask.name} inverted", ~array)
    name = rewriting.fresh(f"{mask.name} inverted")
    kind = Elementwise(apply("not", Input(0)), "bool")
    before.append(Operator(name, kind, (mask.name,), (name,)))
    return name


def _causal_offset(mask: _Mask, array: Array, scores: tuple[int, int]) -> int | None:
    """Return the number of keys before the first row's own, if a constant mask is causal."""
    lead = array.shape[:-2]
    if array.ndim < 2 or array.shape[-2:] != scores or any(size != 1 for size in lead):
        return None
    matrix = array.reshape(scores)
    if mask.excluded is not None:
        if mask.excluded > _HIDDEN:
            return None
        visible = ~matrix if mask.inverted else matrix
    else:
        visible = matrix == 0
        if not (matrix[~visible] <= _HIDDEN).all():
            return None
    offset = int(visible[0].sum()) - 1
    rows, keys = scores
    # A row without keys would be uniform, or NaN.
    expected = np.arange(keys) <= np.arange(rows)[:, None] + offset
    return offset if offset >= 0 and np.array_equal(visible, expected) else None


def _attention(graph: Graph, softmax: Operator) -> _Recognized | None:
    """Return the attention around a softmax, or None."""
    assert isinstance(softmax.kind, Softmax)
    rank = len(graph.types[softmax.output].shape)
    if not 2 <= rank <= 4 or softmax.kind.axis % rank != rank - 1:
        return None
    if graph.types[softmax.output].dtype not in _FLOATS:
        return None
    weights, zero_rows = _zeroed(graph, softmax)
    sums = only_reader(graph, weights)
    if sums is not None and _is_rounding(sums):
        weights, sums = sums.output, only_reader(graph, sums.output)
    if sums is None or sums.inputs[0] != weights or weights in sums.inputs[1:]:
        return None
    scores = _scores(graph, softmax.inputs[0])
    if scores is None:
        return None
    product = scores.product
    first, second = _is_transposed(graph, product), _is_transposed(graph, sums)
    if first is None or second is None:
        return None
    letters = AXES[4 - rank : 2] + "sd"
    query = _source(graph, _Tensor(product.inputs[0], letters))
    turned = letters[:-2] + "ds"
    key = _source(graph, _Tensor(product.inputs[1], letters if first else turned), groups=True)
    value_axes = turned if second else letters
    value = _source(graph, _Tensor(sums.inputs[1], value_axes), groups=True, scaled=False)
    tensors = (query, key, value)
    shape = graph.types[softmax.output].shape
    split = _without_causal(graph, scores.masks, (shape[-2], shape[-1]))
    if split is None or any(_is_unsuitable(graph, tensor) for tensor in tensors):
        return None
    last, axes = sums, letters
    reader = only_reader(graph, sums.output)
    if reader is not None and _is_rounding(reader):
        last, reader = reader, only_reader(graph, reader.output)
    if reader is not None and isinstance(reader.kind, Transpose):
        order = reader.kind.order
        if letters[order[-1]] == "d":
            last, axes = reader, "".join(letters[k] for k in order)
    kind = Attention(
        scale=scores.scale * query.scale * key.scale,
        axes=(query.axes, key.axes, value.axes, axes),
        causal=split[0],
        softcap=scores.softcap,
        zero_rows=zero_rows,
        factors=graph.types[query.name].dtype,
        dtype=graph.types[last.output].dtype,
    )
    names = (query.name, key.name, value.name)
    try:
        (result,) = kind.types([graph.types[name] for name in names])
    except WorkloadError:
        # Batches that broadcast.
        return None
    if result != graph.types[last.output]:
        return None
    return _Recognized(kind, names, last, split[1])


def _is_unsuitable(graph: Graph, tensor: _Tensor) -> bool:
    """True for a tensor of other types, or whose matrices lie in another order in memory."""
    kind = graph.types[tensor.name]
    # Products of dequantized tensors are products of integers.
    is_quantized = producer_of(graph, tensor.name, Dequantize) is not None
    return (
        is_quantized
        or kind.dtype not in _FLOATS
        or tensor.axes[-1] not in "sd"
        or (not kind.elements)
    )


def _zeroed(graph: Graph, softmax: Operator) -> tuple[str, bool]:
    """Return the weights, and whether those of rows without scores above -inf became zeros."""
    readers = [r for r in graph.readers[softmax.output] if isinstance(r.kind, Elementwise)]
    if len(readers) != 1 or only_reader(graph, softmax.output) is None:
        return softmax.output, False
    reader, kind = readers[0], readers[0].kind
    assert isinstance(kind, Elementwise)
    zeroed = Apply("where", (apply("equal", Input(0), -math.inf), Number(0.0), Input(1)))
    largest = producer_of(graph, reader.inputs[0], Reduce)
    if kind.expression != zeroed or largest is None:
        return softmax.output, False
    is_maximum = largest[1].operation == "max" and largest[1].keeps
    rank = len(graph.types[softmax.output].shape)
    if not is_maximum or [axis % rank for axis in largest[1].axes] != [rank - 1]:
        return softmax.output, False
    if largest[0].inputs != softmax.inputs or reader.inputs[1] != softmax.output:
        return softmax.output, False
    return reader.output, True


@dataclass(frozen=True)
class _Scores:
    """Scores before a softmax: the product that computes them, and the operators after it."""

    product: Operator
    scale: float
    softcap: float
    masks: tuple[_Mask, ...]


def _scores(graph: Graph, tensor: str) -> _Scores | None:
    """Return the scores in a tensor, from its end to the product."""
    scale, softcap, masks = 1.0, 0.0, list[_Mask]()
    while True:
        producer = graph.producers.get(tensor)
        if producer is None or tensor in graph.outputs:
            return None
        if isinstance(producer.kind, Product):
            return _Scores(producer, scale, softcap, tuple(masks))
        if not isinstance(producer.kind, Elementwise) or producer.kind.dtype not in _FLOATS:
            return None
        if _is_rounding(producer):
            tensor = producer.inputs[0]
            continue
        shape = graph.types[producer.output].shape
        limit = _limit(producer.kind)
        if limit is not None:
            # A kernel limits scores after their scale and before their masks.
            if scale != 1.0 or softcap:
                return None
            softcap, tensor = limit, producer.inputs[0]
            continue
        factor = _factor(producer.kind)
        if factor is not None:
            scale *= factor
            tensor = producer.inputs[0]
            continue
        step = _mask(graph, producer, shape)
        if step is None:
            return None
        tensor, mask = step
        # Masks that come before a scale are scaled with the scores.
        is_scaled = scale != 1.0 and not (scale > 0 and _is_infinite(graph, mask))
        if is_scaled or softcap:
            return None
        masks.append(mask)


def _without_causal(
    graph: Graph, masks: Sequence[_Mask], scores: tuple[int, int]
) -> tuple[int | None, tuple[_Mask, ...]] | None:
    """Return the offset of causal masks, if any, and the other masks; None for too many of them."""
    causal: int | None = None
    rest: list[_Mask] = []
    for mask in masks:
        array = graph.constants.get(mask.name)
        offset = None if array is None else _causal_offset(mask, array, scores)
        if offset is None:
            rest.append(mask)
        else:
            # Of two causal masks the narrower one counts.
            causal = offset if causal is None else min(offset, causal)
    # One tensor is the mask of a kernel: two that are added become one before.
    added = [mask for mask in rest if mask.excluded is None]
    return (causal, tuple(rest)) if len(rest) <= 1 or len(added) == len(rest) == 2 else None


def _is_rounding(operator: Operator) -> bool:
    """True if an operator rounds its input to bfloat16, or extends it, and does nothing else."""
    kind = operator.kind
    return isinstance(kind, Elementwise) and kind.expression == Input(0) and kind.dtype in _FLOATS


def _limit(kind: Elementwise) -> float | None:
    """Return c of the expression ``c tanh(x / c)``."""
    match kind.expression:
        case Apply("mul", (Apply("tanh", (Apply("div", (Input(0), Number(c))),)), Number(limit))):
            return limit if limit == c and limit > 0 else None
        case _:
            return None


def _factor(kind: Elementwise) -> float | None:
    """Return the number by which an expression multiplies its only input."""
    factor = number_operand(kind.expression, "mul")
    if factor is not None:
        return factor
    match kind.expression:
        case Apply("div", (Input(0), Number(value))) if value:
            return 1 / value
        case _:
            return None


def _mask(graph: Graph, operator: Operator, shape: tuple[int, ...]) -> tuple[str, _Mask] | None:
    """Return the scores before a mask, and the mask."""
    assert isinstance(operator.kind, Elementwise)
    expression, names = operator.kind.expression, operator.inputs
    if combines_inputs(expression, "add") and len(names) == 2:
        for scores, mask in (names, names[::-1]):
            if graph.types[scores].shape == shape and _leads_to_product(graph, scores):
                fits = graph.types[mask].dtype in _FLOATS
                return (scores, _Mask(mask)) if fits else None
        return None
    match expression:
        case Apply("where", (Input(a), Input(b), Number(value))):
            scores, mask = names[b], _Mask(names[a], excluded=float(value))
        case Apply("where", (Input(a), Number(value), Input(b))):
            scores, mask = names[b], _Mask(names[a], excluded=float(value), inverted=True)
        case _:
            return None
    is_mask = graph.types[mask.name].dtype == "bool" and graph.types[scores].shape == shape
    return (scores, mask) if is_mask else None


def _leads_to_product(graph: Graph, tensor: str) -> bool:
    """True if a tensor is a product's result, perhaps after scales and masks."""
    producer = graph.producers.get(tensor)
    if producer is None:
        return False
    if isinstance(producer.kind, Product):
        return True
    if not isinstance(producer.kind, Elementwise):
        return False
    shape = graph.types[producer.output].shape
    return any(
        graph.types[name].shape == shape and _leads_to_product(graph, name)
        for name in producer.inputs
    )


def _is_infinite(graph: Graph, mask: _Mask) -> bool:
    """True if a mask has only scores that a positive factor does not change."""
    if mask.excluded is not None:
        return math.isinf(mask.excluded)
    array = graph.constants.get(mask.name)
    return array is not None and bool(((array == 0) | np.isinf(array)).all())


def _is_transposed(graph: Graph, operator: Operator) -> bool | None:
    """Return whether a product of matrices has its second factor transposed; None for others."""
    kind = operator.kind
    if not isinstance(kind, Product) or kind.epilogue is not None or any(kind.zero_points):
        return None
    workload = kind.computation
    if len(operator.inputs) != 2 or len(workload.inputs) != 2:
        return None
    types = [operand.dtype for operand in workload.inputs]
    if types[0] not in _FLOATS or types[0] != types[1] or workload.output.dtype != "float32":
        return None
    accesses = [workload.access(operand.name).index for operand in workload.operands]
    names = [[index.single_iterator for index in access] for access in accesses]
    first, second, output = names
    if any(None in axes or len(axes) < 2 for axes in names):
        return None
    (*lead, m, n), k = output, first[-1]
    if first[-2] != m or k in output or second[-2:] not in ([k, n], [n, k]):
        return None
    # The other axes are batches, in one order, of which a factor may lack some.
    batches = (first[:-2], second[:-2])
    if any([axis for axis in lead if axis in axes] != axes for axes in batches):
        return None
    shapes = [graph.types[name].shape for name in operator.inputs]
    depth = workload.extents[k] if k is not None else 0
    is_transposed = second[-1] == k
    if shapes[0][-1] != depth or shapes[1][-1 if is_transposed else -2] != depth:
        return None
    same_rank = len(shapes[0]) == len(shapes[1]) == len(kind.shape)
    return is_transposed if same_rank else None


def _source(graph: Graph, tensor: _Tensor, *, groups: bool = False, scaled: bool = True) -> _Tensor:
    """Return the tensor before transpositions, scales and repeated heads.

    The last axis stays the one of the sequence or the depth.

    Parameters
    ----------
    graph : Graph
    tensor : _Tensor
    groups : bool
        Look before repetitions of heads.
    scaled : bool
        Look before scales.
    """
    best = tensor
    while True:
        producer = graph.producers.get(tensor.name)
        if producer is None:
            return best
        match producer.kind:
            case Transpose(order):
                axes = [""] * len(order)
                for letter, axis in zip(tensor.axes, order, strict=True):
                    axes[axis] = letter
                tensor = replace(tensor, name=producer.inputs[0], axes="".join(axes))
            case Elementwise() as kind if scaled and len(producer.inputs) == 1:
                factor = _factor(kind)
                if factor is None or graph.types[producer.inputs[0]].dtype != kind.dtype:
                    return best
                scale = tensor.scale * factor
                tensor = replace(tensor, name=producer.inputs[0], scale=scale)
            case Reshape() if groups:
                single = _before_repetition(graph, producer, tensor.axes)
                if single is None:
                    return best
                tensor = replace(tensor, name=single)
            case _:
                return best
        if tensor.axes[-1] in "sd" and graph.types[tensor.name].dtype in _FLOATS:
            best = tensor


def _before_repetition(graph: Graph, reshape: Operator, axes: str) -> str | None:
    """Return the tensor whose heads are repeated, each for neighbouring ones."""
    expanded = producer_of(graph, reshape.inputs[0], Expand)
    if expanded is None or "h" not in axes:
        return None
    heads = axes.index("h")
    before = producer_of(graph, expanded[0].inputs[0], Reshape)
    shape = graph.types[reshape.output].shape
    wide = graph.types[expanded[0].output].shape
    narrow = graph.types[expanded[0].inputs[0]].shape
    if before is None or len(wide) != len(shape) + 1:
        return None
    source = graph.types[before[0].inputs[0]].shape
    count = wide[heads]
    repeats = wide[heads + 1]
    is_repeated = (
        shape == (*wide[:heads], count * repeats, *wide[heads + 2 :])
        and narrow == (*wide[: heads + 1], 1, *wide[heads + 2 :])
        and source == (*narrow[: heads + 1], *narrow[heads + 2 :])
    )
    return before[0].inputs[0] if is_repeated else None
