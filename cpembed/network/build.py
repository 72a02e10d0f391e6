"""Build a model's library: prepare the graph for a target, plan, compile, link, load."""

from __future__ import annotations

import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from cpembed.driver import matching
from cpembed.errors import BackendUnavailable, CpembedError, LoweringError, WorkloadError
from cpembed.export.library import EVERYTHING, Contents, Library, write_library
from cpembed.export.loader import Library as OpenLibrary
from cpembed.export.loader import aligned
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import CacheUpdate, Foreign
from cpembed.graph.loop import Loop
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import as_stored, as_typed
from cpembed.network.plan import NetworkPlan, Planning, plan_network
from cpembed.network.program import NetworkProgram, network_program
from cpembed.steps import Progress, silent
from cpembed.targets.capabilities import links_here
from cpembed.targets.chains import makes_attention
from cpembed.targets.registry import missing_for, open_target
from cpembed.targets.units import NATIVE, Units

if TYPE_CHECKING:
    from cpembed.network.parts import PartedNetwork


@dataclass(frozen=True)
class CompiledNetwork:
    """Library of a network, with the plan and the program that it was made from."""

    plan: NetworkPlan
    network: NetworkProgram
    library: Library

    @property
    def graph(self) -> Graph:
        """Network that was compiled."""
        return self.plan.graph

    def open(self, threads: int = 0) -> RunningNetwork:
        """Load the library, for as many ``threads`` as it was planned for if 0.

        Raises :class:`~cpembed.errors.CpembedError` if another library was written in its place.
        """
        # Its plan says how inputs and outputs lie in memory, so another one would be misread.
        if self.library.is_replaced:
            raise CpembedError(
                f"{self.library.path} is another library now: open it before the next one is "
                "written, or write that one to a folder of its own"
            )
        library = OpenLibrary(self.library.path, self.library.name, threads=threads)
        return RunningNetwork(self, library)

    def outputs_by_name(self, library: OpenLibrary, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the outputs of a call in the network's types, from those of the library."""
        buffers = dict(zip((info.name for info in library.outputs), arrays, strict=True))
        return {
            name: as_typed(buffers[self.network.results[name]], self.graph.types[name].dtype)
            for name in self.graph.outputs
        }


class CallableNetwork(ABC):
    """Loaded network, called with arrays; a context manager that unloads it."""

    scratch: tempfile.TemporaryDirectory[str] | None = None
    """Folder of its files, if they are needed no longer than the network."""

    @property
    @abstractmethod
    def input_names(self) -> Sequence[str]:
        """Names of the inputs in the model's order."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs by name.

        Raises :class:`~cpembed.errors.WorkloadError` for other inputs than the network's.
        """

    @abstractmethod
    def close(self) -> None:
        """Unload the libraries."""

    def __call__(self, *arrays: Array, **named: Array) -> Array | dict[str, Array]:
        """Compute the outputs of inputs that are given in the model's order or by name.

        Returns
        -------
        array or dict of str to array
            The output of a network that has one, else the outputs by name.

        Raises
        ------
        WorkloadError
            If the inputs are not the network's.
        """
        names = self.input_names
        if len(arrays) > len(names):
            raise WorkloadError(f"{len(arrays)} inputs: the network takes {', '.join(names)}")
        outputs = self.run({**dict(zip(names, arrays, strict=False)), **named})
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunningNetwork(CallableNetwork):
    """Loaded library of a network."""

    def __init__(self, compiled: CompiledNetwork, library: OpenLibrary) -> None:
        self.compiled = compiled
        self.library = library

    def __repr__(self) -> str:
        graph = self.compiled.graph
        return f"<network {graph.name} on {self.compiled.plan.units.name}: {signature(graph)}>"

    @property
    def input_names(self) -> Sequence[str]:
        return [*self.compiled.graph.inputs]

    def run(
        self, inputs: Mapping[str, Array], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Compute the outputs by name.

        Parameters
        ----------
        inputs : mapping from str to ndarray
        out : mapping from str to ndarray, optional
            Memory of some outputs. That of a cache may be the memory of the input that it updates
            (:attr:`in_place`): only the new elements are written then.

        Raises
        ------
        WorkloadError
            If the inputs are not the network's.
        """
        graph, buffers = self.compiled.graph, self.compiled.network.results
        check_inputs(graph, inputs)
        memory: list[Array] | None = None
        if out:
            provided = {buffers[name]: as_stored(array) for name, array in out.items()}
            memory = [
                provided.get(info.name, aligned(info.shape, info.stored))
                for info in self.library.outputs
            ]
        outputs = self.library.run(*self.in_order(inputs), out=memory)
        return self.compiled.outputs_by_name(self.library, outputs)

    @property
    def in_place(self) -> dict[str, str]:
        """Input whose memory each output may have, for caches that a network updates."""
        return in_place(self.compiled.graph)

    def in_order(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return inputs in the library's order, in storage types."""
        return [as_stored(inputs[info.name]) for info in self.library.inputs]

    def close(self) -> None:
        self.library.close()


def signature(graph: Graph) -> str:
    """Return the inputs and outputs of a network with their types, for its text."""
    arguments, results = (
        ", ".join(f"{name}: {graph.types[name]}" for name in names)
        for names in (graph.inputs, graph.outputs)
    )
    return f"({arguments}) -> {results}"


def in_place(graph: Graph) -> dict[str, str]:
    """Return the caches that a network may update in place: the input of each such output.

    Nothing else reads these inputs.
    """
    pairs: dict[str, str] = {}
    for operator in graph.operators:
        cache = operator.inputs[0]
        if (
            isinstance(operator.kind, CacheUpdate)
            and operator.output in graph.outputs
            and cache in graph.inputs
            and cache not in graph.outputs
            and graph.readers[cache] == (operator,)
        ):
            pairs[operator.output] = cache
    return pairs


def prepared_and_named(graph: Graph, units: Units) -> Graph:
    """Return a graph with the element types that units multiply, and unique names."""
    # Where products run one by one, those of attention do too, unless the target chains them.
    target = open_target(units.primary)
    attends = links_here(target) or makes_attention(target, units.float_type)
    # Plans, programs and documents refer to operators by name.
    return uniquely_named(matching.prepared_for(graph, units, attends=attends))


def uniquely_named(graph: Graph) -> Graph:
    """Return a graph whose operators, also those in loops, have distinct names.

    Later ones are numbered.
    """
    return _named(graph, {})


def _named(graph: Graph, uses: dict[str, int]) -> Graph:
    """Number the names of operators that are in use already."""
    operators: list[Operator] = []
    for operator in graph.operators:
        name = operator.name or operator.output
        uses[name] = uses.get(name, 0) + 1
        # The model itself may have names that end in such a number.
        while uses[name] > 1 and f"{name} ({uses[name]})" in uses:
            uses[name] += 1
        new = name if uses[name] == 1 else f"{name} ({uses[name]})"
        uses.setdefault(new, 1)
        kind = operator.kind
        if isinstance(kind, Loop):
            kind = kind.with_body(_named(kind.body, uses))
        operators.append(replace(operator, name=new, kind=kind))
    return graph.with_operators(operators)


def compile_network(
    graph: Graph,
    target: str | HardwareSpec | Units,
    folder: Path,
    planning: Planning | None = None,
    *,
    name: str | None = None,
    contents: Contents = EVERYTHING,
    progress: Progress = silent,
    check: Callable[[CompiledNetwork], None] | None = None,
) -> CompiledNetwork:
    """Write the library of a network to a folder.

    Its kernels run on as many threads as this process has for kernels.

    Parameters
    ----------
    graph : Graph
        Network as a front end made it.
    target : str, HardwareSpec or Units
        As :func:`~cpembed.driver.matching.network_units` takes it.
    folder : Path
    planning : Planning, optional
    name : str, optional
        Name of the library; by default the graph's.
    contents : Contents
        Files to write.
    progress : Progress, optional
    check : callable, optional
        Called with the loadable draft before any file is written; if it raises, none is.

    Raises
    ------
    LoweringError
        If an operator has no kernel.
    BackendUnavailable
        If there is no C compiler, or the target has no library.
    """
    require_kernels(graph)
    units, planning = matching.network_units(target), planning or Planning()
    require_library(units.primary)
    plan = plan_network(prepared_and_named(graph, units), units, planning, progress)
    network = network_program(plan, name or library_name(graph.name), planning.cache, progress)
    progress("linking", 0, 1)
    label = network.program.name

    def checked(path: Path) -> None:
        if check is not None:
            # The draft may be opened and run, but has no other files yet.
            check(CompiledNetwork(plan, network, Library(label, path.parent, ())))

    details = {"in_place": in_place(plan.graph), **contents.details}
    contents = replace(contents, details=details)
    library = write_library(network.program, folder, contents, check=checked)
    return CompiledNetwork(plan, network, library)


def has_foreign(graph: Graph) -> bool:
    """Return True if an operator of a network runs elsewhere."""
    return any(isinstance(operator.kind, Foreign) for operator in graph.operators)


def require_kernels(graph: Graph) -> None:
    """Raise :class:`LoweringError` for an operator that only a process of Python computes."""
    for operator in graph.operators:
        if isinstance(operator.kind, Foreign):
            raise LoweringError(
                f"{graph.name}: {operator.name}: {operator.kind.label} is not part of a library: "
                "cut the network before it with --outputs, or run it with `cpembed network` or "
                "compile_model"
            )


def require_library(spec: HardwareSpec) -> None:
    """Raise :class:`BackendUnavailable` if this machine cannot build a target's library."""
    if missing := missing_for(spec):
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}; name another target")


def library_name(text: str) -> str:
    """Return a C identifier for a model's name, which often is the name of its file."""
    # The program's symbols, files and Python class begin with this name, so it is short.
    stem = re.sub(r"\.(onnx|pt2)$", "", text)
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_")[:40] or "network"
    return name if name[0].isalpha() else f"n{name}"


def compile_model(
    graph: Graph,
    target: str | HardwareSpec | Units = NATIVE,
    *,
    folder: Path | None = None,
    threads: int = 0,
    planning: Planning | None = None,
    check: Callable[[CompiledNetwork], None] | None = None,
) -> RunningNetwork | PartedNetwork:
    """Compile a graph and load it, so that it can be called with arrays.

    Parameters
    ----------
    graph : Graph
    target : str, HardwareSpec or Units, default "native"
        All instructions of this processor, or a target by name, file or value whose kernels run on
        this machine.
    folder : Path, optional
        Folder for the library; by default a temporary one.
    threads : int
        Number of threads; 0 for as many as the process has for kernels.
    planning : Planning, optional
    check : callable, optional
        Called with the loadable draft of each library, as in :func:`compile_network`.

    Returns
    -------
    RunningNetwork or PartedNetwork
        ``network(x)`` computes the outputs.

    Raises
    ------
    BackendUnavailable, LoweringError
        As :func:`compile_network` does.
    """
    units, planning = matching.network_units(target), planning or Planning()

    def compiled(directory: Path) -> RunningNetwork | PartedNetwork:
        if has_foreign(graph):
            from cpembed.network.parts import compile_parts

            return compile_parts(graph, units, directory, threads, planning, check=check)
        return compile_network(graph, units, directory, planning, check=check).open(threads)

    return in_folder(folder, compiled)


Loaded = TypeVar("Loaded", bound=CallableNetwork)


def in_folder(folder: Path | None, compiled: Callable[[Path], Loaded]) -> Loaded:
    """Return a network compiled into a folder, or into a temporary one that goes with it."""
    if folder is not None:
        return compiled(folder)
    scratch = tempfile.TemporaryDirectory(prefix="cpembed-")
    network = compiled(Path(scratch.name))
    # Its finalizer removes the folder once the network is no longer used.
    network.scratch = scratch
    return network
