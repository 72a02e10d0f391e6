"""Workloads and targets as a person names them, resolved to values.

>>> from cpembed.driver.named import workload
>>> workload("gemm m=8 n=16 k=32", target="vta_1x16x16").inputs[0].dtype
'int8'
"""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.cost.machine.estimate import machine_of
from cpembed.embedding.commute import commuted
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.problem import AccessPair, MatchedStatements, match_statements
from cpembed.embedding.roles import every_axis_has_a_role
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.targets.known import require_known
from cpembed.targets.registry import native_target
from cpembed.targets.units import NATIVE
from cpembed.workloads.naming import parse_workload


def workload(words: str | Sequence[str], target: str | HardwareSpec | None = None) -> Computation:
    """Parse a workload as the command line names it.

    Parameters
    ----------
    words : str or sequence of str
        Operator with its sizes (``"gemm m=8 n=16 k=32"``), layer of a suite (``"resnet50:3"``) or
        expression with its extents.
    target : str or HardwareSpec, optional
        Target whose element types the operands get where ``words`` names none.

    Raises
    ------
    WorkloadError
        If the words name no workload.
    SpecError
        If the target is unknown.
    """
    parts = words.split() if isinstance(words, str) else list(words)
    spec = None if target is None else hardware_spec(target, parts)
    if spec is None:
        return parse_workload(parts)
    parsed = parse_workload(parts, default_dtypes(spec))
    if is_typed(parts):
        return parsed
    return typed_by_roles(parsed, spec.instruction, by_role="[" in parts[0])


def is_typed(words: Sequence[str]) -> bool:
    """Return True if the words of a workload name its element types."""
    # A word of the shell may hold an expression together with its settings.
    return any(part.startswith("dtype=") for word in words for part in word.split())


def typed_by_roles(
    parsed: Computation, instruction: Instruction, *, by_role: bool = False
) -> Computation:
    """Give each operand the first element type that its role in the instruction takes.

    Parameters
    ----------
    parsed : Computation
        Workload whose element types were assigned by the position of the operands.
    instruction : Instruction
        Instruction whose operands are the roles. Roles follow the order of the factors, unless an
        axis of the instruction can be fed in another order only.
    by_role : bool
        Assign types by role even where the factors stay in their order.
    """
    matches: list[tuple[Computation, tuple[AccessPair, ...]]] = []
    for order in commuted(parsed):
        matched = match_statements(order, instruction)
        if isinstance(matched, MatchedStatements):
            matches.append((order, matched.pairs))
            if every_axis_has_a_role(order, instruction, matched.pairs):
                break
    else:
        # No order feeds every axis: the first that matches decides.
        del matches[1:]
    if not matches:
        return parsed
    order, pairs = matches[-1]
    if not by_role and order.statements == parsed.statements:
        return parsed
    # An operand may have several roles, or another place in the expression than its role has.
    dtypes = instruction.in_ports.dtypes
    types = {pair.workload.operand: dtypes[pair.instruction.operand][0] for pair in pairs}
    return parsed.with_dtypes(types)


def types_for_window(computation: Computation, constraints: ConstraintSet) -> Computation:
    """Exchange the element types of two factors where only the second is read through a window.

    A target's types go by position, which says nothing under a set that commutes the factors: the
    factor that is read through a window then gets the type of a convolution's image, the first.
    """
    if len(computation.inputs) != 2 or not constraints.commutes:
        return computation
    windows = {
        read.operand
        for read in computation.reads
        if any(len(index.iterators) > 1 for index in read.index)
    }
    if windows != {computation.inputs[1].name}:
        return computation
    return with_commuted_types(computation) or computation


def with_commuted_types(computation: Computation) -> Computation | None:
    """Return the product with its two factors' element types exchanged; None if they are equal."""
    if len(computation.inputs) != 2 or len(computation.outputs) != 1:
        return None
    first, second = computation.inputs
    if first.dtype == second.dtype:
        return None
    return computation.with_dtypes({first.name: second.dtype, second.name: first.dtype})


def hardware_spec(
    target: str | HardwareSpec,
    workload: Computation | Sequence[str] = (),
    machine: str | None = None,
) -> HardwareSpec:
    """Return the specification of a target.

    Parameters
    ----------
    target : str or HardwareSpec
        Shipped name, path of a TOML file, or :data:`NATIVE`: the target of this processor whose
        instruction has the most operations.
    workload : Computation or sequence of str, optional
        Workload, or its words; a native target multiplies its element types, where it names any.
    machine : str, optional
        Machine of the specification that becomes its default.

    Raises
    ------
    SpecError
        If the target is unknown, its file is wrong, or it has no such machine.
    BackendUnavailable
        For :data:`NATIVE`, if this processor executes no target that fits.
    """
    if machine is not None:
        spec = hardware_spec(target, workload)
        return spec.for_machine(machine_of(spec, machine).name)
    if isinstance(target, HardwareSpec):
        return target
    if target != NATIVE:
        return require_known(load_hardware_spec(target))
    if not isinstance(workload, Computation):
        if not is_typed(workload):
            return native_target()
        workload = parse_workload(list(workload))
    return native_target([operand.dtype for operand in workload.inputs])


def hardware_specs(targets: Sequence[str | HardwareSpec]) -> list[HardwareSpec]:
    """Return the specifications of targets that are compared by their names.

    Raises
    ------
    SpecError
        If two of them have the same name.
    """
    specs = [hardware_spec(target) for target in targets]
    for number, spec in enumerate(specs):
        for earlier in specs[:number]:
            if earlier.name == spec.name:
                raise SpecError(
                    f"{spec.path}: the name {spec.name} is that of {earlier.path} too: give one of "
                    "them another name"
                )
    return specs


def default_dtypes(spec: HardwareSpec) -> tuple[str, ...]:
    """Return the first element type of each operand: the inputs in order, then the output."""
    return tuple(spec.instruction.dtypes[o.name][0] for o in spec.instruction.computation.operands)
