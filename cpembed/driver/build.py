"""Build a deliverable of a workload: a library of its kernel, or the target's own program.

>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> with TemporaryDirectory() as folder:
...     result = build(layer, "vta_1x16x16", Path(folder), backend="generic")
>>> result.verification.verified, result.files[0]
(True, 'libkernel.so')
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.compiled import described
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.host_cpu import (
    architecture,
    built_for,
    host_architecture,
    named_processor,
    needed_features,
    runs_here,
)
from cpembed.codegen.packing import packed_before
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_host_object, compile_object
from cpembed.driver.build_method import LibraryOptions, build_method, call_library, time_library
from cpembed.driver.build_result import BuildResult
from cpembed.driver.methods import chosen_method
from cpembed.driver.options import BuildOptions, merged
from cpembed.driver.pipeline import Files, execute
from cpembed.driver.plan import AnyTarget, MethodChoice, Plan, Request, Selection
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress
from cpembed.errors import LoweringError, WorkloadError
from cpembed.export.example import REPEATED, product_reference
from cpembed.export.library import (
    Contents,
    drafted,
    has_compiler,
    write_library,
    write_sources,
)
from cpembed.export.loader import Library
from cpembed.export.program import (
    CompiledObject,
    Program,
    kernel_program,
    require_name,
    vector_name,
)
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.ir.reference import random_inputs
from cpembed.runtime import worker
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.steps import silent, step
from cpembed.targets.capabilities import (
    Linkable,
    cross_triple,
    planned_kernel,
    require_candidate,
)
from cpembed.targets.choice import Choice, built_first
from cpembed.targets.outputs import (
    TorchSaveable,
    describe_saved,
    epilogue_vectors,
    judge,
)
from cpembed.targets.verification import verified, worst_judged


def build(
    workload: Computation,
    target: str | HardwareSpec,
    folder: Path,
    options: BuildOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> BuildResult | SolveResult:
    """Search, select a candidate as :func:`~cpembed.driver.run.run` does, and write its files.

    For a kernel of this machine's CPU that is the library ``lib<name>.so`` with its header, an
    example, a Python loader and, with ``torch``, an operator for PyTorch; it is verified on random
    data before anything is written. For another machine's CPU, the folder has the sources and
    objects that the same library is linked from there; for any other target, its program.

    Parameters
    ----------
    workload, target, progress
        As for :func:`~cpembed.driver.solve.solve`.
    folder : Path
        Folder to write to; files of the same names are replaced.
    options : BuildOptions, optional
        Settings of search and library; its fields may also be given as keywords.

    Returns
    -------
    BuildResult or SolveResult
        Files with their verification; the search's result if nothing that runs was found.

    Raises
    ------
    BackendUnavailable
        If there is no C compiler.
    CpembedError
        If the folder cannot be written, and as :func:`~cpembed.driver.run.run` raises.
    """
    options = merged(BuildOptions, options, keywords)
    name, threads, torch = options.name, options.threads, options.torch
    require_name(name)
    request = Request(workload, target, options, progress=progress)
    _require_applicable(request, options)
    worker.prepare()
    outcome = chosen_method(request, options.method)
    if isinstance(outcome, SolveResult):
        return outcome
    selection, compared = outcome
    report: Progress = progress or silent
    report("build", 0)
    if compared is not None and compared.rewritten is not None:
        contents = Contents(torch=torch, about=_description(selection, compared.rewritten))
        library = LibraryOptions(folder, name, threads)
        return build_method(compared.rewritten, library, contents, report)
    program = worker.call(_compile, selection.plan, name, threads)
    if isinstance(program, str):
        portable = selection.plan.portable(program)
        selection = Selection(selection.solved, portable, selection.substitution)
        program = worker.call(_compile, selection.plan, name, threads)
    if isinstance(program, str):
        raise LoweringError(program)
    if program is None:
        return _save_program(selection, folder, name, report, torch=torch)
    return _write_library(selection, program, folder, report, torch=torch)


def _require_applicable(request: Request, options: BuildOptions) -> None:
    """Raise :class:`WorkloadError` for an option of libraries if the target writes programs."""
    target = request.execution.target
    if isinstance(target, Linkable):
        return
    applies_not = {
        "--threads": options.threads > 0,
        "--cpu": named_processor() is not None,
        "--torch": options.torch and not isinstance(target, TorchSaveable),
    }
    for option, is_set in applies_not.items():
        if is_set:
            raise WorkloadError(
                f"{option} is for libraries of processors, and {target.spec.name} has none: "
                "leave it out"
            )


@dataclass(frozen=True)
class _CompiledProgram:
    """Program of a library, with what its README reports.

    That is the candidate and schedule, the assembly of the inner kernel, and the target's details.
    """

    program: Program
    choice: Choice
    assembly: str
    details: dict[str, Any]


def _compile(plan: Plan, name: str, threads: int) -> _CompiledProgram | str | None:
    """Compile the first choice that has a program; in the worker.

    Return the reason if none has one and portable code may stand in, None if the target's programs
    are not libraries.
    """
    failed: list[str] = []
    for choice in plan.choices:
        require_candidate(plan.target, choice.ranked.candidate)
        try:
            return _compile_choice(plan, choice, name, threads)
        except LoweringError as error:
            if plan.insists:
                raise
            failed.append(str(error))
    return failed[0]


def _compile_choice(plan: Plan, choice: Choice, name: str, threads: int) -> _CompiledProgram | None:
    """Compile one choice; None if the target's programs are not libraries."""
    target = plan.target
    triple, derived = cross_triple(target), choice.ranked.program
    with step(f"building a library of {target.spec.name}", derived.workload.macs):
        lowered = target.lower(derived, plan.epilogue)
        kernel = planned_kernel(target, lowered, choice.schedule)
        if kernel is None:
            return None
        assembly: list[str] = []

        def compiled(kernel_plan: KernelPlan, symbol: str) -> CompiledObject:
            if triple is None:
                code = compile_host_object(kernel_plan, symbol)
            else:
                code = compile_object(kernel_plan, triple, symbol)
            # The assembly file shows the contraction only, which has the target's instruction.
            if symbol.endswith("_compute"):
                assembly.append(code.assembly())
            return CompiledObject(symbol, code.contents)

        required = target.spec.cpu_features if plan.native else ()
        features = needed_features(required) if triple is None else ()
        ahead = packed_before(derived.workload)
        program = kernel_program(name, kernel, ahead, compiled, features=features, threads=threads)
    return _CompiledProgram(program, choice, assembly[0], described(kernel, target.spec.name))


