"""A computation as integer sets and relations: Rieber et al. 2021, section 3.2.

Every scalar operation of the statements is one *statement* with a number ``t`` in the order of
evaluation; its instances are the points of the iteration domain with ``t`` as trailing dimension,
``S[axes..., t]``. Operand elements are ``NAME[indices...]``. Access relations go from the instance
that reads or writes an element to that element, dataflow relations from producer to consumer.

Dimensions are in the order of ``computation.axes``; inside isl they are called ``i0``, ``i1`` ...,
because an axis may be named like a keyword of isl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from cpembed.ir.computation import Computation
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from cpembed.ir.index import IndexExpr, IndexTerm

INSTANCE = "S"
"""Tuple name of statement instances."""
COPY = "copy"
"""Operation of an assignment without arithmetic."""


@dataclass(frozen=True)
class Statement:
    """One scalar operation: number, operation, and where its arguments come from.

    ``reads`` are the accesses it consumes directly, ``producers`` the numbers of the statements
    whose results it consumes. The statement that writes the output has ``writes`` set; where the
    computation reduces, that is the reduction itself.
    """

    number: int
    op: str
    reads: tuple[Access, ...] = ()
    producers: tuple[int, ...] = ()
    writes: Access | None = None
    reduces: bool = False


def statements(computation: Computation) -> tuple[Statement, ...]:
    """The scalar operations in order of evaluation.

    A product-sum has two, ``mul`` and the reduction ``add``; casts count as operations.
    """
    made: list[Statement] = []

    def visit(node: Expression) -> tuple[tuple[Access, ...], tuple[int, ...]]:
        """Reads and producers through which a consumer gets the node's value."""
        if isinstance(node, Access):
            return (node,), ()
        if isinstance(node, Constant):
            return (), ()
        args = (node.arg,) if isinstance(node, Cast) else node.args
        sources = [visit(arg) for arg in args]
        reads = tuple(access for read, _ in sources for access in read)
        producers = tuple(number for _, produced in sources for number in produced)
        op = node.op if isinstance(node, Operation) else f"cast_{node.dtype}"
        made.append(Statement(len(made), op, reads, producers))
        return (), (len(made) - 1,)

    for assignment in computation.statements:
        first = len(made)
        reads, producers = visit(assignment.value)
        store, reduction = assignment.store, assignment.reduction
        if reduction is not None:
            made.append(Statement(len(made), reduction, reads, producers, store, reduces=True))
        elif reads or len(made) == first:
            made.append(Statement(len(made), COPY, reads, (), store))
        else:
            made[-1] = replace(made[-1], writes=store)
    return tuple(made)


def instance_set(computation: Computation, statement: int | None = None) -> isl.Set:
    """``{ S[axes..., t] }`` of all statements, or of the one numbered ``statement``.

    Raises IndexError for a statement that the computation does not have.
    """
    count = len(statements(computation))
    if statement is not None and not 0 <= statement < count:
        raise IndexError(f"{computation.name} has statements 0 to {count - 1}, not {statement}")
    time = f"0 <= t < {count}" if statement is None else f"t = {statement}"
    dims = _dimensions(computation)
    bounds = _box(dims, tuple(computation.extents.values()))
    return isl.Set(f"{{ {INSTANCE}[{', '.join((*dims, 't'))}] : {_conjunction((*bounds, time))} }}")


def operand_set(computation: Computation, operand: str) -> isl.Set:
    """``{ NAME[indices...] }``: the elements of an operand; raises KeyError for an unknown one."""
    found = computation.operand(operand)
    dims = [f"d{i}" for i in range(len(found.shape))]
    elements = isl.Set(f"{{ [{', '.join(dims)}] : {_conjunction(_box(dims, found.shape))} }}")
    # Named afterwards: an operand, too, may be named like a keyword of isl.
    return elements.set_tuple_name(operand)


