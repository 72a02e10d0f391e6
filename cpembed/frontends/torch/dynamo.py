"""``torch.compile(model, backend="cpembed", options={"target": …, "threads": …})``.

Parts of a model around products and convolutions, of floats or quantized (PT2E), become compiled
networks. The rest goes to inductor, or runs as it is where inductor has no C++ compiler. Parameters
become constants of the networks at a model's first call, and again when they have changed.
:func:`~cpembed.frontends.torch.summary` tells which parts there are, and their times.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cpembed.errors import BackendUnavailable, CpembedError, InvariantError, ModelError
from cpembed.frontends.torch.compile_summary import ModuleSummary, record
from cpembed.frontends.torch.lowering import decomposed
from cpembed.frontends.torch.open_modules import OpenNetworks, open_shapes
from cpembed.frontends.torch.partition import (
    LOGGER,
    Compile,
    Fallback,
    Partitioned,
    Runnable,
    part_of_pytorch,
    partitioned,
)
from cpembed.graph.family import Family
from cpembed.graph.graph import Array, Graph
from cpembed.graph.instances import openness

RESTS = ("inductor", "eager")
"""Choices for running operators outside the networks."""
FALLBACKS = ("warn", "error")
"""Reactions to an operator outside the networks."""
MOST_SIGNATURES = 16
"""Maximum number of sizes of a module's inputs for which networks are compiled."""


class FallbackWarning(UserWarning):
    """PyTorch runs operators of a model; the text names each with the reason."""


@dataclass(frozen=True)
class Options:
    """Options of the back end.

    Attributes
    ----------
    target : str
        Name or file of a target; ``native``, the default, stands for all instructions of this
        processor, each product on the fastest.
    threads : int, optional
        Threads of a network, by default the cores of the process.
    rest : str
        One of :data:`RESTS`.
    fallback : str
        One of :data:`FALLBACKS`.
    instances : int
        Maximum number of sizes with kernels of their own where sizes are open.
    """

    target: str = "native"
    threads: int | None = None
    rest: str = "inductor"
    fallback: str = "warn"
    instances: int = 8

    @classmethod
    def checked(cls, values: Mapping[str, Any] | None) -> Options:
        """Return options from a mapping.

        Raises :class:`CpembedError` for an unknown option or value, and for a target that does not
        exist or that this machine cannot execute.
        """
        values = values or {}
        unknown = [name for name in values if name not in cls.__dataclass_fields__]
        if unknown:
            names = ", ".join(cls.__dataclass_fields__)
            raise ModelError(f"torch.compile: options has no {unknown[0]!r}: it has {names}")
        options = cls(**values)
        for name, choices in (("rest", RESTS), ("fallback", FALLBACKS)):
            value = getattr(options, name)
            if value not in choices:
                raise ModelError(f"torch.compile: {name}={value!r} is none of {', '.join(choices)}")
        threads = options.threads
        # A Boolean is an int for Python, but no number of threads.
        if threads is not None and (type(threads) is not int or threads < 1):
            raise ModelError(f"torch.compile: threads={threads!r} is no number of threads")
        instances = options.instances
        if type(instances) is not int or instances < 1:
            raise ModelError(f"torch.compile: instances={instances!r} is no number of sizes")
        # Which units this processor has is looked for at the first call.
        if options.target != "native":
            check_target(options.target)
        return options


def check_target(target: Any) -> None:
    """Raise :class:`CpembedError` for a target that does not exist or cannot run here."""
    from cpembed.hw.loader import load_hardware_spec
    from cpembed.targets.capabilities import links_here
    from cpembed.targets.registry import missing_for, open_target

    if not isinstance(target, str):
        raise ModelError(f"torch.compile: target={target!r} is no name and no file")
    missing = missing_for(load_hardware_spec(target))
    if missing:
        raise BackendUnavailable(
            f"torch.compile: the target {target} is not executed here: {'; '.join(missing)}"
        )
    if not links_here(open_target(load_hardware_spec(target))):
        raise BackendUnavailable(
            f"torch.compile: kernels of {target} cannot be called in this process: "
            "name a target of this processor, or native"
        )