def _write_library(
    selection: Selection,
    compiled: _CompiledProgram,
    folder: Path,
    report: Progress,
    *,
    torch: bool,
) -> BuildResult:
    """Write the library of a program; it is verified before it enters its folder."""
    plan, program, solved = selection.plan, compiled.program, selection.solved
    workload, target = solved.workload, plan.target
    reference = None
    if plan.epilogue is None or isinstance(plan.epilogue, Epilogue):
        reference = product_reference(program, workload, plan.epilogue)
    contents = Contents(
        torch=torch,
        reference=reference or REPEATED,
        about=_description(selection),
        details=compiled.details,
        further={f"{program.name}.s": compiled.assembly},
    )
    result = partial(
        BuildResult,
        selection=selection,
        choice=compiled.choice,
        name=program.name,
        folder=folder,
        features=program.features,
    )
    if cross_triple(target) is not None or architecture() != host_architecture():
        # An emulator of this machine executes the same kernel.
        with built_for(None):
            verification = None
            if not target.missing():
                verification = worker.call(_verify_emulated, plan, compiled.choice, workload)
        linked = cross_triple(target) is None and has_compiler()
        write = write_library if linked else write_sources
        library = write(program, folder, contents)
        return result(files=library.files, verification=verification, linked=linked)
    verified_times: list[tuple[Verification, Quantiles]] = []

    def check(path: Path) -> None:
        report("verify", 0)
        subject = target, workload, plan.epilogue
        verified_times.append(
            worker.call(verify_library, path, program.name, *subject, secrets.randbits(31))
        )

    checked = check if runs_here(program.features) else None
    library = write_library(program, folder, contents, check=checked)
    verification, times = verified_times[0] if verified_times else (None, None)
    return result(files=library.files, verification=verification, call_us=times)


