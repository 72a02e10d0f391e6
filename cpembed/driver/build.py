"""Build what people take away: a library of a kernel, or what else a target's programs are.

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
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpembed import worker
from cpembed.driver.build_method import Named, built_method
from cpembed.driver.build_result import BuildResult
from cpembed.driver.methods import chosen_method
from cpembed.driver.options import BuildOptions, merged
from cpembed.driver.pipeline import Files, execute
from cpembed.driver.plan import MethodChoice, Plan, Selection
from cpembed.driver.request import AnyTarget, Request
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress
from cpembed.embedding.result import silent
from cpembed.errors import LoweringError
from cpembed.export.example import REPEATED, product_reference
from cpembed.export.kernel import kernel_program, vector_name
from cpembed.export.library import Contents, drafted, write_library, write_sources
from cpembed.export.loader import Library
from cpembed.export.program import CompiledObject, Program, require_name
from cpembed.files import write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.ir.reference import random_inputs
from cpembed.kernel.compiled import described
from cpembed.kernel.epilogue import Epilogue
from cpembed.kernel.host_cpu import cpu_features, needed_features
from cpembed.kernel.packing import packed_before
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.runtime import compile_host_object, compile_object
from cpembed.measure.runner import Quantiles, time_work
from cpembed.measure.verification import Expected, Verification
from cpembed.targets.choice import Choice, built_first
from cpembed.targets.verification import verified, worst_judged
from cpembed.worker import step

_ROUNDS, _ROUND_MS = 9, 5.0
"""Of a library that is timed: enough to say of what order its time is."""


def build(
    workload: Computation,
    target: str | HardwareSpec,
    folder: Path,
    options: BuildOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> BuildResult | SolveResult:
    """Search, choose a candidate as :func:`~cpembed.driver.run.run` does, and write what people
    take away.

    Of a kernel for this machine that is the library ``lib<name>.so`` with its header, an example,
    a Python loader and, with ``torch``, an operator of PyTorch; it is verified on random data
    before anything is written. Of a kernel for another machine it is what the same library is made
    of there; of another target's program, the program.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    folder : Path
        Folder that is written; files of the same names are replaced.
    options : BuildOptions, optional
        What to build and how; its fields may also be given as keywords.
    progress : callable, optional
        Called at each step with the stage and a count.

    Returns
    -------
    BuildResult or SolveResult
        The search's result if it found nothing that runs.

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
    worker.prepare()
    found = chosen_method(request, options.method)
    if isinstance(found, SolveResult):
        return found
    chosen, compared = found
    report: Progress = progress or silent
    report("build", 0)
    if compared is not None and compared.rewritten is not None:
        about = _about(chosen, compared.rewritten)
        contents = Contents(torch=torch, about=about)
        return built_method(compared.rewritten, Named(folder, name, threads), contents, report)
    made = worker.call(_programmed, chosen.plan, name, threads)
    if isinstance(made, str):
        chosen = Selection(chosen.solved, chosen.plan.portable(made), chosen.instead)
        made = worker.call(_programmed, chosen.plan, name, threads)
    if isinstance(made, str):
        raise LoweringError(made)
    if made is None:
        return _saved(chosen, folder, name, report)
    return _written(chosen, made, folder, report, torch=torch)


@dataclass(frozen=True)
class _Made:
    """A program, the choice that it is of, its machine code, and what its buffers are."""

    program: Program
    choice: Choice
    assembly: str
    details: dict[str, Any]


def _programmed(plan: Plan, name: str, threads: int) -> _Made | str | None:
    """The program of the first choice that has one: in the worker. None where the target's
    programs are no libraries, and why there is none where portable code may stand in."""
    failed: list[str] = []
    for choice in plan.choices:
        plan.target.require(choice.candidate.candidate)
        try:
            return _program_of(plan, choice, name, threads)
        except LoweringError as error:
            if plan.insists:
                raise
            failed.append(str(error))
    return failed[0]


def _program_of(plan: Plan, choice: Choice, name: str, threads: int) -> _Made | None:
    target = plan.target
    derived = choice.candidate.program
    with step(f"building a library of {target.spec.name}", derived.workload.macs):
        lowered = target.lower(derived, plan.epilogue)
        kernel = target.planned(lowered, choice.schedule)
        if kernel is None:
            return None
        assembly: list[str] = []

        def compiled(kernel_plan: KernelPlan, symbol: str) -> CompiledObject:
            if target.triple is None:
                found = compile_host_object(kernel_plan, symbol)
            else:
                found = compile_object(kernel_plan, target.triple, symbol)
            if symbol.endswith("_compute"):
                assembly.append(found.assembly())
            return CompiledObject(symbol, found.contents)

        asked = target.spec.cpu_features if plan.native else ()
        features = needed_features(asked) if target.triple is None else ()
        ahead = packed_before(derived.workload)
        program = kernel_program(name, kernel, ahead, compiled, features=features, threads=threads)
    return _Made(program, choice, assembly[0], described(kernel, target.spec.name))


