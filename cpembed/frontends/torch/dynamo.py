"""``torch.compile(model, backend="cpembed", options={"target": …, "threads": …})``.

Quantized parts of a model (PT2E) become compiled networks; the rest is left to inductor, or runs
as it is where inductor has no C++ compiler. Parameters become constants of the networks when a
model is first called, and again where they have been changed since.
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
from cpembed.frontends.torch.exported import decomposed
from cpembed.frontends.torch.partition import LOGGER, Compile, Left, Runnable, partitioned
from cpembed.graph.graph import Graph

RESTS = ("inductor", "eager")
"""Who runs what is no network."""
FALLBACKS = ("warn", "error")
"""What happens where an operator is no part of a network."""


class FallbackWarning(UserWarning):
    """Operators of a model are run by PyTorch: which, and why each is no part of a network."""


@dataclass(frozen=True)
class Options:
    """``target``: by its name or file; without one, of those that this processor executes, the one
    whose instruction multiplies the most bytes. ``threads``: of a network, by default the cores of
    the process. ``rest``: one of :data:`RESTS`; ``fallback``: one of :data:`FALLBACKS`."""

    target: str | None = None
    threads: int | None = None
    rest: str = "inductor"
    fallback: str = "warn"

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Check options.

        Raises
        ------
        CpembedError
            For an option that does not exist or has no such value, and for a target that does not
            exist or that this machine cannot execute.
        """
        unknown = [name for name in given or {} if name not in cls.__dataclass_fields__]
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise ModelError(f"torch.compile: options has no {unknown[0]!r}: it has {known}")
        options = cls(**(given or {}))
        for name, values in (("rest", RESTS), ("fallback", FALLBACKS)):
            value = getattr(options, name)
            if value not in values:
                raise ModelError(f"torch.compile: {name}={value!r} is none of {', '.join(values)}")
        threads = options.threads
        if threads is not None and (type(threads) is not int or threads < 1):
            raise ModelError(f"torch.compile: threads={threads!r} is no number of threads")
        if options.target is not None:
            check_target(options.target)
        return options


def check_target(target: Any) -> None:
    """Raise :class:`CpembedError` for a target that does not exist, or is not executed here."""
    from cpembed.hw.loader import load_hardware_spec
    from cpembed.targets.registry import missing_for

    if not isinstance(target, str):
        raise ModelError(f"torch.compile: target={target!r} is no name and no file")
    missing = missing_for(load_hardware_spec(target))
    if missing:
        raise BackendUnavailable(
            f"torch.compile: the target {target} is not executed here: {'; '.join(missing)}"
        )


