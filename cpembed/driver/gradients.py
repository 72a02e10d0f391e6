"""Gradients of strided convolutions by their images: all phases, into one tensor.

Each phase is a workload with kernels of its own (:mod:`cpembed.workloads.gradients`), which store
its rows where they belong in the gradient.

>>> gradient = named_gradient("conv2d_dgrad n=1 c=3 h=8 w=8 k=4 r=3 s=3 pad=1 stride=2", "mma_f16")
>>> gradient.shape, [(phase, place.offset) for phase, (_, place) in gradient.parts.items()]
((1, 3, 8, 8), [((0, 0), 0), ((0, 1), 1), ((1, 0), 8), ((1, 1), 9)])
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.blocks import Displayed
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.placement import Placement
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.errors import BackendUnavailable, InvariantError, LoweringError, WorkloadError
from cpembed.export.program import require_name
from cpembed.files import make_folder
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.index import row_major_strides
from cpembed.ir.reference import random_inputs
from cpembed.provenance import Provenance
from cpembed.runtime import worker
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.steps import PhaseProgress, silent, step
from cpembed.targets.choice import built_first
from cpembed.targets.outputs import describe_saved, joining
from cpembed.targets.registry import open_target
from cpembed.workloads.gradients import GRADIENTS, phases

Array = NDArray[Any]
Phase = tuple[int, ...]

_FAMILIES = {family.name: family for family in GRADIENTS if family.name.endswith("_dgrad")}
_IMAGE = {"o": "d", "p": "h", "q": "w"}
"""Size of the image by iterator of its rows."""


@dataclass(frozen=True)
class PhasedGradient:
    """Gradient of a convolution by its image, as a workload for each phase.

    Rows of other phases are zero.

    Attributes
    ----------
    name : str
        Words that name it.
    shape : tuple of int
    parts : mapping
        Workload of each phase, and the place of its rows in the gradient, by the phase.
    """

    name: str
    shape: tuple[int, ...]
    parts: Mapping[Phase, tuple[Computation, Placement]]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all phases."""
        return sum(part.macs for part, _ in self.parts.values())


def names_gradient(words: str | Sequence[str]) -> bool:
    """Return True if words name a gradient by the image with a stride and without a phase."""
    name, *settings = (words if isinstance(words, str) else " ".join(words)).split() or [""]
    values = _settings(settings)
    strides = values.get("stride", "1").split(",")
    return name in _FAMILIES and "phase" not in values and strides.count("1") < len(strides)


