"""Results of kernels and files of artifacts that targets store in forms of their own.

As in :mod:`cpembed.targets.capabilities`, a target has an ability if it defines the members of the
protocol, and the functions return the default for all other targets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cpembed.cost.ranking import RankedCandidate
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.files import write_whole
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.targets.base import Array, Execution
from cpembed.targets.capabilities import AnyTarget

# ----------------------------------------------------------------------------- results of kernels


@runtime_checkable
class OwnOutputs(Protocol):
    """Has epilogues of its own type, which it verifies itself."""

    def stored_type(self, workload: Computation, epilogue: Any) -> str:
        """Return the element type of the results."""
        ...

    def judge(self, expected: Expected, epilogue: Any, output: Array) -> Verification:
        """Compare an output with the reference."""
        ...


@runtime_checkable
class CompilerOutputs(Protocol):
    """Stores the integers that an operator of another compiler stores."""

    def exact(self, workload: Computation) -> Any:
        """Return the epilogue that stores every bit in the type of the workload's output."""
        ...

    def requantized(self, shift: int, low: int, high: int, bias: tuple[int, ...]) -> Any:
        """Return the epilogue that stores ``clip((sum + bias) >> shift, low, high)`` as int8.

        ``bias`` are the dimensions of the output that the bias varies over. None if the target
        cannot store that.
        """
        ...


def stored_type(target: AnyTarget, workload: Computation, epilogue: Any) -> str:
    """Return the element type of a target's results.

    Parameters
    ----------
    target, workload
        Target that executes the workload.
    epilogue : Any
        Epilogue in the target's own form; None for the sums.
    """
    if isinstance(target, OwnOutputs):
        return target.stored_type(workload, epilogue)
    # Without an epilogue, the sums are stored.
    return workload.output.dtype if epilogue is None else epilogue.dtype


def epilogue_vectors(
    target: AnyTarget, expected: Expected, epilogue: Any, seed: int
) -> dict[str, Array]:
    """Return random vectors (bias, scales) that an epilogue takes besides the operands.

    Parameters
    ----------
    target, epilogue
        Target and epilogue in its own form.
    expected : Expected
        Workload with its inputs.
    seed : int
        Seed of the data.
    """
    return {} if isinstance(target, OwnOutputs) else expected.vectors(epilogue, seed)


def judge(
    target: AnyTarget,
    expected: Expected,
    epilogue: Any,
    vectors: Mapping[str, Array],
    output: Array,
) -> Verification:
    """Compare an output with the reference.

    Parameters
    ----------
    target, epilogue
        Target that computed the output, and epilogue in its own form.
    expected : Expected
        Workload with its inputs.
    vectors : mapping of str to ndarray
        Vectors that the epilogue took.
    output : ndarray
        Result in its original layout.
    """
    if isinstance(target, OwnOutputs):
        return target.judge(expected, epilogue, output)
    return expected.judge_stored(output, epilogue, vectors)


def exact_epilogue(target: AnyTarget, workload: Computation) -> Any:
    """Return the epilogue that stores every bit in the type of the workload's output."""
    # All other targets store their sums, which are exact.
    return target.exact(workload) if isinstance(target, CompilerOutputs) else None


def requantized_epilogue(
    target: AnyTarget, shift: int, low: int, high: int, bias: tuple[int, ...]
) -> Any:
    """Return the epilogue of :meth:`CompilerOutputs.requantized`; None if the target has none.

    Parameters
    ----------
    target : Target
        Target of the operator.
    shift, low, high, bias
        As for that method.
    """
    if isinstance(target, CompilerOutputs):
        return target.requantized(shift, low, high, bias)
    return None


# ------------------------------------------------------------------------------ files of artifacts


@runtime_checkable
class Saveable(Protocol):
    """Writes its artifacts to files (``run --save``)."""

    instructions: str = ""
    """Text for the README that ``build`` writes: how the saved files are used."""

    def save(self, artifact: Any, path: Path) -> None:
        """Write an artifact to a file or folder. Raises :class:`LoweringError` if it has none."""
        ...


@runtime_checkable
class TorchSaveable(Protocol):
    """Writes an operator of PyTorch beside its saved artifacts (``build --torch``)."""

    def save_torch(self, path: Path) -> None:
        """Write the module of the operator into the folder of a saved artifact."""
        ...


