"""Chains of two products: the choice of a kernel, and its verified execution.

>>> chain = named_chain("mlp m=64 k=32 n=64 p=32", "mma_f16")
>>> chain.factors, chain.middle
('float16', 'H')
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.blocks import Displayed
from cpembed.driver.named import hardware_spec, is_typed
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export.program import require_name
from cpembed.files import make_folder
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import is_integer
from cpembed.provenance import Provenance
from cpembed.runtime import worker
from cpembed.steps import PhaseProgress as Progress
from cpembed.steps import silent, step
from cpembed.targets.base import Row
from cpembed.targets.chains import ChainCandidate, ChainChoice, chaining
from cpembed.targets.outputs import describe_saved
from cpembed.targets.registry import open_target
from cpembed.workloads.chain_families import parse_chain
from cpembed.workloads.chains import TOLERANCES, Definition, ProductChain, definition

Array = NDArray[Any]


def named_chain(words: str | Sequence[str], target: str | HardwareSpec) -> ProductChain:
    """Return the chain that words name, of the target's first element type unless they name one.

    Raises
    ------
    WorkloadError
        If the words are wrong.
    BackendUnavailable
        If the target makes no kernels of chains.
    """
    parts = words.split() if isinstance(words, str) else " ".join(words).split()
    spec = hardware_spec(target)
    # Before the words are read: the element types of other targets need not be those of chains.
    chaining(open_target(spec))
    if not is_typed(parts):
        instruction = spec.instruction
        dtype = instruction.dtypes[instruction.computation.inputs[0].name][0]
        parts = [*parts, f"dtype={dtype}"]
    return parse_chain(parts)


@dataclass(frozen=True, repr=False, kw_only=True)
class ChainResult(Displayed):
    """Pairs of embeddings of a chain, and the kernels of them.

    Attributes
    ----------
    chain : ProductChain
    target : HardwareSpec
    choice : ChainChoice
    """

    chain: ProductChain
    target: HardwareSpec
    choice: ChainChoice

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``solve --json``."""
        return {
            "workload": str(self.chain),
            "target": self.target.name,
            "inputs": {
                name: {"shape": list(shape), "dtype": dtype}
                for name, (shape, dtype) in self.chain.inputs.items()
            },
            "macs": self.chain.macs,
            "provenance": Provenance.ESTIMATED.value,
            **self.choice.to_json(),
        }


