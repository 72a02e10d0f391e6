"""Ports: a computation in which every operand has one access.

An irregular instruction reads an operand in several places at a point (the real and the imaginary
part of interleaved numbers) or writes several results. Each access is then a *port*: an operand of
its own, with the elements that the access reaches, so that everything after the matching of the
graphs only knows operands with one access. :class:`Ports` remembers which element of which tensor a
port's element is; ports that overlap share elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cpembed.ir.computation import Computation, Operand, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm

View = tuple[IndexExpr, ...]
"""One expression per dimension of a tensor over a port's dimensions ``d0``, ``d1`` ..."""


@dataclass(frozen=True)
class Ports:
    """``views`` has an entry per port; operands with one access stay as they are."""

    computation: Computation
    views: Mapping[str, View]


def split_ports(computation: Computation) -> Ports:
    """The computation with a port for each access of the operands that have several.

    >>> from cpembed.ir.parser import parse_computation
    >>> dot = parse_computation("C[x] += A[x,0] * B[0] + A[x,1] * B[1]", {"x": 4})
    >>> str(split_ports(dot).computation)
    'C[x] += ((A.0[x] * B.0[]) + (A.1[x] * B.1[]))'
    """
    several = {name for name, found in computation.access_maps.items() if len(found) > 1}
    if not several:
        return Ports(computation, {})
    accesses: dict[Access, Access] = {}
    operands: dict[str, list[Operand]] = {}
    views: dict[str, View] = {}
    for operand in computation.operands:
        operands[operand.name] = [operand]
        if operand.name in several:
            found = computation.access_maps[operand.name]
            ports = [
                _port(computation, operand, access, number) for number, access in enumerate(found)
            ]
            operands[operand.name] = [port for port, _, _ in ports]
            accesses |= {old: new for old, (_, new, _) in zip(found, ports, strict=True)}
            views |= {port.name: view for port, _, view in ports}
    ported = Computation(
        computation.name,
        computation.axes,
        tuple(port for operand in computation.inputs for port in operands[operand.name]),
        tuple(port for operand in computation.outputs for port in operands[operand.name]),
        changed_accesses(computation.statements, lambda access: accesses.get(access, access)),
    )
    return Ports(ported, views)


def _port(
    computation: Computation, operand: Operand, access: Access, number: int
) -> tuple[Operand, Access, View]:
    """A port's operand, its access, and its view of the tensor: constant dimensions are left out,
    the others run from 0 in steps of 1."""
    shape: list[int] = []
    indices: list[IndexExpr] = []
    view: list[IndexExpr] = []
    for index in access.index:
        if not index.terms:
            view.append(index)
            continue
        step = math.gcd(*(term.coefficient for term in index.terms))
        low, high = index.bounds(computation.extents)
        terms = [
            IndexTerm(t.iterator, t.coefficient // step, t.divisor, t.modulus, t.inner)
            for t in index.terms
        ]
        indices.append(IndexExpr.of(terms, (index.constant - low) // step))
        view.append(IndexExpr.of([IndexTerm(f"d{len(shape)}", step)], low))
        shape.append((high - low) // step + 1)
    name = f"{operand.name}.{number}"
    port = replace(operand, name=name, shape=tuple(shape), of=operand.tensor)
    return port, Access(name, tuple(indices)), tuple(view)
