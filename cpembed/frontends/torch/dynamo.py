"""``torch.compile(model, backend="cpembed", options={"target": …, "threads": …})``.

Quantized parts of a model (PT2E) become compiled networks. The rest goes to inductor, or runs as it
is where inductor has no C++ compiler. Parameters become constants of the networks at a model's
first call, and again when they have changed.
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
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cpembed.errors import BackendUnavailable, ModelError
from cpembed.frontends.torch.lowering import decomposed
from cpembed.frontends.torch.partition import LOGGER, Compile, Fallback, Runnable, partitioned
from cpembed.graph.graph import Graph

RESTS = ("inductor", "eager")
"""Choices for running operators outside the networks."""
FALLBACKS = ("warn", "error")
"""Reactions to an operator outside the networks."""


class FallbackWarning(UserWarning):
    """PyTorch runs operators of a model; the text names each with the reason."""


@dataclass(frozen=True)
class Options:
    """Options of the back end.

    Attributes
    ----------
    target : str
        Name or file of a target; ``native``, the default, is the one of this processor whose
        instruction multiplies the most of the network's elements at once.
    threads : int, optional
        Threads of a network, by default the cores of the process.
    rest : str
        One of :data:`RESTS`.
    fallback : str
        One of :data:`FALLBACKS`.
    """

    target: str = "native"
    threads: int | None = None
    rest: str = "inductor"
    fallback: str = "warn"

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
        # A native target is looked for at the first call, for the element types of the network.
        if options.target != "native":
            check_target(options.target)
        return options


def check_target(target: Any) -> None:
    """Raise :class:`CpembedError` for a target that does not exist or cannot run here."""
    from cpembed.hw.loader import load_hardware_spec
    from cpembed.targets.registry import missing_for

    if not isinstance(target, str):
        raise ModelError(f"torch.compile: target={target!r} is no name and no file")
    missing = missing_for(load_hardware_spec(target))
    if missing:
        raise BackendUnavailable(
            f"torch.compile: the target {target} is not executed here: {'; '.join(missing)}"
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

    With gradients or open sizes PyTorch runs the whole module, and a :class:`FallbackWarning` says
    so.

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
    if torch.is_grad_enabled():
        reason = "gradients are recorded: call it under torch.no_grad()"
    # Dynamo passes open sizes as symbolic integers among the tensors.
    elif not all(isinstance(i, torch.Tensor) for i in inputs):
        reason = "sizes are left open: compile with dynamic=False"
    if reason:
        report(_all_operators(module, reason), checked)
        return _run_by_pytorch(module, inputs, checked)
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


class Compiled:
    """A captured module, compiled at its first call.

    Its inputs include its parameters, which are known only then.
    """

    def __init__(
        self, module: torch.fx.GraphModule, options: Options, compile_graph: Compile
    ) -> None:
        self.module, self.options, self.compile_graph = module, options, compile_graph
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.is_parameter = [_is_parameter(node) for node in placeholders]
        self.networks: tuple[Graph, ...] = ()
        self._state: list[State] | None = None
        self._run: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        pairs = list(zip(arguments, self.is_parameter, strict=True))
        state = [State.of_tensor(a) for a, is_parameter in pairs if is_parameter]
        if self._run is None or state != self._state:
            self._run = self._build(arguments)
            self._state = state
        with torch.no_grad():
            return self._run(*(a for a, is_parameter in pairs if not is_parameter))

    def _build(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        frozen = _frozen(self.module, arguments, self.is_parameter)
        pairs = zip(arguments, self.is_parameter, strict=True)
        inputs = (a for a, is_parameter in pairs if not is_parameter)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = decomposed(torch.export.export(frozen, tuple(inputs)))
            flat = program.module(check_guards=False)
            split, self.networks, fallbacks = partitioned(flat, self.compile_graph, self._rest)
        report(fallbacks, self.options)
        LOGGER.info("%d networks are compiled", len(self.networks))
        return split

    def _rest(self, part: torch.fx.GraphModule) -> torch.nn.Module:
        return Rest(part, self.options) if self.options.rest == "inductor" else part


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
    """Return the module with attributes instead of the inputs that are parameters."""
    # The captured module stays as it is: it is frozen again when a parameter changes.
    frozen = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    placeholders = [node for node in frozen.graph.nodes if node.op == "placeholder"]
    for node, value, is_parameter in zip(placeholders, arguments, parameters, strict=True):
        if is_parameter:
            name = f"held_{node.name}"
            frozen.register_buffer(name, value.detach())
            with frozen.graph.inserting_before(node):
                node.replace_all_uses_with(frozen.graph.get_attr(name))
            frozen.graph.erase_node(node)
    frozen.recompile()
    return frozen
