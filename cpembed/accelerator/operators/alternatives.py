"""Forms of an operator for a machine: views and lemmas, ordered by what its instructions match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cpembed.accelerator.covering import with_covered_statements
from cpembed.accelerator.lemmas import (
    Lemma,
    Rewriting,
    block_diagonal,
    by_phases,
    extremum_from_copy,
    rewritten,
    sum_with_delta,
    sum_with_ones,
)
from cpembed.accelerator.matching import matches
from cpembed.accelerator.operators.forms import OperatorForm
from cpembed.accelerator.operators.narrow_stores import sums_as_bytes
from cpembed.accelerator.operators.views import flattened, squeezed, with_forward_constants
from cpembed.accelerator.specification import Array, Statement
from cpembed.hw.isa import InstructionSet
from cpembed.ir.computation import AxisKind
from cpembed.ir.expression import Operation


def alternatives(form: OperatorForm, machine: InstructionSet) -> Iterator[OperatorForm]:
    """Yield a form in the views and by the lemmas that its statements have on a machine.

    Parameters
    ----------
    form : OperatorForm
    machine : InstructionSet
        Machine whose products say how many channels a group has.
    """
    form = with_forward_constants(form)
    # First of all, since the steps of a spread operand belong to its original dimensions.
    phased = _rewritten(form, lambda statement, _: by_phases(statement))
    for base in (_without_steps(form),) if phased is None else (phased, _without_steps(form)):
        plain = squeezed(base)
        merged = flattened(plain)
        for view in (merged, plain) if merged.tensors != plain.tensors else (plain,):
            yield from _in_products(view, machine)
            yield view
            begun = _rewritten(view, lambda statement, _: extremum_from_copy(statement))
            if begun is not None:
                yield begun
            narrow = sums_as_bytes(view, machine)
            if narrow is not None:
                yield narrow


def _without_steps(form: OperatorForm) -> OperatorForm:
    """Return a form that reads the zeros between the elements of spread operands, too."""

    def dense(statement: Statement) -> Statement:
        computation = statement.computation.with_operands(lambda o: replace(o, spread=()))
        return replace(statement, computation=computation)

    statements = tuple(map(dense, form.specification.statements))
    return replace(form, specification=replace(form.specification, statements=statements))


def _in_products(form: OperatorForm, machine: InstructionSet) -> Iterator[OperatorForm]:
    """Yield a form with its sums as products that the machine's products compute."""
    for lanes in product_lanes(machine):
        for lemma in (_diagonal, _delta):
            changed = _rewritten(
                form, lambda s, constants, lemma=lemma, lanes=lanes: lemma(s, constants, lanes)
            )
            if changed is not None:
                yield changed
    if product_lanes(machine):
        changed = _rewritten(form, _ones)
        if changed is not None:
            yield changed


def product_lanes(machine: InstructionSet) -> tuple[int, ...]:
    """Return the channels that each product of a machine reads and writes at once."""
    lanes: set[int] = set()
    for instruction in machine.instructions.values():
        computation = instruction.computation
        if len(computation.statements) != 1:
            continue
        statement = computation.statement
        value = statement.value
        if statement.reduction != "add" or not isinstance(value, Operation) or value.op != "mul":
            continue
        sizes = dict.fromkeys(AxisKind, 1)
        for axis in computation.axes:
            sizes[axis.kind] = max(sizes[axis.kind], axis.extent)
        lanes.add(min(sizes.values()))
    return tuple(sorted((n for n in lanes if n > 1), reverse=True)[:2])


def _constant_name(statement: Statement, suffix: str) -> str:
    return f"{statement.output.tensor}.{suffix}"


def _diagonal(statement: Statement, constants: Mapping[str, Array], lanes: int) -> Rewriting | None:
    return block_diagonal(statement, constants, _constant_name(statement, "diagonal"), lanes)


def _delta(statement: Statement, constants: Mapping[str, Array], lanes: int) -> Rewriting | None:
    del constants
    store = statement.computation.statement.store
    axis = store.index[-1].single_iterator if store.index else None
    if axis is None:
        return None
    return sum_with_delta(statement, _constant_name(statement, "unit"), axis, lanes)


def _ones(statement: Statement, constants: Mapping[str, Array]) -> Rewriting | None:
    del constants
    return sum_with_ones(statement, _constant_name(statement, "ones"))


def _rewritten(form: OperatorForm, lemma: Lemma) -> OperatorForm | None:
    """Return a form with a lemma applied to every statement that it takes; None if to none."""
    changed = rewritten(form.specification, lemma)
    return None if changed is None else OperatorForm(changed, form.tensors)


def ordered(forms: Iterable[OperatorForm], machine: InstructionSet) -> tuple[OperatorForm, ...]:
    """Return forms by the number of statements that no instruction matches, then by cycles.

    A form that can overflow follows one that cannot. Where every form has a statement that no
    instruction matches, such statements are covered by several instructions.
    """
    every = list(forms)
    if all(_effort(form, machine)[0] for form in every):
        every = [
            replace(form, specification=with_covered_statements(form.specification, machine))
            for form in every
        ]
    return tuple(sorted(every, key=lambda form: _effort(form, machine)))


def _effort(form: OperatorForm, machine: InstructionSet) -> tuple[int, bool, float]:
    unmatched, cycles = 0, 0.0
    for statement in form.specification.statements:
        candidates = matches(statement, machine)
        unmatched += not candidates
        cycles += candidates[0].cycles if candidates else 0.0
    return unmatched, "overflow" in form.specification.deviation, cycles
