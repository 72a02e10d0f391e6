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
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cpembed.errors import ModelError
from cpembed.frontends.torch.exported import decomposed
from cpembed.frontends.torch.partition import LOGGER, Compile, Runnable, partitioned
from cpembed.graph.graph import Graph

RESTS = ("inductor", "eager")
"""Who runs what is no network."""


@dataclass(frozen=True)
class Options:
    """``target``: by its name or file; without one, of those that this processor executes, the one
    whose instruction multiplies the most bytes. ``threads``: of a network, by default the cores of
    the process. ``rest``: one of :data:`RESTS`."""

    target: str | None = None
    threads: int | None = None
    rest: str = "inductor"

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Raises :class:`ModelError` for options that there are not."""
        unknown = [name for name in given or {} if name not in cls.__dataclass_fields__]
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise ModelError(f"torch.compile: options has no {unknown[0]!r}: it has {known}")
        options = cls(**(given or {}))
        if options.rest not in RESTS:
            raise ModelError(f"torch.compile: rest={options.rest!r} is none of {', '.join(RESTS)}")
        return options


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The back end of ``torch.compile``. With gradients, and for sizes that are left open, all of a
    module is left to PyTorch.

    Raises :class:`ModelError` for unknown options.
    """
    chosen = Options.of(options)
    del mode  # Of inductor's own effort: parts are compiled without gradients and without it.
    if torch.is_grad_enabled() or not all(isinstance(i, torch.Tensor) for i in inputs):
        LOGGER.info("left to PyTorch: gradients are recorded, or sizes are left open")
        return _by_pytorch(module, inputs, chosen.rest)
    return Compiled(module, chosen, lambda graph: compile_network(graph, chosen))


def compile_network(graph: Graph, options: Options) -> Runnable:
    """A network for a target.

    Raises :class:`~cpembed.errors.CpembedError` where it cannot be compiled.
    """
    from cpembed.network import build

    target = options.target or best_target()
    return build.compile_graph(graph, target, threads=options.threads)


class Compiled:
    """A module whose parts are compiled at its first call, when its parameters are known."""

    def __init__(
        self, module: torch.fx.GraphModule, options: Options, compile_graph: Compile
    ) -> None:
        self.module, self.options, self.compile_graph = module, options, compile_graph
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.held = [_is_held(node) for node in placeholders]
        self.networks: tuple[Graph, ...] = ()
        self._state: list[Any] | None = None
        self._run: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        state = [_state(a) for a, held in zip(arguments, self.held, strict=True) if held]
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
            split, self.networks = partitioned(flat, self.compile_graph, self._rest)
        LOGGER.info("%d networks are compiled", len(self.networks))
        return split

    def _rest(self, part: torch.fx.GraphModule) -> torch.nn.Module:
        return Rest(part) if self.options.rest == "inductor" else part


class Rest(torch.nn.Module):
    """PyTorch's part of a module: compiled by inductor at its first call, if it can be."""

    def __init__(self, part: torch.fx.GraphModule) -> None:
        super().__init__()
        self.part = part
        self._run: Callable[..., Any] | None = None

    def forward(self, *tensors: Any) -> Any:
        if self._run is None:
            self._run = self._compiled(tensors)
        return self._run(*tensors)

    def _compiled(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        try:
            return torch._inductor.compile(self.part, list(tensors))
        except Exception as error:  # Inductor raises many kinds, of its own and of a compiler's.
            LOGGER.info("a part runs as it is, inductor: %s", error)
            return self.part


def _by_pytorch(
    module: torch.fx.GraphModule, inputs: Sequence[Any], rest: str
) -> Callable[..., Any]:
    if rest == "inductor":
        try:
            return torch._dynamo.lookup_backend("inductor")(module, list(inputs))
        except Exception as error:  # As above.
            LOGGER.info("a module runs as it is, inductor: %s", error)
    return module.forward


def _is_held(node: torch.fx.Node) -> bool:
    """Whether an input of a captured module is a parameter or a buffer."""
    described = node.meta.get("tensor_dict") or {}
    return bool(described.get("_dynamo_static_input_type")) or node.type is torch.nn.Parameter


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """Differs when a parameter is another one, or has been written to."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version


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