def report(left: Sequence[Left], options: Options) -> None:
    """Say which operators PyTorch runs, each with its reason: once for a module.

    Raises
    ------
    ModelError
        Where ``fallback`` is ``error``.
    """
    if not left:
        return
    counts = Counter((item.operator, item.reason) for item in left)
    parts = [f"{name} ({n} times): {why}" if n > 1 else f"{name}: {why}"
             for (name, why), n in counts.items()]  # fmt: skip
    text = f"torch.compile: PyTorch runs {len(left)} operators: {'; '.join(parts)}"
    if options.fallback == "error":
        raise ModelError(text)
    warnings.warn(" ".join(text.split()), FallbackWarning, stacklevel=2)


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The back end of ``torch.compile``. With gradients, and for sizes that are left open, all of a
    module is left to PyTorch, which a :class:`FallbackWarning` says.

    Raises
    ------
    CpembedError
        As :meth:`Options.of` and :func:`report` do.
    """
    chosen = Options.of(options)
    del mode  # Of inductor's own effort: parts are compiled without gradients and without it.
    reason = ""
    if torch.is_grad_enabled():
        reason = "gradients are recorded: call it under torch.no_grad()"
    elif not all(isinstance(i, torch.Tensor) for i in inputs):
        reason = "sizes are left open: compile with dynamic=False"
    if reason:
        report([Left(name, reason) for name in operators_of(module)], chosen)
        return _by_pytorch(module, inputs, chosen)
    return Compiled(module, chosen, lambda graph: compile_network(graph, chosen))


def operators_of(module: torch.fx.GraphModule) -> list[str]:
    """The calls of a module that compute something, by their names."""
    calls = [n for n in module.graph.nodes if n.op.startswith("call_")]
    return [getattr(n.target, "__name__", str(n.target)) for n in calls]


def compile_network(graph: Graph, options: Options) -> Runnable:
    """A network for a target.

    Raises :class:`~cpembed.errors.CpembedError` where it cannot be compiled.
    """
    from cpembed.network import build

    target = options.target or best_target()
    return build.compile_model(graph, target, threads=options.threads or 0)


class Compiled:
    """A module whose parts are compiled at its first call, when its parameters are known."""

    def __init__(
        self, module: torch.fx.GraphModule, options: Options, compile_graph: Compile
    ) -> None:
        self.module, self.options, self.compile_graph = module, options, compile_graph
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.held = [_is_held(node) for node in placeholders]
        self.networks: tuple[Graph, ...] = ()
        self._state: list[State] | None = None
        self._run: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        state = [State.of(a) for a, held in zip(arguments, self.held, strict=True) if held]
        if self._run is None or state != self._state:
            self._run = self._build(arguments)
            self._state = state
        rest = [a for a, held in zip(arguments, self.held, strict=True) if not held]
        with torch.no_grad():
            return self._run(*rest)

    def _build(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        frozen = _frozen(self.module, arguments, self.held)
        rest = [a for a, held in zip(arguments, self.held, strict=True) if not held]
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = decomposed(torch.export.export(frozen, tuple(rest)))
            flat = program.module(check_guards=False)
            split, self.networks, left = partitioned(flat, self.compile_graph, self._rest)
        report(left, self.options)
        LOGGER.info("%d networks are compiled", len(self.networks))
        return split

    def _rest(self, part: torch.fx.GraphModule) -> torch.nn.Module:
        return Rest(part, self.options) if self.options.rest == "inductor" else part


class Rest(torch.nn.Module):
    """PyTorch's part of a module: compiled by inductor at its first call, if it can be."""

    def __init__(self, part: torch.fx.GraphModule, options: Options) -> None:
        super().__init__()
        self.part, self.options = part, options
        self._run: Callable[..., Any] | None = None

    def forward(self, *tensors: Any) -> Any:
        if self._run is None:
            self._run = self._compiled(tensors)
        return self._run(*tensors)

    def _compiled(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        try:
            return torch._inductor.compile(self.part, list(tensors))
        except Exception as error:  # Inductor raises many kinds, of its own and of a compiler's.
            _report_inductor(self.part, error, self.options)
            return self.part


def _by_pytorch(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: Options
) -> Callable[..., Any]:
    if options.rest == "inductor":
        try:
            return torch._dynamo.lookup_backend("inductor")(module, list(inputs))
        except Exception as error:  # As above.
            _report_inductor(module, error, options)
    return module.forward


def _report_inductor(module: torch.fx.GraphModule, error: Exception, options: Options) -> None:
    """Say that operators that inductor was to run are run as they are."""
    said = str(error).strip().partition("\n")[0]
    reason = f"inductor does not compile it ({type(error).__name__}: {said}): give rest='eager'"
    report([Left(name, reason) for name in operators_of(module)], options)


def _is_held(node: torch.fx.Node) -> bool:
    """Whether an input of a captured module is a parameter or a buffer."""
    described = node.meta.get("tensor_dict") or {}
    return bool(described.get("_dynamo_static_input_type")) or node.type is torch.nn.Parameter


@dataclass(frozen=True)
class State:
    """What a parameter was: unequal when it is another one, or has been written to.

    ``storage`` does not keep the memory, but its identity: no other storage is equal to it, at
    whatever address. ``content`` is of a tensor that counts no writes, which is one of inference
    mode.
    """

    storage: StorageWeakRef
    place: tuple[Any, ...]
    version: int | None
    content: bytes | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> State:
        storage = tensor.untyped_storage()
        place = (storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(),
                 tensor.dtype)  # fmt: skip
        if not tensor.is_inference():
            return cls(StorageWeakRef(storage), place, tensor._version, None)
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        return cls(StorageWeakRef(storage), place, None, hashlib.blake2b(data.tobytes()).digest())


def _frozen(
    module: torch.fx.GraphModule, arguments: Sequence[Any], held: Sequence[bool]
) -> torch.fx.GraphModule:
    """The module with parameters as attributes in place of inputs."""
    frozen = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    placeholders = [node for node in frozen.graph.nodes if node.op == "placeholder"]
    for node, value, is_held in zip(placeholders, arguments, held, strict=True):
        if is_held:
            name = f"held_{node.name}"
            frozen.register_buffer(name, value.detach())
            with frozen.graph.inserting_before(node):
                node.replace_all_uses_with(frozen.graph.get_attr(name))
            frozen.graph.erase_node(node)
    frozen.recompile()
    return frozen


def best_target() -> str:
    """Of the targets that this processor executes, the one whose instruction has the most products
    of bytes.

    Raises :class:`ModelError` where there is none.
    """
    from cpembed.hw.loader import available_targets, load_hardware_spec
    from cpembed.provenance import Provenance
    from cpembed.targets.registry import missing_for, open_target

    found: dict[str, int] = {}
    for name in available_targets():
        spec = load_hardware_spec(name)
        inputs = {operand.dtype for operand in spec.instruction.computation.inputs}
        if not (spec.backend and spec.cpu_features and inputs <= {"int8", "uint8"}):
            continue
        if not missing_for(spec) and open_target(spec).provenance is Provenance.MEASURED:
            found[name] = spec.instruction.computation.macs
    if not found:
        raise ModelError(
            "torch.compile: this processor executes no target that multiplies bytes: name one in "
            "options={'target': …}"
        )
    return max(found, key=lambda name: found[name])