@dataclass(frozen=True, kw_only=True)
class PackedLayer:
    """Layer whose kernels are packed for a machine that executes them elsewhere.

    Attributes
    ----------
    suite, name : str
        Suite that the layer belongs to, and its name in reports.
    words : str
        Words of a command line that name the workload.
    workload : Computation
        Its computation.
    epilogue : Any
        What is stored of the sums, in the target's own form; None for the sums.
    candidates : callable
        Returns the embeddings among which the target selects.
    best : int
        Number of kernels.
    request : mapping
        Everything that the packed files depend on.
    """

    suite: str
    name: str
    words: str
    workload: Computation
    epilogue: Any
    candidates: Callable[[], Sequence[RankedCandidate]]
    best: int
    request: Mapping[str, Any]

    @property
    def slug(self) -> str:
        """Name of the layer in files."""
        text = f"{self.name} {self.request['target']}".lower()
        return re.sub(r"[^a-z0-9]+", "-", text).strip("-")

    @property
    def kind(self) -> str:
        """Name of the operator."""
        return self.words.split()[0]

    @property
    def sizes(self) -> dict[str, list[int]]:
        """Numbers of the operator, those of two axes as two."""
        words = (word.partition("=") for word in self.words.split()[1:])
        return {
            name: [int(number) for number in value.split(",")]
            for name, _, value in words
            if value.replace(",", "").isdecimal()
        }


@runtime_checkable
class Packable(Protocol):
    """Packs kernels of many layers, with programs that check and time them elsewhere."""

    def pack_layer(self, layer: PackedLayer, root: Path) -> None:
        """Write the kernels of a layer into ``root / "layers" / layer.slug``.

        Raises :class:`LoweringError` if no embedding has a kernel. A layer that is there, on the
        same request, is left as it is.
        """
        ...

    def missing_to_pack(self) -> str | None:
        """Return what this machine lacks to pack kernels, with the remedy; None if nothing."""
        ...

    def pack_programs(self, root: Path) -> None:
        """Write the programs; the one that is called is ``run.py``."""
        ...

    def measured_report(self, document: Mapping[str, Any]) -> str:
        """Return the results of a run of these programs as text."""
        ...


@runtime_checkable
class Joining(Protocol):
    """Executes several artifacts as one, each of which stores a part of the same tensor."""

    def joined(self, artifacts: Mapping[str, Any], shape: Sequence[int]) -> Any:
        """Join artifacts, by identifiers, whose results are placed in a tensor of a shape."""
        ...

    def execute_joined(self, joined: Any, inputs: Mapping[str, Array]) -> Execution:
        """Compute the tensor; called in a worker."""
        ...

    def save_joined(
        self,
        joined: Any,
        parts: Sequence[tuple[Computation, Any]],
        path: Path,
        about: Mapping[str, Any],
    ) -> None:
        """Write joined artifacts to a folder: of each, its workload and its epilogue are given."""
        ...


def joining(target: AnyTarget) -> Joining:
    """Return a target that joins artifacts.

    Raises :class:`~cpembed.errors.BackendUnavailable` for all others.
    """
    if not isinstance(target, Joining):
        raise BackendUnavailable(
            f"{target.spec.name} computes one phase of a gradient at a time: name it (phase=0,1)"
        )
    return target


@runtime_checkable
class Traceable(Protocol):
    """Writes a timeline of a run (``run --trace``)."""

    def save_trace(self, artifact: Any, path: Path) -> None:
        """Write the timeline of an executed artifact."""
        ...


def written_files(target: AnyTarget) -> tuple[str, ...]:
    """Return the options of ``run`` for files that a target writes."""
    abilities = {"--save": Saveable, "--trace": Traceable}
    return tuple(option for option, ability in abilities.items() if isinstance(target, ability))


def save(target: AnyTarget, artifact: Any, path: Path) -> None:
    """Write an artifact to a file or folder.

    Parameters
    ----------
    target, artifact, path
        Target, what it has built, and the file or folder.

    Raises
    ------
    LoweringError
        If the target has nothing to be saved.
    """
    if not isinstance(target, Saveable):
        raise LoweringError(f"{target.spec.name} has nothing to be saved: leave the file out")
    target.save(artifact, path)


def save_trace(target: AnyTarget, artifact: Any, path: Path) -> None:
    """Write the timeline of an executed artifact.

    Parameters
    ----------
    target, artifact, path
        Target, what it has executed, and the file.

    Raises
    ------
    LoweringError
        If the target has no timeline.
    """
    if not isinstance(target, Traceable):
        raise LoweringError(f"{target.spec.name} has no timeline: leave the trace out")
    target.save_trace(artifact, path)


def describe_saved(target: AnyTarget, path: Path, about: str, *, torch: bool) -> None:
    """Write what is beside a saved artifact: a README, and an operator of PyTorch in its folder.

    Parameters
    ----------
    target : Target
    path : Path
        Folder of the artifact.
    about : str
        Sentence about what it computes.
    torch : bool
        Write the operator, if the target has one.
    """
    if torch and isinstance(target, TorchSaveable):
        target.save_torch(path)
    text = f"# {path.name}\n\n{about}\n\n{saved_file_instructions(target)}\n"
    write_whole(path.parent / "README.md", text)


def saved_file_instructions(target: AnyTarget) -> str:
    """Return how the files that a target saves are used."""
    return target.instructions if isinstance(target, Saveable) else ""
