"""Back ends of other distributions, by the entry point group ``cpembed.kernel``.

The entry point's name is what a specification's ``backend`` says; the object is called with a
derived program, the number of threads and the epilogue (None for the sums as they are), and returns
a :class:`~cpembed.kernel.plan.KernelPlan`, or raises
:class:`~cpembed.errors.LoweringError`. It is called in the worker: what its compiler or its kernels
do to their process, the command survives.
"""

from __future__ import annotations

from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.kernel.epilogue import Epilogue
from cpembed.kernel.plan import KernelPlan
from cpembed.plugins import load_plugin, plugin_names
from cpembed.transform.program import DerivedProgram
from cpembed.worker import step


def is_added(spec: HardwareSpec) -> bool:
    """Whether another distribution executes a target."""
    return spec.backend is not None and spec.backend in plugin_names("cpembed.kernel")


def plan(
    program: DerivedProgram, spec: HardwareSpec, threads: int, epilogue: Epilogue | None
) -> KernelPlan:
    """Raises :class:`SpecError` where the distribution cannot be loaded."""
    assert spec.backend is not None
    plugin = load_plugin("cpembed.kernel", spec.backend)
    if plugin is None or not callable(plugin.value):
        raise SpecError(f"{spec.name}: no back end {spec.backend} is installed")
    with step(f"planning a kernel of {spec.backend}"):
        found = plugin.value(program, threads, epilogue)
    if not isinstance(found, KernelPlan):
        raise plugin.error(f"returned {type(found).__name__}, not a KernelPlan; have it repaired")
    return found
