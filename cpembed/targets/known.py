"""Names of the targets, by the ``backend`` of a specification, without loading any of them.

Another distribution adds a target by an entry point of the group :data:`GROUP`: its name is the
``backend`` of specifications, its object a class derived from
:class:`~cpembed.targets.base.Target`.
"""

from __future__ import annotations

from typing import Literal

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import close_match, joined, spec_error
from cpembed.plugins import plugin_names

# Strings, since importing a target loads its code generator, and solving needs none.
BUILT_IN = {
    "template": "cpembed.targets.TEMPLATE.target:TemplateTarget",
    "x86": "cpembed.targets.x86.target:X86Target",
    "arm": "cpembed.targets.arm.target:ArmTarget",
    "vta": "cpembed.targets.vta.target:VtaTarget",
    "cuda": "cpembed.targets.cuda.target:CudaTarget",
    "hopper": "cpembed.targets.cuda.warp_specialized.target:HopperTarget",
    "scratchpad": "cpembed.targets.scratchpad.target:ScratchpadTarget",
}
"""Module and class of each target of this package, by name."""

GROUP: Literal["cpembed.targets"] = "cpembed.targets"


def require_known(spec: HardwareSpec) -> HardwareSpec:
    """Return the specification if its ``backend`` and ``constraints`` exist, or are left out.

    Raises :class:`SpecError` otherwise.
    """
    if spec.constraints is not None:
        try:
            load_constraint_set(spec.constraints)
        except SpecError as error:
            raise spec_error(spec.path or spec.name, ("constraints",), str(error)) from None
    if spec.backend is None or spec.backend in BUILT_IN or spec.backend in plugin_names(GROUP):
        return spec
    raise spec_error(
        spec.path or spec.name,
        ("backend",),
        f"unknown backend {spec.backend!r}{close_match(spec.backend, BUILT_IN)}; allowed: "
        f"{joined(BUILT_IN)}, the name of an entry point of {GROUP}, or leave the key out while "
        "nothing executes the instruction",
    )
