"""Units of a processor: the targets whose instructions may compute a network's products.

A network multiplies several element types, and an instruction two. So its products run on all units
of the processor, each on the one that is fastest for its types and its shape.

>>> units = units_of(load_hardware_spec("vta_1x16x16"))
>>> units.name, units.byte_types, units.float_type, units.processor
('vta_1x16x16', ('int8', 'int8'), 'float32', ())
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from cpembed.codegen.epilogue import BYTES
from cpembed.errors import BackendUnavailable, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.dtypes import INPUT_DTYPES
from cpembed.targets.registry import executes_here, native_targets, no_native_target, takes

FloatType = Literal["float32", "bfloat16", "float16"]
"""Element type to which operands of float products are rounded, float32 being no rounding."""

NATIVE = "native"
"""Name that stands for all units of this processor."""

_BYTE_TYPES = ("uint8", "int8")


@dataclass(frozen=True)
class Units:
    """Targets that compute the products of a network.

    Attributes
    ----------
    named : HardwareSpec or None
        Target that was named; it is preferred to all of the processor's. None for a network on all
        units alike.
    processor : tuple of HardwareSpec
        Targets that this processor executes as they are, those with the most operations first.
        Empty if the named target is executed elsewhere, or emulated.
    float_type : str
        Type to which operands of float products are rounded.
    """

    named: HardwareSpec | None
    processor: tuple[HardwareSpec, ...]
    float_type: FloatType = "float32"

    @property
    def name(self) -> str:
        """Name of the set: that of the named target, or ``native``."""
        return NATIVE if self.named is None else self.named.name

    @cached_property
    def leaders(self) -> tuple[HardwareSpec, ...]:
        """Targets that are searched, in their order; each with its alternatives.

        A target that a preceding one names as its alternative is searched there.
        """
        leaders: list[HardwareSpec] = [] if self.named is None else [self.named]
        covered = {name for spec in leaders for name in (spec.name, *spec.alternatives)}
        for spec in self.processor:
            if spec.name not in covered:
                leaders.append(spec)
                covered |= {spec.name, *spec.alternatives}
        return tuple(leaders)

    @property
    def primary(self) -> HardwareSpec:
        """First target, whose calibration estimates the operators between the products."""
        return self.leaders[0]

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the targets that a network on these units is meant to use."""
        return tuple(s.name for s in ([self.named] if self.named else self.processor))

    @cached_property
    def byte_types(self) -> tuple[str, str]:
        """Types of the two factors that products of bytes are prepared for.

        Those of the first target that multiplies bytes; if none does, no such products are.
        """
        types = map(_first_types, self.leaders)
        pairs = [(first, rest[0]) for first, *rest in types if rest]
        bytes_first = sorted(pairs, key=lambda pair: not {*pair} <= {*BYTES})
        return bytes_first[0] if bytes_first else _BYTE_TYPES

    @cached_property
    def byte_pairs(self) -> frozenset[tuple[str, str]]:
        """All types of two bytes that the first target for :attr:`byte_types` multiplies."""
        for spec in self.leaders:
            if tuple(_first_types(spec)) == self.byte_types:
                ports = spec.instruction.in_ports
                first, second = (ports.dtypes[o.name] for o in ports.computation.inputs)
                return frozenset((a, b) for a in first for b in second if {a, b} <= {*BYTES})
        return frozenset()

    def candidates(self, dtypes: Sequence[str]) -> list[HardwareSpec]:
        """Return the leaders that multiply some types, themselves or by an alternative."""
        return [spec for spec in self.leaders if multiplies(spec, dtypes)]


def _processor() -> tuple[HardwareSpec, ...]:
    """Return the targets that this processor executes, without those for factors of 7 bits."""
    # These take a factor of 8 bits too, but not two of them, and no tensor declares 7.
    return tuple(
        spec
        for spec in native_targets()
        if all(INPUT_DTYPES[dtype].bits % 8 == 0 for dtype in _first_types(spec))
    )


def _first_types(spec: HardwareSpec) -> list[str]:
    return [operand.dtype for operand in spec.instruction.computation.inputs]


def with_alternatives(spec: HardwareSpec) -> tuple[HardwareSpec, ...]:
    """Return a target and its alternatives, without those that do not exist."""
    alternatives: list[HardwareSpec] = []
    for name in spec.alternatives:
        # A file of the user's may name any; what runs instead of a target ignores them too.
        with suppress(SpecError):
            alternatives.append(load_hardware_spec(name))
    return (spec, *alternatives)


def multiplies(spec: HardwareSpec, dtypes: Sequence[str]) -> bool:
    """Return True if a target or an alternative of it takes factors of these types."""
    return any(takes(each, dtypes) for each in with_alternatives(spec))


def native_units() -> Units:
    """Return all units of the processor that kernels are built for, by default this machine's.

    Raises :class:`BackendUnavailable` if it executes no target.
    """
    specs = _processor()
    if not specs:
        raise no_native_target()
    return Units(None, specs)


def units_of(spec: HardwareSpec) -> Units:
    """Return the units of a network on a named target.

    Where this processor executes the target, its other units take the products that the target and
    its alternatives do not.
    """
    types = _first_types(spec)
    float_type: FloatType = "float32"
    if "bfloat16" in types:
        float_type = "bfloat16"
    elif "float16" in types:
        float_type = "float16"
    return Units(spec, _processor() if executes_here(spec) else (), float_type)


def with_float_type(units: Units, float_type: FloatType) -> Units:
    """Return the units with another type of float products.

    Raises :class:`BackendUnavailable` if no unit multiplies it.
    """
    if float_type != "float32" and not units.candidates([float_type] * 2):
        raise BackendUnavailable(
            f"{units.name}: no unit multiplies {float_type}: compute floats in float32"
        )
    return replace(units, float_type=float_type)
