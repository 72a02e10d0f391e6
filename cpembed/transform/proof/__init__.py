"""The isl proof that a derived program computes its workload.

Definitions: docs/embedding.md, "Program and proof".

Obligations, each a statement about integer sets and relations that isl decides:

1. *coverage*: loops and instruction axes reach every point of the padded iteration domain,
   each once;
2. *access*: on every original point, the packed element the program touches is the original
   element that the workload's access map names; packed accesses stay inside their layout;
3. *neutral*: a padded point multiplies by zero or its result is dropped;
4. *output*: each original output element is read back from exactly one packed element;
5. *tile*: instruction axes address memory as the instruction's memory side asks.

A program over fused axes has a sixth, *flatten*: the workload over them is the original one, but
for points in the gaps of an axis, which count as padding.

Each is tried first as a conjunction of *lemmas* about few variables (``factored``), which isl
decides once for all programs that share them. An obligation that the lemmas do not show is decided
on the whole program (``general``), so they never change a verdict or its message. The lemmas imply
the obligations for the following reasons.

*Independent digits.* Where every iterator corresponds one to one to the box of its digits
``(iterator // d) % m`` (a lemma per iterator, on exactly the digits in use) and no digit occurs in
two indices, the iteration domain is the product of the indices' own digit boxes, and a tuple of
indices is a product of maps.

1. A product of maps is a bijection onto a product of ranges if each factor is one: per workload
   axis, its digits number ``[0, padded)`` with ``padded >=`` its extent.
2. A packed index tuple lies in a box if each index lies in its range. Both the element that packing
   put there and the element that the workload names are functions of the iterators, so they are
   equal if they are in each original dimension; shown wherever the axes of that dimension are
   within their extents, which every original point satisfies.
3. At a padded point some axis is outside its extent. For each axis that can be, some dimension of
   the output, or of a factor in a sum, is shown to be out of shape whenever the axis
   is, whatever the other iterators are: the point is dropped or adds zero.
4. By 1 and 2 the program writes, for every original point, the packed element of the original
   element that the workload stores to; so each is written if the workload's store reaches each (a
   lemma about the workload). None is written twice if packed element to original is injective on
   the whole layout: with independent digits of the packed dimensions, if it is per dimension.
5. Address and the dense tile's address are equal as functions of the axes. One whose distance
   is free and which the address takes at one constant stride adds the same to both and is left out.

Programs of one enumeration share layouts, and what lemmas show of a layout with its iterators
and axes is the same for each of them: with :class:`SharedLemmas` it is looked up once per layout
instead of once per program. Coverage, and which axes leave their extents, is decided for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.errors import InvariantError
from cpembed.ir.polyhedral import in_time
from cpembed.transform.program import DerivedProgram
from cpembed.transform.proof import general
from cpembed.transform.proof.factored import Factored, SharedLemmas

__all__ = ["Proof", "SharedLemmas", "prove", "prove_whole", "require"]


@dataclass(frozen=True)
class Proof:
    """Outcome of the obligations; ``failed`` has a message for each one that does not hold."""

    failed: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.failed


def prove(program: DerivedProgram, shared: SharedLemmas | None = None) -> Proof:
    """Decide every obligation; a wrong program is a result, not an exception.

    ``shared`` keeps lemmas about layouts between programs that are derived with one cache.
    """
    if program.original is not None:
        # Layouts of fused axes have digits of sums, about which the lemmas say nothing.
        failed = in_time(general.flattening, program)
        return Proof((*failed, *prove_whole(program).failed))
    if program.overlaps or _has_digits_of_sums(program):
        # The lemmas assume that every point is executed once and every digit is an iterator's.
        return prove_whole(program)
    # Relations are made lazily: a program that the lemmas prove never builds one.
    lemmas, relations = Factored(program, shared), general.Relations(program)
    outputs = {operand.name for operand in program.workload.outputs}
    failed = [] if lemmas.coverage() else in_time(general.coverage, relations)
    written = not failed
    for operand in program.operands:
        failures = [] if lemmas.access(operand) else in_time(general.access, relations, operand)
        written = written and not (failures and operand.name in outputs)
        failed += failures
    failed += [] if lemmas.neutral() else in_time(general.neutral, relations)
    # The lemmas about an output presuppose coverage and the output's access.
    for name in sorted(outputs):
        by_lemmas = written and lemmas.output(name)
        failed += [] if by_lemmas else in_time(general.output, relations, name)
    failed += [] if lemmas.tile() else general.tile(program)
    return Proof(tuple(failed))


def _has_digits_of_sums(program: DerivedProgram) -> bool:
    """True if a layout cuts an instruction axis of several digits elsewhere than between digits."""
    return any(
        term.inner is not None
        for operand in program.operands
        for index in (*operand.source, *operand.access)
        for term in index.terms
    )


def prove_whole(program: DerivedProgram) -> Proof:
    """Decide every obligation on the whole program, without lemmas: slow, for comparison."""
    relations = general.Relations(program)
    failed = in_time(general.coverage, relations)
    for operand in program.operands:
        failed += in_time(general.access, relations, operand)
    failed += in_time(general.neutral, relations)
    for output in program.workload.outputs:
        failed += in_time(general.output, relations, output.name)
    return Proof((*failed, *general.tile(program)))


def require(program: DerivedProgram, shared: SharedLemmas | None = None) -> None:
    """Raise :class:`InvariantError` for a program that cannot be proven."""
    proof = prove(program, shared)
    if not proof.holds:
        raise InvariantError(
            f"the program derived for {program.workload.name} on {program.instruction.name} is "
            f"not proven ({'; '.join(proof.failed)}): please report this"
        )
