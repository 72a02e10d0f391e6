"""Build a library of a convolution by a method: its calls, recorded, compiled and verified."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpembed import worker
from cpembed.driver.build_result import BuildResult
from cpembed.driver.plan import MethodChoice
from cpembed.driver.run_method import judged
from cpembed.driver.solve import Progress
from cpembed.errors import LoweringError
from cpembed.export.library import Contents, write_library
from cpembed.export.loader import Library
from cpembed.export.method import method_program
from cpembed.export.program import CompiledObject, Program
from cpembed.ir.reference import random_inputs
from cpembed.kernel.compiled import described
from cpembed.kernel.host_cpu import cpu_features, needed_features
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.runtime import compile_host_object
from cpembed.measure.runner import Quantiles, time_work
from cpembed.measure.verification import Verification
from cpembed.methods.rewritten import Rewritten
from cpembed.worker import step

_ROUNDS, _ROUND_MS = 5, 10.0


@dataclass(frozen=True)
class Named:
    """Where a library goes, what it is called, and its default number of threads."""

    folder: Path
    name: str
    threads: int


@dataclass(frozen=True)
class _Made:
    program: Program
    assembly: str
    details: dict[str, Any]


def built_method(
    found: MethodChoice, named: Named, contents: Contents, report: Progress
) -> BuildResult:
    """The library of a method, verified before it is in its folder.

    Raises :class:`LoweringError` for a target that makes none, and
    :class:`~cpembed.errors.InvariantError` where its results are wrong.
    """
    made = worker.call(_programmed, found, named)
    if made is None:
        target = found.product.plan.target.spec.name
        raise LoweringError(
            f"{target} makes no libraries of {found.method.name}: take --method implicit"
        )
    contents = replace(
        contents,
        details={"method": found.method.name, **found.to_json(), "kernel": made.details},
        others={f"{named.name}.s": made.assembly},
    )
    checked: list[tuple[Verification, Quantiles]] = []

    def check(path: Path) -> None:
        report("verify", 0)
        seed = secrets.randbits(31)
        checked.append(worker.call(_verified, path, named.name, found.method, seed))

    features = made.program.features
    runs_here = cpu_features().issuperset(features)
    library = write_library(
        made.program, named.folder, contents, check=check if runs_here else None
    )
    verification, times = checked[0] if checked else (None, None)
    return BuildResult(
        found.product,
        found.product.choice,
        named.name,
        named.folder,
        library.files,
        verification,
        times,
        features=features,
        method=found,
    )


def _programmed(found: MethodChoice, named: Named) -> _Made | None:
    """The program of a method: in the worker; None where the target has no libraries of it."""
    plan, choice = found.product.plan, found.product.choice
    target, derived = plan.target, choice.candidate.program
    target.require(choice.candidate.candidate)
    with step(f"building a library of {found.method.name}", found.workload.macs):
        product = target.planned(target.lower(derived, None), choice.schedule)
        methods = target.methods
        if product is None or methods is None or target.triple is not None:
            return None
        made = methods.recorded(found.plan, product)
        if made is None:
            return None
        assembly: list[str] = []

        def compiled(kernel_plan: KernelPlan, symbol: str) -> CompiledObject:
            object_file = compile_host_object(kernel_plan, symbol)
            if symbol.endswith("_compute"):
                assembly.append(object_file.assembly())
            return CompiledObject(symbol, object_file.contents)

        features = needed_features(target.spec.cpu_features)
        program = method_program(
            named.name,
            found.method,
            made,
            compiled,
            features=features,
            threads=named.threads,
        )
    return _Made(program, assembly[0], described(product, target.spec.name))


def _verified(
    path: Path, name: str, method: Rewritten, seed: int
) -> tuple[Verification, Quantiles]:
    """A library's results beside the convolution, and the time of a call: in the worker."""
    workload = method.convolution.workload
    inputs = random_inputs(workload, seed)
    with step(f"running the library {name}", 20 * workload.macs), Library(path, name) as library:

        def called(data: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
            library.pack(*(data[info.name] for info in library.weights))
            (found,) = library.run(*(info.accepted(data[info.name]) for info in library.inputs))
            return found

        judged_output, _ = judged(method, inputs, seed, called)
        judged_output.require(f"the library of {method.name} in {workload.name}", seed)
        out = [called(inputs)]
        arrays = [info.accepted(inputs[info.name]) for info in library.inputs]
        return judged_output, time_work(lambda: library.run(*arrays, out=out), _ROUNDS, _ROUND_MS)
