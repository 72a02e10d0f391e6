"""From a model to a library: prepared for a target, planned, compiled, linked."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from cpembed.driver import matching
from cpembed.driver.named import hardware_spec
from cpembed.errors import BackendUnavailable, CpembedError, WorkloadError
from cpembed.export.library import EVERYTHING, Contents, Library, write_library
from cpembed.export.loader import Library as OpenLibrary
from cpembed.frontends import load_model
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.kernel_cache import Progress, silent
from cpembed.network.plan import NetworkPlan, Planning, plan_network
from cpembed.network.program import NetworkProgram, network_program
from cpembed.targets.registry import missing_for


@dataclass(frozen=True)
class CompiledNetwork:
    """A network's library and what it was made from."""

    plan: NetworkPlan
    network: NetworkProgram
    library: Library

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def open(self, threads: int = 0) -> RunningNetwork:
        """The library, loaded; ``threads``: 0 for as many as it was planned for.

        Raises :class:`~cpembed.errors.CpembedError` where another library has taken its place.
        """
        if self.library.is_replaced:
            raise CpembedError(
                f"{self.library.path} is another library now: open it before the next one is "
                "written, or write that one to a folder of its own"
            )
        library = OpenLibrary(self.library.path, self.library.name, threads=threads)
        return RunningNetwork(self, library)


class RunningNetwork:
    """A loaded network; a context manager."""

    def __init__(self, compiled: CompiledNetwork, library: OpenLibrary) -> None:
        self.compiled = compiled
        self.library = library
        self.scratch: tempfile.TemporaryDirectory[str] | None = None

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
        names = list(self.compiled.graph.inputs)
        if len(arrays) > len(names):
            raise WorkloadError(f"{len(arrays)} inputs: the network takes {', '.join(names)}")
        outputs = self.run({**dict(zip(names, arrays, strict=False)), **named})
        (*others, last) = outputs.values()
        return outputs if others else last

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name.

        Raises :class:`~cpembed.errors.WorkloadError` for other inputs than the network's.
        """
        graph = self.compiled.graph
        check_inputs(graph, inputs)
        found = self.library.run(*self.in_order(inputs))
        return self.named(found)

    def in_order(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Inputs in the library's order, as memory."""
        return [in_memory(inputs[info.name]) for info in self.library.inputs]

    def named(self, outputs: tuple[Array, ...]) -> dict[str, Array]:
        """The library's outputs by name, of the network's types."""
        types, buffers = self.compiled.graph.types, self.compiled.network.results
        named = zip((info.name for info in self.library.outputs), outputs, strict=True)
        found = dict(named)
        return {
            name: typed(found[buffers[name]], types[name].dtype)
            for name in self.compiled.graph.outputs
        }

    def close(self) -> None:
        self.library.close()

    def __enter__(self) -> RunningNetwork:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def prepared_for(graph: Graph, target: HardwareSpec) -> Graph:
    """A graph with the element types that a target multiplies."""
    return uniquely_named(matching.prepared_for(graph, target))


def uniquely_named(graph: Graph) -> Graph:
    """A graph in which no two operators have one name: later ones are numbered."""
    seen: dict[str, int] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        name = operator.name or operator.output
        seen[name] = seen.get(name, 0) + 1
        while seen[name] > 1 and f"{name} ({seen[name]})" in seen:
            seen[name] += 1
        new = name if seen[name] == 1 else f"{name} ({seen[name]})"
        seen.setdefault(new, 1)
        operators.append(replace(operator, name=new))
    return graph.with_operators(operators)


def compile_network(
    graph: Graph,
    target: str | HardwareSpec,
    folder: Path,
    how: Planning | None = None,
    *,
    name: str | None = None,
    contents: Contents = EVERYTHING,
    progress: Progress = silent,
    check: Callable[[CompiledNetwork], None] | None = None,
) -> CompiledNetwork:
    """Write the library of a network, as a front end made it, to a folder.

    Kernels run on as many threads as the process has for kernels. ``contents``: which files are
    written; ``check`` is called before any is, and none is where it raises. Raises
    :class:`~cpembed.errors.LoweringError` for an operator that has no kernel, and
    :class:`BackendUnavailable` where there is no C compiler or the target has no library.
    """
    spec, how = hardware_spec(target), how or Planning()
    require_library(spec)
    plan = plan_network(prepared_for(graph, spec), spec, how, progress)
    network = network_program(plan, name or library_name(graph.name), how.cache, progress)
    progress("linking", 0, 1)
    label = network.program.name

    def checked(path: Path) -> None:
        if check is not None:
            check(CompiledNetwork(plan, network, Library(label, path.parent, ())))

    library = write_library(network.program, folder, contents, check=checked)
    return CompiledNetwork(plan, network, library)


def require_library(spec: HardwareSpec) -> None:
    """Raises :class:`BackendUnavailable` for a target whose kernels no library of this machine
    holds."""
    if missing := missing_for(spec):
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}; name another target")


def library_name(text: str) -> str:
    """A name of C for a model's, which is often that of its file."""
    stem = re.sub(r"\.(onnx|pt2)$", "", text)
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_")[:40] or "network"
    return name if name[0].isalpha() else f"n{name}"


def compile_model(
    model: str | Path | Graph,
    target: str | HardwareSpec,
    *,
    folder: Path | None = None,
    threads: int = 0,
) -> RunningNetwork:
    """Compile a network and load it: the result is called with arrays.

    Parameters
    ----------
    model : str, Path or Graph
        File of an ONNX model or an exported PyTorch program, or what
        :func:`~cpembed.frontends.load_model` read from one.
    target : str or HardwareSpec
        Target by name, file or value, whose kernels run on this machine.
    folder : Path, optional
        Folder for the library; by default a temporary one.
    threads : int
        Number of threads; 0 for as many as the process has for kernels.

    Returns
    -------
    RunningNetwork
        ``network(x)`` computes the outputs.

    Raises
    ------
    ModelError
        If the file is not understood.
    BackendUnavailable, LoweringError
        As :func:`compile_network` does.
    """
    graph = model if isinstance(model, Graph) else load_model(model)
    if folder is not None:
        return compile_network(graph, target, folder).open(threads)
    scratch = tempfile.TemporaryDirectory(prefix="cpembed-")
    network = compile_network(graph, target, Path(scratch.name)).open(threads)
    # The folder is removed with the network that was loaded from it.
    network.scratch = scratch
    return network


def in_memory(array: Array) -> Array:
    """Elements as a library takes them: :func:`typed` backwards."""
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def typed(array: Array, dtype: str) -> Array:
    """Of memory, the elements that it stands for."""
    if dtype == "bool":
        return array.astype(np.bool_)
    if dtype == "bfloat16":
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)
    return array