def report(fallbacks: Sequence[Fallback], options: Options) -> None:
    """Warn of the operators of a module that PyTorch runs, each with its reason.

    Raises :class:`ModelError` instead if the option ``fallback`` is ``error``.
    """
    if not fallbacks:
        return
    counts = Counter((fallback.operator, fallback.reason) for fallback in fallbacks)
    parts = [f"{name} ({n} times): {reason}" if n > 1 else f"{name}: {reason}"
             for (name, reason), n in counts.items()]  # fmt: skip
    text = f"torch.compile: PyTorch runs {len(fallbacks)} operators: {'; '.join(parts)}"
    if options.fallback == "error":
        raise ModelError(text)
    # Reasons may be errors of several lines.
    warnings.warn(" ".join(text.split()), FallbackWarning, stacklevel=2)


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a module: the back end of ``torch.compile``.

    A module that records gradients, or has tensors on a device, stays with PyTorch, and a
    :class:`FallbackWarning` says so. Sizes may be left open: networks are compiled for those of
    each call, :data:`MOST_SIGNATURES` at most.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The captured module.
    inputs : sequence
        Example arguments.
    options : mapping, optional
        Fields of :class:`Options`.
    mode : str, optional
        Inductor's effort, which has no effect.

    Raises
    ------
    CpembedError
        As :meth:`Options.checked` and :func:`report` do.
    """
    checked = Options.checked(options)
    del mode
    reason = ""
    # Dynamo passes open sizes as symbolic integers among the tensors.
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    devices = {tensor.device.type for tensor in tensors} - {"cpu"}
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        reason = "gradients are recorded: call it under torch.no_grad()"
    elif devices:
        reason = f"its tensors are on {', '.join(sorted(devices))}"
    if reason:
        fallbacks = _all_operators(module, reason)
        report(fallbacks, checked)
        run = _run_by_pytorch(module, inputs, checked)
        part = part_of_pytorch(fallbacks)
        signature = tuple(map(_signature_text, tensors))
        return TimedCall(run, record(ModuleSummary(signature, [part])))
    return Compiled(module, checked, lambda graph: compile_network(graph, checked))


def _all_operators(module: torch.fx.GraphModule, reason: str) -> list[Fallback]:
    calls = [n for n in module.graph.nodes if n.op.startswith("call_")]
    return [Fallback(getattr(n.target, "__name__", str(n.target)), reason) for n in calls]


def compile_network(graph: Graph, options: Options) -> Runnable:
    """Compile a network for a target.

    Raises :class:`~cpembed.errors.CpembedError` for one that cannot be compiled.
    """
    from cpembed.network import build

    return build.compile_model(graph, options.target, threads=options.threads or 0)


def compile_ranges(family: Family, options: Options) -> Runnable:
    """Compile a network for ranges of sizes.

    Raises :class:`~cpembed.errors.CpembedError` for one that cannot be compiled, or whose sizes
    need kernels each.
    """
    from cpembed.network.compiled_model import compile_sizes
    from cpembed.network.family import Ranges

    exact = openness(family).reasons
    if exact:
        raise ModelError("; ".join(f"{symbol}: {reason}" for symbol, reason in exact.items()))
    ranges = Ranges(instances=options.instances)
    return compile_sizes(family, options.target, ranges=ranges, threads=options.threads or 0)


class TimedCall:
    """A module that PyTorch runs, whose calls the summary counts.

    No ``torch.nn.Module``: the gradients of its results are PyTorch's, as if it were called alone.
    """

    def __init__(self, run: Callable[..., Any], summary: ModuleSummary) -> None:
        self.run, self.summary = run, summary

    def __call__(self, *arguments: Any) -> Any:
        return self.summary.parts[0].timed(lambda: self.run(*arguments))


class Compiled:
    """A captured module, compiled at the first call with inputs of each signature.

    Its inputs include its parameters, which are known only then, and its open sizes. Where these
    can be ranges, its networks are compiled for ranges of them.
    """

    def __init__(
        self, module: torch.fx.GraphModule, options: Options, compile_graph: Compile
    ) -> None:
        self.module, self.options, self.compile_graph = module, options, compile_graph
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.is_parameter = [_is_parameter(node) for node in placeholders]
        self.shapes = open_shapes(placeholders, self.is_parameter)
        self._open: OpenNetworks | None = None
        self.networks: tuple[Graph, ...] = ()
        self.summaries: list[ModuleSummary] = []
        self._state: list[State] | None = None
        self._runs: dict[Any, Callable[..., Any]] = {}
        self._reported: set[Fallback] = set()

    def __call__(self, *arguments: Any) -> Any:
        pairs = list(zip(arguments, self.is_parameter, strict=True))
        state = [State.of_tensor(a) for a, is_parameter in pairs if is_parameter]
        if state != self._state:
            self._runs.clear()
            self.summaries.clear()
            self._state, self._open = state, None
        inputs = [a for a, is_parameter in pairs if not is_parameter]
        run = self._of_ranges(arguments)
        signature = tuple(map(_signature, inputs))
        if run is None and signature not in self._runs:
            if len(self._runs) >= MOST_SIGNATURES:
                return self._left_to_pytorch(arguments)
            self._runs[signature] = self._build(arguments)
        with torch.no_grad():
            run = run or self._runs[signature]
            return run(*(i for i in inputs if isinstance(i, torch.Tensor)))

    def _build(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        split = self._split(arguments, self.compile_graph)
        self._record(split, arguments)
        LOGGER.info("%d networks are compiled", len(split.networks))
        return split.module

    def _split(self, arguments: Sequence[Any], compile_graph: Compile) -> Partitioned:
        """Divide the module at the sizes of some arguments into networks and the rest."""
        frozen = _frozen(self.module, arguments, self.is_parameter)
        # Tensors of their own: the export would leave open what mark_dynamic marked.
        tensors = tuple(tensor.detach() for tensor in self._tensors(arguments))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(frozen, tensors)
            # Where results would have other types, PyTorch runs the operators as they are.
            with suppress(ModelError):
                program = decomposed(program, "graph")
            return partitioned(program.module(check_guards=False), compile_graph, self._rest)

    def _tensors(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return the arguments that are tensors, without parameters."""
        pairs = zip(arguments, self.is_parameter, strict=True)
        return [a for a, is_parameter in pairs if not is_parameter and isinstance(a, torch.Tensor)]

    def _record(self, split: Partitioned, arguments: Sequence[Any]) -> None:
        self.networks += split.networks
        self._report_once(split.fallbacks)
        texts = tuple(map(_signature_text, self._tensors(arguments)))
        self.summaries.append(record(ModuleSummary(texts, list(split.parts))))

    # -- ranges of sizes --------------------------------------------------------------------------

    def _of_ranges(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """Return the function that runs these arguments on networks for ranges of sizes, if any."""
        sizes = None if self.shapes is None else self.shapes.sizes_of(arguments)
        if self.shapes is None or sizes is None:
            return None
        shapes, is_new = self.shapes, False
        if self._open is None:
            self._open = OpenNetworks(
                shapes,
                lambda at: self._split(shapes.arguments_at(arguments, at), _Unused).networks,
                lambda family: compile_ranges(family, self.options),
            )
        networks = self._open
        if not networks.covers(sizes):
            try:
                networks.extend(sizes)
            except BackendUnavailable:
                raise
            except CpembedError as error:
                LOGGER.info("networks are compiled for each size: %s", error)
                self.shapes = self._open = None
                return None
            ranges = ", ".join(f"{n}={r[0]}..{r[-1]}" for n, r in networks.ranges.items())
            LOGGER.info("%d networks are compiled for %s", len(networks.networks), ranges)
            networks.runs.clear()
            is_new = True
        run = networks.run_at(sizes)
        if run is None:
            compiled = iter(networks.networks)
            split = self._split(arguments, lambda graph: next(compiled))
            if is_new:
                for part, seconds in zip(split.parts, networks.seconds, strict=False):
                    part.compile_seconds = seconds
                self._record(split, arguments)
            run = networks.keep(sizes, split.module)
        return run

    def _report_once(self, fallbacks: Sequence[Fallback]) -> None:
        """Report calls whose operator and reason were not reported before."""
        new = [fallback for fallback in fallbacks if fallback not in self._reported]
        self._reported.update(new)
        report(new, self.options)

    def _left_to_pytorch(self, arguments: Sequence[Any]) -> Any:
        reason = f"its inputs had {MOST_SIGNATURES} other sizes before"
        self._report_once(_all_operators(self.module, reason))
        # Inductor would compile these sizes too, which the next call may not have.
        return self.module.forward(*arguments)

    def _rest(self, part: torch.fx.GraphModule) -> torch.nn.Module:
        return Rest(part, self.options) if self.options.rest == "inductor" else part


class _Unused:
    """Stands for a network that is read and not compiled."""

    def __init__(self, graph: Graph) -> None:
        del graph

    def run(self, inputs: Mapping[str, Array], /) -> Mapping[str, Array]:
        raise InvariantError("a network that is not compiled is run")


def _signature(value: Any) -> Any:
    """Return the key of a compiled network: type, sizes and strides, or an open size's value."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    return value


def _signature_text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"


class Rest(torch.nn.Module):
    """PyTorch's part of a module, which inductor compiles at its first call if it can."""

    def __init__(self, part: torch.fx.GraphModule, options: Options) -> None:
        super().__init__()
        self.part, self.options = part, options
        self._run: Callable[..., Any] | None = None

    def forward(self, *tensors: Any) -> Any:
        if self._run is None:
            self._run = _by_inductor(torch._inductor.compile, self.part, tensors, self.options)
        return self._run(*tensors)


def _run_by_pytorch(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: Options
) -> Callable[..., Any]:
    if options.rest != "inductor":
        return module.forward
    compile_module = torch._dynamo.lookup_backend("inductor")
    return _by_inductor(compile_module, module, inputs, options)


def _by_inductor(
    compile_module: Callable[..., Any],
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    options: Options,
) -> Callable[..., Any]:
    """Compile a module by inductor; where that fails, report it and run the module as it is."""
    try:
        return compile_module(module, list(inputs))
    except Exception as error:
        # Inductor raises many kinds of errors, its own and those of a C++ compiler.
        first = str(error).strip().partition("\n")[0]
        name = type(error).__name__
        reason = f"inductor does not compile it ({name}: {first}): give rest='eager'"
        report(_all_operators(module, reason), options)
        return module.forward


def _is_parameter(node: torch.fx.Node) -> bool:
    """Return True if an input of a captured module is a parameter or a buffer."""
    described = node.meta.get("tensor_dict") or {}
    return bool(described.get("_dynamo_static_input_type")) or node.type is torch.nn.Parameter


@dataclass(frozen=True)
class State:
    """State of a parameter, which is unequal once the parameter is replaced or written to.

    The version counts writes. In inference mode, where they are not counted, ``content`` is a
    digest of the elements instead.
    """

    storage: StorageWeakRef
    place: tuple[Any, ...]
    version: int | None
    content: bytes | None

    @classmethod
    def of_tensor(cls, tensor: torch.Tensor) -> State:
        # A weak reference identifies the memory without keeping it alive: no other storage is equal
        # to it, whatever the address.
        storage = tensor.untyped_storage()
        place = (storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(),
                 tensor.dtype)  # fmt: skip
        if not tensor.is_inference():
            return cls(StorageWeakRef(storage), place, tensor._version, None)
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        return cls(StorageWeakRef(storage), place, None, hashlib.blake2b(data.tobytes()).digest())


def _frozen(
    module: torch.fx.GraphModule, arguments: Sequence[Any], parameters: Sequence[bool]
) -> torch.fx.GraphModule:
    """Return the module with attributes for parameters, and numbers for open sizes."""
    # The captured module stays as it is: it is frozen again when a parameter changes.
    frozen = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    placeholders = [node for node in frozen.graph.nodes if node.op == "placeholder"]
    for node, value, is_parameter in zip(placeholders, arguments, parameters, strict=True):
        if is_parameter:
            name = f"held_{node.name}"
            frozen.register_buffer(name, value.detach())
            with frozen.graph.inserting_before(node):
                node.replace_all_uses_with(frozen.graph.get_attr(name))
        elif isinstance(value, torch.Tensor):
            continue
        else:
            _replace_by_number(node, value)
        frozen.graph.erase_node(node)
    frozen.recompile()
    return frozen


def _replace_by_number(node: torch.fx.Node, number: Any) -> None:
    """Write a number wherever a node is read."""

    def replaced(argument: torch.fx.Node) -> Any:
        return number if argument is node else argument

    for user in list(node.users):
        user.args = torch.fx.node.map_arg(user.args, replaced)
        user.kwargs = torch.fx.node.map_arg(user.kwargs, replaced)