def _written(
    chosen: Selection, made: _Made, folder: Path, report: Progress, *, torch: bool
) -> BuildResult:
    """The library of a program, verified before it is in its folder."""
    plan, program, solved = chosen.plan, made.program, chosen.solved
    workload, target = solved.workload, plan.target
    reference = None
    if plan.epilogue is None or isinstance(plan.epilogue, Epilogue):
        reference = product_reference(program, workload, plan.epilogue)
    contents = Contents(
        torch=torch,
        reference=reference or REPEATED,
        about=_about(chosen),
        details=made.details,
        others={f"{program.name}.s": made.assembly},
    )
    if target.triple is not None:
        judged = worker.call(_emulated, plan, made.choice, workload)
        library = write_sources(program, folder, contents)
        return BuildResult(
            chosen, made.choice, program.name, folder, library.files, judged, linked=False
        )
    found: list[tuple[Verification, Quantiles]] = []

    def check(path: Path) -> None:
        report("verify", 0)
        subject = target, workload, plan.epilogue
        found.append(
            worker.call(verify_library, path, program.name, *subject, secrets.randbits(31))
        )

    runs_here = cpu_features().issuperset(program.features)
    library = write_library(program, folder, contents, check=check if runs_here else None)
    verification, times = found[0] if found else (None, None)
    return BuildResult(
        chosen,
        made.choice,
        program.name,
        folder,
        library.files,
        verification,
        times,
        features=program.features,
    )


def _about(chosen: Selection, method: MethodChoice | None = None) -> str:
    """What a library computes, in sentences."""
    plan, solved = chosen.plan, chosen.solved
    workload = solved.workload if method is None else method.workload
    known = isinstance(plan.epilogue, Epilogue)
    stored = f" Stored is: {plan.epilogue}." if known else ""
    how = f"the instruction of {solved.target.name}" if plan.native else "portable code"
    how = how if method is None else f"the method {method.method.name} and {how}"
    sizes = " ".join(f"{name}={size}" for name, size in workload.extents.items())
    return f"`{workload}` with {sizes}, by {how}.{stored}"


def verify_library(
    path: Path,
    name: str,
    target: AnyTarget,
    workload: Computation,
    epilogue: Any,
    seed: int,
) -> tuple[Verification, Quantiles]:
    """A library's results beside the reference on random data of a seed, and on the same with
    special values, and the time of a call: in the worker.

    Raises :class:`InvariantError` where they are wrong.
    """
    inputs = random_inputs(workload, seed)
    vectors = target.vectors(Expected(workload, inputs), epilogue, seed)
    named = {vector_name(workload, key): vector for key, vector in vectors.items()}
    finite = isinstance(epilogue, Epilogue) and is_integer(epilogue.dtype)
    with step(f"running the library {name}", 20 * workload.macs), Library(path, name) as library:

        def judged_on(data: Mapping[str, NDArray[Any]]) -> list[Verification]:
            found = _typed(call_library(library, {**data, **named}), library)
            return [target.judge(Expected(workload, data), epilogue, vectors, found)]

        judged = worst_judged(workload, inputs, seed, judged_on, finite=finite)
        judged.require(f"the library of {target.spec.name} in {workload.name}", seed)
        out = [call_library(library, {**inputs, **named})]
        arrays = [info.accepted({**inputs, **named}[info.name]) for info in library.inputs]
        started = time.perf_counter()
        library.run(*arrays, out=out)
        rounds = _ROUNDS if time.perf_counter() - started < 1 else 1
        return judged, time_work(lambda: library.run(*arrays, out=out), rounds, _ROUND_MS)


def call_library(library: Library, data: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The output of a library for its inputs, of which it packs its weights anew."""
    if library.weights:
        library.pack(*(data[info.name] for info in library.weights))
    (found,) = library.run(*(info.accepted(data[info.name]) for info in library.inputs))
    return found


def _emulated(plan: Plan, choice: Choice, workload: Computation) -> Verification:
    """What another machine's kernel computes, which something executes here: in the worker.

    Raises :class:`InvariantError` where that is wrong.
    """
    target, seed = plan.target, secrets.randbits(31)
    artifact, _ = built_first(target, [choice], plan.epilogue)
    judged, _ = verified(target, artifact, workload, plan.epilogue, seed)
    judged.require(f"the kernel of {target.spec.name} in {workload.name}", seed)
    return judged


def _typed(array: Any, library: Library) -> Any:
    """An output of the type that the library names: bfloat16 comes as bits."""
    from cpembed.ir.dtypes import numpy_dtype

    dtype = numpy_dtype(library.outputs[0].dtype)
    return array if array.dtype == dtype else array.view(dtype)


def _saved(chosen: Selection, folder: Path, name: str, report: Progress) -> BuildResult:
    """What a target's own programs are, after they were verified: it has no libraries."""
    with drafted(folder):
        """The folder is there, and can be written."""
    files = Files(save=folder / name)
    seed = secrets.randbits(31)
    found = worker.call(execute, chosen.solved, chosen.plan, seed, files, progress=report)
    text = f"# {name}\n\n{_about(chosen)}\n\n{chosen.plan.target.instructions}\n"
    write_whole(folder / "README.md", text)
    saved = _files_below(folder / name)
    return BuildResult(
        chosen,
        found.choice,
        name,
        folder,
        (*(f"{name}/{file}" for file in saved), "README.md"),
        found.verification,
        linked=False,
        run=found,
    )


def _files_below(path: Path) -> Sequence[str]:
    return sorted(file.name for file in path.iterdir()) if path.is_dir() else []