def _description(selection: Selection, method: MethodChoice | None = None) -> str:
    """Describe in sentences what a library computes, for its README and header."""
    plan, solved = selection.plan, selection.solved
    workload = solved.workload if method is None else method.workload
    epilogue = f" Stored is: {plan.epilogue}." if isinstance(plan.epilogue, Epilogue) else ""
    means = f"the instruction of {solved.target.name}" if plan.native else "portable code"
    if method is not None:
        means = f"the method {method.method.name} and {means}"
    sizes = " ".join(f"{name}={size}" for name, size in workload.extents.items())
    return f"`{workload}` with {sizes}, by {means}.{epilogue}"


def verify_library(
    path: Path,
    name: str,
    target: AnyTarget,
    workload: Computation,
    epilogue: Any,
    seed: int,
) -> tuple[Verification, Quantiles]:
    """Verify a library on random data, with and without special values, and time it; in the worker.

    Parameters
    ----------
    path : Path
        Shared library.
    name : str
        Name that its functions begin with.
    target : Target
        Target of the kernel, which judges its results.
    workload : Computation
        Computation of the library.
    epilogue : Epilogue or None
        Epilogue in the target's own form; None for the plain sums.
    seed : int
        Seed of the random data.

    Returns
    -------
    Verification, Quantiles
        The worse verification of both, and the microseconds of a call.

    Raises
    ------
    InvariantError
        If the results are wrong.
    """
    inputs = random_inputs(workload, seed)
    vectors = epilogue_vectors(target, Expected(workload, inputs), epilogue, seed)
    named = {vector_name(workload, key): vector for key, vector in vectors.items()}
    finite = isinstance(epilogue, Epilogue) and is_integer(epilogue.dtype)
    with step(f"running the library {name}", 20 * workload.macs), Library(path, name) as library:

        def judged_on(data: Mapping[str, NDArray[Any]]) -> list[Verification]:
            output = _typed(call_library(library, {**data, **named}), library)
            return [judge(target, Expected(workload, data), epilogue, vectors, output)]

        judged = worst_judged(workload, inputs, seed, judged_on, finite=finite)
        judged.require(f"the library of {target.spec.name} in {workload.name}", seed)
        return judged, time_library(library, {**inputs, **named})


def _verify_emulated(plan: Plan, choice: Choice, workload: Computation) -> Verification:
    """Verify another machine's kernel with the target's emulator; in the worker.

    Raises :class:`InvariantError` if the results are wrong.
    """
    target, seed = plan.target, secrets.randbits(31)
    artifact, _ = built_first(target, [choice], plan.epilogue)
    judged, _ = verified(target, artifact, workload, plan.epilogue, seed)
    judged.require(f"the kernel of {target.spec.name} in {workload.name}", seed)
    return judged


def _typed(array: Any, library: Library) -> Any:
    """Return an output as the type that the library names: it returns bfloat16 as raw bits."""
    from cpembed.ir.dtypes import numpy_dtype

    dtype = numpy_dtype(library.outputs[0].dtype)
    return array if array.dtype == dtype else array.view(dtype)


def _save_program(
    selection: Selection, folder: Path, name: str, report: Progress, *, torch: bool
) -> BuildResult:
    """Verify and save the program of a target that has no libraries."""
    with drafted(folder):
        # Nothing is drafted: this fails now, before the run, if the folder cannot be written.
        pass
    files = Files(save=folder / name)
    seed = secrets.randbits(31)
    run = worker.call(execute, selection.solved, selection.plan, seed, files, progress=report)
    about = _description(selection)
    describe_saved(selection.plan.target, folder / name, about, torch=torch)
    saved = _files_below(folder / name)
    return BuildResult(
        selection=selection,
        choice=run.choice,
        name=name,
        folder=folder,
        files=(*(f"{name}/{file}" for file in saved), "README.md"),
        verification=run.verification,
        linked=False,
        run=run,
    )


def _files_below(path: Path) -> Sequence[str]:
    """Return the sorted names in a folder; none if a target saved no files."""
    return sorted(file.name for file in path.iterdir()) if path.is_dir() else []