@dataclass(frozen=True, repr=False, kw_only=True)
class ChainRun(Displayed):
    """Verified execution of a chain's kernel, or of its products' kernels.

    Attributes
    ----------
    solved : ChainResult
    candidate : ChainCandidate
        What was executed.
    seed : int
        Seed of the data.
    error, tolerance : float
        Largest error relative to the largest sum or result, and what is allowed; 0 for integers,
        which are equal bit for bit.
    provenance : Provenance
    rows : sequence of (str, str)
        Lines of the target about the execution.
    """

    solved: ChainResult
    candidate: ChainCandidate
    seed: int
    error: float
    tolerance: float
    provenance: Provenance
    rows: Sequence[Row]

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``run --json``."""
        return {
            **self.solved.to_json(),
            "executed": self.candidate.to_json(),
            "fused": self.candidate is not self.solved.choice.unfused,
            "verified": True,
            "max_error": self.error,
            "tolerance": self.tolerance,
            "seed": self.seed,
            "execution": self.provenance.value,
            "details": dict(self.rows),
        }


def solve_chain(
    chain: ProductChain, target: str | HardwareSpec, machine: str | None = None
) -> ChainResult:
    """Pair the embeddings of a chain's products, and rank kernels of them by estimates.

    Parameters
    ----------
    chain : ProductChain
        From :func:`named_chain`.
    target : str or HardwareSpec
        Target by name, file or value.
    machine : str, optional
        Machine that times are estimated for; by default the target's first.

    Raises
    ------
    BackendUnavailable
        If the target makes no kernels of chains.
    LoweringError
        If the instruction fits one of the products in no way.
    """
    spec = hardware_spec(target, machine=machine)
    choice = chaining(open_target(spec)).chain_choice(chain)
    return ChainResult(chain=chain, target=spec, choice=choice)


def run_chain(
    chain: ProductChain,
    target: str | HardwareSpec,
    *,
    machine: str | None = None,
    seed: int | None = None,
    save: Path | None = None,
    fuse: bool | None = None,
    progress: Progress | None = None,
) -> ChainRun | ChainResult:
    """Build the best kernels of a chain, execute it, and compare its result with the definition.

    Parameters
    ----------
    chain, target, machine
        As in :func:`solve_chain`.
    seed : int, optional
        Seed of the data; by default fresh data.
    save : Path, optional
        Folder for the kernel.
    fuse : bool, optional
        True for one kernel, False for a kernel of each product; by default what is estimated to be
        faster.
    progress : callable, optional
        Called with the stage and a count.

    Returns
    -------
    ChainRun or ChainResult
        The choice if there are no such kernels.

    Raises
    ------
    BackendUnavailable
        If this machine cannot execute the target.
    InvariantError
        If a result is wrong.
    """
    report = progress or silent
    report("search", 0)
    solved = solve_chain(chain, target, machine)
    candidate = solved.choice.candidate(fuse=fuse)
    if candidate is None:
        return solved
    missing = open_target(solved.target).missing()
    if missing:
        raise BackendUnavailable("; ".join(missing))
    report("build", 0)
    number = secrets.randbits(31) if seed is None else seed
    error, provenance, rows = worker.call(
        _execute, chain, solved.target, candidate, number, save, progress=report
    )
    return ChainRun(
        solved=solved,
        candidate=candidate,
        seed=number,
        error=error,
        tolerance=TOLERANCES.get(chain.factors, 0.0),
        provenance=provenance,
        rows=rows,
    )


def build_chain(
    chain: ProductChain,
    target: str | HardwareSpec,
    path: Path,
    *,
    torch: bool = False,
    machine: str | None = None,
    fuse: bool | None = None,
    progress: Progress | None = None,
) -> ChainRun | ChainResult:
    """Save the kernels of a chain after they were verified, with a README beside their folder.

    Parameters
    ----------
    chain, target, machine, fuse, progress
        As in :func:`run_chain`.
    path : Path
        Folder of the kernels, with whose name those of the kernels and files begin.
    torch : bool, optional
        Write an operator of PyTorch too.

    Returns
    -------
    ChainRun or ChainResult
        As from :func:`run_chain`.

    Raises
    ------
    WorkloadError
        If ``path`` ends in no identifier.
    CpembedError
        If the folder cannot be written, and as :func:`run_chain` raises.
    """
    require_name(path.name)
    make_folder(path.parent)
    result = run_chain(chain, target, machine=machine, save=path, fuse=fuse, progress=progress)
    if isinstance(result, ChainRun):
        opened = open_target(result.solved.target)
        describe_saved(opened, path, f"`{chain}` by {opened.spec.name}.", torch=torch)
    return result


def _execute(
    chain: ProductChain,
    target: HardwareSpec,
    candidate: ChainCandidate,
    seed: int,
    save: Path | None,
    progress: Progress,
) -> tuple[float, Provenance, Sequence[Row]]:
    """Build, execute and verify a kernel; called in the worker."""
    executing = chaining(open_target(target))
    artifact = executing.build_chain(candidate)
    inputs = chain.random_inputs(seed)
    progress("verify", 0)
    expected = definition(chain, inputs)
    with step("running the kernel of a chain", chain.macs):
        execution = executing.execute_chain(artifact, inputs)
    error = max(largest_error(output, expected) for output in execution.outputs)
    limit = TOLERANCES.get(chain.factors, 0.0)
    # Written so that a NaN is rejected too.
    if not error <= limit:
        raise InvariantError(
            f"the kernel of {chain.name} is wrong by {error:.3g} of the largest result (seed "
            f"{seed}): please report this"
        )
    if save is not None:
        executing.save_chain(artifact, save)
    return error, execution.provenance, executing.chain_rows(artifact)


def largest_error(output: Array, expected: Definition) -> float:
    """Return the largest relative error of a result; of integers, how many differ."""
    if is_integer(str(output.dtype)):
        return float(np.count_nonzero(output != expected.result))
    error = float(np.abs(output.astype(np.float64) - expected.result).max())
    return error / (expected.largest or 1.0)
