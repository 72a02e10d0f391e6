"""Build a library of a convolution by a method: record its calls, compile and verify them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.compiled import described
from cpembed.codegen.host_cpu import (
    architecture,
    host_architecture,
    needed_features,
    runs_here,
)
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_host_object
from cpembed.driver.build_result import BuildResult
from cpembed.driver.plan import MethodChoice
from cpembed.driver.run import judged
from cpembed.driver.solve import Progress
from cpembed.errors import LoweringError
from cpembed.export.library import Contents, has_compiler, write_library, write_sources
from cpembed.export.loader import Library
from cpembed.export.program import CompiledObject, Program, method_program
from cpembed.ir.reference import random_inputs
from cpembed.runtime import worker
from cpembed.runtime.measurement.runner import Quantiles, time_work
from cpembed.runtime.measurement.verification import Verification
from cpembed.steps import step
from cpembed.targets.capabilities import links_here, planned_kernel, require_candidate
from cpembed.targets.methods import methods_of
from cpembed.transform.methods.convolution import Rewritten

_ROUNDS, _ROUND_MS = 9, 5.0
"""Rounds, and milliseconds of each, to time a library: enough for the order of its time."""


@dataclass(frozen=True)
class LibraryOptions:
    """Folder and name of a library, and its default number of threads."""

    folder: Path
    name: str
    threads: int


@dataclass(frozen=True)
class _CompiledProgram:
    """A program of a library, the assembly of its product, and details for its README."""

    program: Program
    assembly: str
    details: dict[str, Any]


def build_method(
    method: MethodChoice, options: LibraryOptions, contents: Contents, report: Progress
) -> BuildResult:
    """Build the library of a method; it is verified before it enters its folder.

    Parameters
    ----------
    method : MethodChoice
        Rewritten convolution, with the candidate of its product.
    options : LibraryOptions
        Folder, name and threads of the library.
    contents : Contents
        Contents of the folder, to which details and assembly are added.
    report : callable
        Called with each stage and a count.

    Returns
    -------
    BuildResult
        Files with their verification.

    Raises
    ------
    LoweringError
        If the target has no libraries of the method.
    InvariantError
        If the results are wrong.
    """
    compiled = worker.call(_compile, method, options)
    if compiled is None:
        target = method.product.plan.target.spec.name
        raise LoweringError(
            f"{target} makes no libraries of {method.method.name}: take --method implicit"
        )
    contents = replace(
        contents,
        details={"method": method.method.name, **method.to_json(), "kernel": compiled.details},
        further={f"{options.name}.s": compiled.assembly},
    )
    verified_times: list[tuple[Verification, Quantiles]] = []

    def check(path: Path) -> None:
        report("verify", 0)
        seed = secrets.randbits(31)
        verified_times.append(worker.call(_verify, path, options.name, method.method, seed))

    features = compiled.program.features
    if architecture() != host_architecture() and not has_compiler():
        library = write_sources(compiled.program, options.folder, contents)
    else:
        checked = check if runs_here(features) else None
        library = write_library(compiled.program, options.folder, contents, check=checked)
    verification, times = verified_times[0] if verified_times else (None, None)
    return BuildResult(
        selection=method.product,
        choice=method.product.choice,
        name=options.name,
        folder=options.folder,
        files=library.files,
        verification=verification,
        call_us=times,
        features=features,
        linked="Makefile" not in library.files,
        method=method,
    )


def _compile(method: MethodChoice, options: LibraryOptions) -> _CompiledProgram | None:
    """Compile a method, in the worker; None if the target has no libraries of it."""
    plan, choice = method.product.plan, method.product.choice
    target, derived = plan.target, choice.ranked.program
    require_candidate(target, choice.ranked.candidate)
    with step(f"building a library of {method.method.name}", method.workload.macs):
        product = planned_kernel(target, target.lower(derived, None), choice.schedule)
        methods = methods_of(target)
        if product is None or methods is None or not links_here(target):
            return None
        calls = methods.recorded(method.plan, product)
        if calls is None:
            return None
        assembly: list[str] = []

        def compiled(kernel_plan: KernelPlan, symbol: str) -> CompiledObject:
            object_file = compile_host_object(kernel_plan, symbol)
            if symbol.endswith("_compute"):
                assembly.append(object_file.assembly())
            return CompiledObject(symbol, object_file.contents)

        features = needed_features(target.spec.cpu_features)
        program = method_program(
            options.name,
            method.method,
            calls,
            compiled,
            features=features,
            threads=options.threads,
        )
    return _CompiledProgram(program, assembly[0], described(product, target.spec.name))


def _verify(path: Path, name: str, method: Rewritten, seed: int) -> tuple[Verification, Quantiles]:
    """Verify a library against the convolution, and return the time of a call; in the worker."""
    workload = method.convolution.workload
    inputs = random_inputs(workload, seed)
    with step(f"running the library {name}", 20 * workload.macs), Library(path, name) as library:

        def call(data: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
            return call_library(library, data)

        verification, _ = judged(method, inputs, seed, call)
        verification.require(f"the library of {method.name} in {workload.name}", seed)
        return verification, time_library(library, inputs)


def call_library(library: Library, data: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Pack the weights among the inputs, and return the output of a library."""
    if library.weights:
        library.pack(*(data[info.name] for info in library.weights))
    (output,) = library.run(*(info.accepted(data[info.name]) for info in library.inputs))
    return output


def time_library(library: Library, data: Mapping[str, NDArray[Any]]) -> Quantiles:
    """Return the microseconds of a call of a library."""
    out = [call_library(library, data)]
    arrays = [info.accepted(data[info.name]) for info in library.inputs]
    # A call of a second or more is known well enough from one round.
    started = time.perf_counter()
    library.run(*arrays, out=out)
    rounds = _ROUNDS if time.perf_counter() - started < 1 else 1
    return time_work(lambda: library.run(*arrays, out=out), rounds, _ROUND_MS)