def _settings(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def named_gradient(words: str | Sequence[str], target: str | HardwareSpec) -> PhasedGradient:
    """Return the gradient that words name, on the target's element types unless they name some.

    Parameters
    ----------
    words : str or sequence of str
        Name and settings of the operator, without a phase.
    target : str or HardwareSpec
        Target by name, file or value.

    Raises
    ------
    WorkloadError
        If the words are wrong, or all of the gradient is zero.
    """
    text = words if isinstance(words, str) else " ".join(words)
    name, *settings = text.split()
    family = _FAMILIES[name]
    values: dict[str, Any] = dict(family.typed(_settings(settings)))
    windows = {key: values.get(key, default) for key, default in (("pad", 0), ("dilation", 1))}
    stride = values["stride"]
    sizes = {key: value for key, value in values.items() if isinstance(value, int)}
    parts: dict[Phase, tuple[Computation, Placement]] = {}
    shape: tuple[int, ...] = ()
    for phase in phases(sizes, stride=stride, **windows):
        part = workload([text, f"phase={','.join(map(str, phase))}"], target)
        iterators = [str(i.single_iterator) for i in part.access(part.output.name).index]
        image = [iterator for iterator in _IMAGE if iterator in iterators]
        every = (stride,) * len(image) if isinstance(stride, int) else stride
        steps = dict(zip(image, every, strict=True))
        first = dict(zip(image, phase, strict=True))
        shape = tuple(
            sizes[_IMAGE[iterator]] if iterator in first else extent
            for iterator, extent in zip(iterators, part.output.shape, strict=True)
        )
        dense = row_major_strides(shape)
        strides = tuple(d * steps.get(i, 1) for i, d in zip(iterators, dense, strict=True))
        offset = sum(d * first.get(i, 0) for i, d in zip(iterators, dense, strict=True))
        parts[phase] = part, Placement(strides, offset, math.prod(shape))
    if not parts:
        raise WorkloadError(f"{name}: no tap reaches a row: the gradient is zero")
    return PhasedGradient(text, shape, parts)


@dataclass(frozen=True, repr=False, kw_only=True)
class GradientRun(Displayed):
    """Verified execution of a gradient's kernels.

    Attributes
    ----------
    gradient : PhasedGradient
    target : HardwareSpec
    selections : mapping
        Chosen kernel of each phase.
    verification : Verification
        The worst of all phases.
    seed : int
    provenance : Provenance
    """

    gradient: PhasedGradient
    target: HardwareSpec
    selections: Mapping[Phase, Selection]
    verification: Verification
    seed: int
    provenance: Provenance

    @property
    def estimated_us(self) -> float:
        """Estimated time of all kernels, one after the other."""
        return sum(selection.choice.estimated or 0.0 for selection in self.selections.values())

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``run --json``."""
        return {
            "workload": self.gradient.name,
            "target": self.target.name,
            "shape": list(self.gradient.shape),
            "macs": self.gradient.macs,
            "phases": [
                {
                    "phase": list(phase),
                    "workload": str(self.gradient.parts[phase][0]),
                    "embedding": selection.ranked.identifier,
                    "estimated_us": selection.choice.estimated,
                }
                for phase, selection in self.selections.items()
            ],
            "estimated_us": self.estimated_us,
            "verified": self.verification.verified,
            "max_error": self.verification.max_error,
            "seed": self.seed,
            "provenance": self.provenance.value,
        }


def run_gradient(
    gradient: PhasedGradient,
    target: str | HardwareSpec,
    options: KernelOptions | None = None,
    *,
    save: Path | None = None,
    progress: PhaseProgress | None = None,
) -> GradientRun:
    """Build the kernels of all phases, execute them into one tensor, and verify it.

    Parameters
    ----------
    gradient : PhasedGradient
        From :func:`named_gradient`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : KernelOptions, optional
        Output type, machine, seed and timeout.
    save : Path, optional
        Folder for the kernels.
    progress : callable, optional
        Called with the stage and a count.

    Raises
    ------
    BackendUnavailable
        If the target's kernels cannot store parts of a tensor.
    WorkloadError
        For an epilogue with further inputs.
    LoweringError
        If a phase has no kernel.
    InvariantError
        If a result is wrong.
    """
    report, options = progress or silent, options or KernelOptions()
    spec = hardware_spec(target, machine=options.machine)
    joining(open_target(spec))
    selections: dict[Phase, Selection] = {}
    for number, (phase, (part, placement)) in enumerate(gradient.parts.items()):
        report("search", number)
        selections[phase] = _selection(part, placement, spec, options)
    seed = secrets.randbits(31) if options.seed is None else options.seed
    report("verify", 0)
    verification, provenance = worker.call(_execute, gradient, spec, selections, seed, save)
    return GradientRun(
        gradient=gradient,
        target=spec,
        selections=selections,
        verification=verification,
        seed=seed,
        provenance=provenance,
    )


def build_gradient(
    gradient: PhasedGradient,
    target: str | HardwareSpec,
    path: Path,
    options: KernelOptions | None = None,
    *,
    torch: bool = False,
    progress: PhaseProgress | None = None,
) -> GradientRun:
    """Save the kernels of all phases after they were verified, with a README beside their folder.

    Parameters
    ----------
    gradient, target, options, progress
        As in :func:`run_gradient`, whose errors it raises.
    path : Path
        Folder of the kernels, with whose name those of the kernels and files begin.
    torch : bool, optional
        Write an operator of PyTorch too.

    Raises
    ------
    WorkloadError
        If ``path`` ends in no identifier.
    CpembedError
        If the folder cannot be written.
    """
    require_name(path.name)
    make_folder(path.parent)
    result = run_gradient(gradient, target, options, save=path, progress=progress)
    opened = open_target(result.target)
    describe_saved(opened, path, f"`{gradient.name}` by {opened.spec.name}.", torch=torch)
    return result


def _selection(
    part: Computation, placement: Placement, spec: HardwareSpec, options: KernelOptions
) -> Selection:
    """Return the kernel of a phase."""
    stored = options.storing.epilogue(spec.name, part.output.dtype)
    stored = stored or Epilogue(part.output.dtype)
    if stored.parameters or stored.second is not None:
        raise WorkloadError(
            "a gradient of several phases has no bias, scale, residual or second output: leave "
            "them out"
        )
    epilogue = replace(stored, placement=placement)
    outcome = choose(Request(part, spec, options, epilogue=epilogue))
    if not isinstance(outcome, Selection):
        conflict = outcome.conflict
        raise LoweringError("no embedding in time" if conflict is None else conflict.words[0])
    if not outcome.plan.native:
        raise BackendUnavailable("; ".join(outcome.plan.missing))
    return outcome


def _execute(
    gradient: PhasedGradient,
    spec: HardwareSpec,
    selections: Mapping[Phase, Selection],
    seed: int,
    save: Path | None,
) -> tuple[Verification, Provenance]:
    """Build, execute and verify the kernels; called in the worker."""
    target = joining(open_target(spec))
    artifacts: dict[str, Any] = {}
    for phase, selection in selections.items():
        plan = selection.plan
        label = "phase_" + "_".join(map(str, phase))
        artifacts[label], _ = built_first(plan.target, plan.choices, plan.epilogue)
    joined = target.joined(artifacts, gradient.shape)
    first, _ = next(iter(gradient.parts.values()))
    inputs = random_inputs(first, seed)
    with step("running the kernels of a gradient", gradient.macs):
        execution = target.execute_joined(joined, inputs)
    verifications = [
        verification
        for output in execution.outputs
        for verification in _judged(gradient, selections, inputs, output)
    ]
    worst = max(verifications, key=lambda each: (not each.verified, each.max_error))
    worst.require(f"a phase of {gradient.name}", seed)
    if save is not None:
        about = {
            "workload": gradient.name,
            "embedding": [s.ranked.embedding.to_json() for s in selections.values()],
            "schedule": "; ".join(str(s.choice.schedule) for s in selections.values()),
        }
        parts = [
            (gradient.parts[phase][0], selection.plan.epilogue)
            for phase, selection in selections.items()
        ]
        target.save_joined(joined, parts, save, about)
    return worst, execution.provenance


def _judged(
    gradient: PhasedGradient,
    selections: Mapping[Phase, Selection],
    inputs: Mapping[str, Array],
    output: Array,
) -> list[Verification]:
    """Compare the rows of each phase with the reference, and all others with zero."""
    rest = output.reshape(-1).copy()
    verifications: list[Verification] = []
    for phase, (part, placement) in gradient.parts.items():
        rows = placement.view(output.reshape(-1), part.output.shape)
        epilogue = replace(selections[phase].plan.epilogue, placement=None)
        stored = np.ascontiguousarray(rows)
        verifications.append(Expected(part, inputs).judge_stored(stored, epilogue, {}))
        placement.view(rest, part.output.shape)[...] = 0
    if rest.any():
        raise InvariantError(f"{gradient.name}: rows that no tap reaches are not zero: report this")
    return verifications
