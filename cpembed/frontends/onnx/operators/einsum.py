"""Einsum: factors are multiplied two at a time, each time a product over the letters that nothing
else has."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Product, Reduce
from cpembed.ir.dtypes import accumulator
from cpembed.ir.parser import parse_computation

Factor = tuple[str, str]
"""A tensor and the letters of its axes."""


def einsum(site: Site) -> str:
    tensors = site.all_inputs()
    shapes = [site.shape(tensor) for tensor in tensors]
    letters, result = _letters(site.text("equation", ""), [len(shape) for shape in shapes])
    sizes: dict[str, int] = {}
    for names, shape in zip(letters, shapes, strict=True):
        for name, size in zip(names, shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise WorkloadError(f"axis {name} is of {sizes[name]} and of {size}")
    if 0 in sizes.values():
        return site.tensor(np.zeros([sizes[name] for name in result]), site.dtype(tensors[0]))
    factors = list(zip(tensors, letters, strict=True))
    total = _summed(site, factors[0], {*result, *"".join(letters[1:])})
    for k, factor in enumerate(factors[1:], 1):
        needed = {*result, *"".join(letters[k + 1 :])}
        total = _multiplied(site, total, factor, needed, result, sizes)
    tensor, names = total
    return site.transposed(tensor, [names.index(name) for name in result])


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Of each factor and of the result, a letter for each axis."""
    text = re.sub(r"\s", "", equation)
    left, arrow, result = text.partition("->")
    factors = left.split(",")
    if len(factors) != len(ranks):
        raise WorkloadError(f"equation {equation!r} is of {len(factors)} factors, not {len(ranks)}")
    free = [letter for letter in string.ascii_lowercase if letter not in text]
    named = [rank - len(f.replace("...", "")) for f, rank in zip(factors, ranks, strict=True)]
    dots = max((n for n, f in zip(named, factors, strict=True) if "..." in f), default=0)
    if dots > len(free):
        raise WorkloadError(f"equation {equation!r} has too many axes")
    whole = "".join(free[:dots])
    parts: list[str] = []
    for factor, count, rank in zip(factors, named, ranks, strict=True):
        part = factor.replace("...", whole[dots - count :] if count else "")
        if len(part) != rank or (rank and not part.isalpha()):
            raise WorkloadError(f"{factor} of equation {equation!r} does not name {rank} axes")
        if len({*part}) != len(part):
            raise WorkloadError(f"{factor} of equation {equation!r} takes a diagonal")
        parts.append(part)
    if arrow:
        final = result.replace("...", whole)
    else:
        every = "".join(parts)
        final = whole + "".join(sorted(x for x in {*every} - {*whole} if every.count(x) == 1))
    if len({*final}) != len(final) or not {*final} <= {*"".join(parts)}:
        raise WorkloadError(f"the result of equation {equation!r} is none of its factors'")
    return parts, final


def _summed(site: Site, factor: Factor, needed: set[str]) -> Factor:
    """A factor without the axes that nothing else has."""
    tensor, names = factor
    gone = tuple(k for k, name in enumerate(names) if name not in needed)
    if gone:
        tensor = site.emit(Reduce("sum", gone, False), tensor)
    return tensor, "".join(name for name in names if name in needed)


def _multiplied(
    site: Site,
    first: Factor,
    second: Factor,
    needed: set[str],
    result: str,
    sizes: Mapping[str, int],
) -> Factor:
    """The product of two factors, summed over the axes that nothing else has."""
    if site.builder.is_constant(first[0]) and not site.builder.is_constant(second[0]):
        first, second = second, first
    both = {*first[1], *second[1]}
    kept = [name for name in result if name in both]
    kept += sorted(name for name in both if name in needed and name not in kept)
    axis = dict(zip(sorted(both), _names(both), strict=True))

    def indices(names: Sequence[str]) -> str:
        return ", ".join(axis[name] for name in names)

    reduced = [name for name in first[1] + second[1] if name not in kept]
    dtypes = [site.dtype(tensor) for tensor, _ in (first, second)]
    sums = accumulator(*dtypes)
    computation = parse_computation(
        f"C[{indices(kept)}] += A[{indices(first[1])}] * B[{indices(second[1])}]",
        {axis[name]: sizes[name] for name in [*kept, *dict.fromkeys(reduced)]},
        name="einsum",
        dtypes={"A": dtypes[0], "B": dtypes[1], "C": sums},
        varying=() if site.builder.is_constant(second[0]) else ("B",),
    )
    shape = tuple(sizes[name] for name in kept)
    product = site.emit(Product(computation, shape), first[0], second[0])
    return site.cast(product, dtypes[0]) if "float" in dtypes[0] else product, "".join(kept)


def _names(letters: set[str]) -> list[str]:
    """Names of axes: the letters themselves, a capital one doubled."""
    return [letter if letter.islower() else letter.lower() * 2 for letter in sorted(letters)]


TABLE: dict[str, Translation] = {"Einsum": einsum}