def access_relation(computation: Computation, access: Access, statement: int) -> isl.Map:
    """``{ S[axes..., t] -> NAME[indices...] }`` of an access made by a statement.

    The index may be quasi-affine. Instances that fall outside an operand which reads as zero
    there have no image: no element flows to them.

    Raises IndexError for a statement that the computation does not have.
    """
    dims = dict(zip(computation.extents, _dimensions(computation), strict=True))
    source = ", ".join((*dims.values(), "t"))
    target = ", ".join(index_text(index, dims) for index in access.index)
    relation = isl.Map(f"{{ {INSTANCE}[{source}] -> [{target}] }}")
    relation = relation.set_tuple_name(isl.dim_type.out, access.operand)
    return relation.intersect_domain(instance_set(computation, statement)).intersect_range(
        operand_set(computation, access.operand)
    )


def access_relations(computation: Computation) -> dict[tuple[int, Access], isl.Map]:
    """The relation of every access, keyed by the statement that makes it."""
    return {
        (statement.number, access): access_relation(computation, access, statement.number)
        for statement in statements(computation)
        for access in (*statement.reads, *((statement.writes,) if statement.writes else ()))
    }


def dataflow_relations(
    computation: Computation, *, ordered: bool = False
) -> dict[tuple[int, int], isl.Map]:
    """``{ S[axes..., t] -> S[axes'..., t'] }`` by numbers of producing and consuming statement.

    Between operations of one point the axes are equal (equation 6). The reduction has a relation
    to itself: from an instance to every *other* instance that combines into the same output
    element, in any order because reductions commute. ``ordered`` gives the sequential form of
    equation 7 instead: to the lexicographically next such instance only.
    """
    flows: dict[tuple[int, int], isl.Map] = {}
    dims = _dimensions(computation)
    for consumer in statements(computation):
        for producer in consumer.producers:
            source, target = (*dims, str(producer)), (*dims, str(consumer.number))
            same_point = isl.Map(
                f"{{ {INSTANCE}[{', '.join(source)}] -> {INSTANCE}[{', '.join(target)}] }}"
            )
            flows[producer, consumer.number] = same_point.intersect_domain(
                instance_set(computation, producer)
            ).intersect_range(instance_set(computation, consumer.number))
        if consumer.reduces:
            chain = _reduction_relation(computation, consumer, ordered)
            if not chain.is_empty():
                flows[consumer.number, consumer.number] = chain
    return flows


def _reduction_relation(computation: Computation, statement: Statement, ordered: bool) -> isl.Map:
    assert statement.writes is not None
    store = access_relation(computation, statement.writes, statement.number)
    same_element = store.apply_range(store.reverse())
    if not ordered:
        instances = instance_set(computation, statement.number)
        return same_element.subtract(isl.Map.identity(instances.get_space().map_from_set()))
    later = isl.Map.lex_lt(instance_set(computation, statement.number).get_space())
    return same_element.intersect(later).lexmin()


def _dimensions(computation: Computation) -> tuple[str, ...]:
    return tuple(f"i{position}" for position in range(len(computation.axes)))


def _box(dims: Sequence[str], extents: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"0 <= {dim} < {extent}" for dim, extent in zip(dims, extents, strict=True))


def _conjunction(conditions: Sequence[str]) -> str:
    return " and ".join(conditions) or "true"


def index_text(index: IndexExpr, dims: Mapping[str, str]) -> str:
    """An index in isl's syntax, floor and mod included."""
    return " + ".join((*(_term_text(term, dims) for term in index.terms), str(index.constant)))


def _term_text(term: IndexTerm, dims: Mapping[str, str]) -> str:
    body = dims[term.iterator] if term.inner is None else index_text(term.inner, dims)
    if term.divisor != 1:
        body = f"floor(({body})/{term.divisor})"
    if term.modulus is not None:
        body = f"(({body}) mod {term.modulus})"
    return f"({term.coefficient} * ({body}))"
