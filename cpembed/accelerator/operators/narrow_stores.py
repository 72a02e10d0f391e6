"""Sums of 32 bits through stores of bytes, for machines that store nothing wider."""

from __future__ import annotations

from dataclasses import replace

from cpembed.accelerator.moves import moves
from cpembed.accelerator.operators.forms import OperatorForm
from cpembed.accelerator.specification import Statement
from cpembed.hw.isa import InstructionSet
from cpembed.ir.computation import Operand
from cpembed.ir.parser import parse_computation

_BYTES = 4


def sums_as_bytes(form: OperatorForm, machine: InstructionSet) -> OperatorForm | None:
    """Return a form that stores each byte of its sums, from which the host composes them.

    The last statement reads the composed sums. Nothing is rounded: a store that cuts off upper bits
    keeps the bits of the sum, shifted by eight for each byte.

    Parameters
    ----------
    form : OperatorForm
    machine : InstructionSet

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
