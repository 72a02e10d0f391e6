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
from cpembed.accelerator.moves import moves
from cpembed.accelerator.operators.forms import OperatorForm
from cpembed.accelerator.operators.views import flattened, squeezed, with_forward_constants
from cpembed.accelerator.specification import Array, Statement
from cpembed.hw.isa import InstructionSet
from cpembed.ir.computation import AxisKind, Operand
from cpembed.ir.expression import Operation
from cpembed.ir.parser import parse_computation


def alternatives(form: OperatorForm, machine: InstructionSet) -> Iterator[OperatorForm]:
    """Yield a form in the views and by the lemmas that its statements have on a machine."""
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


# -- narrow stores ---------------------------------------------------------------------------------

_BYTES = 4


def sums_as_bytes(form: OperatorForm, machine: InstructionSet) -> OperatorForm | None:
    """Return a form that stores each byte of its sums, from which the host composes them.

    The last statement reads the composed sums. Nothing is rounded: a store that cuts off upper bits
    keeps the bits of the sum, shifted by eight for each byte.

    Returns
    -------
    OperatorForm or None
        None where the machine stores numbers of 32 bits, or the last statement reads no sums.
    """
    if any(m.target == machine.main.name and m.source_dtype == "int32" for m in moves(machine)):
        return None
    *before, last = form.specification.statements
    sums = [
        s.output
        for s in before
        if s.computation.statement.reduction == "add" and s.output.dtype == "int32"
    ]
    read = next((o for o in last.reads if any(o.tensor == s.tensor for s in sums)), None)
    if read is None or not read.shape:
        return None
    composed = f"{read.tensor}.composed"
    statements = [*before, *_bytes_of(read, composed)]
    names = {read.name: composed}
    statements.append(replace(last, computation=last.computation.with_names(names)))
    specification = replace(
        form.specification,
        name=f"{form.specification.name}, sums stored as bytes",
        statements=tuple(statements),
    )
    return OperatorForm(specification, form.tensors)


def _bytes_of(sums: Operand, composed: str) -> list[Statement]:
    """Return the statements that store the bytes of sums, and the one that composes them."""
    extents = {f"i{k}": size for k, size in enumerate(sums.shape)}
    index = ",".join(extents)

    def statement(text: str, operands: dict[str, tuple[str, str]]) -> Statement:
        computation = parse_computation(
            text,
            extents,
            name="bytes of sums",
            dtypes={placeholder: dtype for placeholder, (_, dtype) in operands.items()},
            shapes=dict.fromkeys(operands, sums.shape),
        )
        names = {placeholder: tensor for placeholder, (tensor, _) in operands.items()}
        return Statement(computation.with_names(names))

    # All shifts come before all stores, so that two units take turns once.
    shifts: list[Statement] = []
    stores: list[Statement] = []
    parts: dict[str, tuple[str, str]] = {}
    for byte in range(_BYTES):
        source = sums.tensor, "int32"
        if byte:
            shifted = f"{sums.tensor}.shifted{byte}", "int32"
            text = f"T[{index}] = S[{index}] >> {8 * byte}"
            shifts.append(statement(text, {"T": shifted, "S": source}))
            source = shifted
        parts[f"B{byte}"] = f"{sums.tensor}.byte{byte}", "int8"
        text = f"B{byte}[{index}] = cast(S[{index}], int8)"
        stores.append(statement(text, {f"B{byte}": parts[f"B{byte}"], "S": source}))
    value = f"B{_BYTES - 1}[{index}]"
    for byte in reversed(range(_BYTES - 1)):
        value = f"({value} * 256 + cast(B{byte}[{index}], uint8))"
    composition = statement(f"T[{index}] = {value}", {"T": (composed, "int32"), **parts})
    return [*shifts, *stores, composition]
