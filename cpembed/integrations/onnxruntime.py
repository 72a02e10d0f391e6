"""Inference sessions with onnxruntime's interface, whose models are compiled networks.

A program changes one line::

    import cpembed.integrations.onnxruntime as ort  # was: import onnxruntime as ort

    session = ort.InferenceSession("model.onnx", providers=["CpembedExecutionProvider"])
    (y,) = session.run(None, {"x": x})

An execution provider of onnxruntime's own is a C++ library built against its headers, which Python
cannot supply; a session of the same interface needs none. Other names of this module are those of
onnxruntime, where it is installed.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from cpembed.errors import BackendUnavailable, CpembedError, ModelError, WorkloadError
from cpembed.frontends import load_model
from cpembed.frontends.onnx.model import ModelInput, read_model
from cpembed.graph.kinds.base import Array
from cpembed.network.build import RunningNetwork, compile_model
from cpembed.network.parts import PartedNetwork

Network = RunningNetwork | PartedNetwork
"""Compiled network that is loaded."""

PROVIDER = "CpembedExecutionProvider"
"""Name of the provider that compiles models."""
FALLBACK_PROVIDER = "CPUExecutionProvider"
"""Name of onnxruntime's provider, which runs uncompiled operators if a session lists it."""
MOST_NETWORKS = 32
"""Maximum number of networks, one for each set of input shapes, that a session keeps loaded."""

# onnxruntime's texts of element types.
_TYPE_TEXTS = {"float32": "float", "float64": "double", "float16": "float16"}


class FallbackWarning(UserWarning):
    """A model, or a set of input shapes, that onnxruntime runs because it cannot be compiled."""


@dataclass(frozen=True)
class NodeArg:
    """Input or output of a model.

    Attributes
    ----------
    name : str
        Name of the tensor.
    type : str
        Element type in onnxruntime's words, such as ``tensor(float)``.
    shape : list
        Sizes; the name of an open one, None for one without a name.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """Description of a model: the names that onnxruntime's has."""

    graph_name: str
    producer_name: str = ""
    description: str = ""
    domain: str = ""
    version: int = 0


class InferenceSession:
    """Model that is compiled for the shapes of its inputs and called with arrays.

    A model whose shapes are fixed is compiled at once, another one at the first call with each set
    of shapes.

    Parameters
    ----------
    path_or_bytes : str, PathLike or bytes
        ONNX file, or its contents.
    sess_options : SessionOptions, optional
        ``intra_op_num_threads`` is the number of threads; other options have no effect.
    providers : sequence, optional
        :data:`PROVIDER`, and :data:`FALLBACK_PROVIDER` if onnxruntime may run what cannot be
        compiled; names or pairs of a name and its options. By default the first alone. Providers
        of other names are left out with a warning.
    provider_options : sequence of mappings, optional
        Options of each provider. Those of :data:`PROVIDER`: ``target`` (``native``) and
        ``threads``.

    Raises
    ------
    ModelError
        If the file is no model, or has operators that are not known, and there is no fallback.
    BackendUnavailable, LoweringError
        If it cannot be compiled for the target, and there is no fallback.
    """

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **_: Any,
    ) -> None:
        self._options = sess_options
        self._providers = _checked_providers(providers, provider_options)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._path = self._model_file(path_or_bytes)
        self._networks: OrderedDict[tuple[Any, ...], Network | None] = OrderedDict()
        self._fallback: Any = None
        model = read_model(self._path)
        body = model.body
        self._metadata = ModelMetadata(model.name)
        self._inputs = [_node_arg(value) for value in body.inputs]
        self._outputs = [
            _node_arg(body.declared.get(name) or ModelInput(name, "", None))
            for name in body.outputs
        ]
        if all(map(_is_fixed, body.inputs)):
            self._network({value.name: tuple(value.sizes or ()) for value in body.inputs})

    def _model_file(self, source: str | PathLike[str] | bytes) -> Path:
        if not isinstance(source, bytes):
            return Path(source)
        self._scratch = tempfile.TemporaryDirectory(prefix="cpembed-session-")
        path = Path(self._scratch.name) / "model.onnx"
        path.write_bytes(source)
        return path

    # -------------------------------------------------------------------------------- execution

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Array]:
        """Compute outputs.

        Parameters
        ----------
        output_names : sequence of str or None
            Outputs to return, in this order; all of them if None or empty.
        input_feed : mapping from str to array_like
            Each input by its name.
        run_options : RunOptions, optional
            Has no effect.

        Raises
        ------
        WorkloadError
            If an input is missing, is none of the model's or of another type, or an output is none.
        """
        del run_options
        arrays = {name: np.asarray(value) for name, value in input_feed.items()}
        self._check_names(arrays, output_names or ())
        network = self._network({name: array.shape for name, array in arrays.items()})
        names = list(output_names or (value.name for value in self._outputs))
        if network is None:
            return self._by_onnxruntime().run(names, dict(input_feed))
        results = network.run(arrays)
        return [results[name] for name in names]

    def _check_names(self, arrays: Mapping[str, Array], outputs: Sequence[str]) -> None:
        inputs = {value.name for value in self._inputs}
        different = sorted(inputs.symmetric_difference(arrays))
        if different:
            wrong = different[0]
            problem = "is missing" if wrong in inputs else "is none of the model's"
            raise WorkloadError(
                f"{self._path.name}: input {wrong} {problem}: its inputs are "
                f"{', '.join(sorted(inputs)) or 'none'}"
            )
        results = [value.name for value in self._outputs]
        for name in outputs:
            if name not in results:
                raise WorkloadError(
                    f"{self._path.name}: has no output {name}: its outputs are {', '.join(results)}"
                )

    def _network(self, shapes: Mapping[str, tuple[Any, ...]]) -> Network | None:
        """Return the network for shapes of the inputs; None where onnxruntime runs them."""
        key = tuple(sorted(shapes.items()))
        if key in self._networks:
            self._networks.move_to_end(key)
            return self._networks[key]
        if len(self._networks) >= MOST_NETWORKS:
            _, oldest = self._networks.popitem(last=False)
            if oldest is not None:
                oldest.close()
        self._networks[key] = self._compiled(shapes)
        return self._networks[key]

    def _compiled(self, shapes: Mapping[str, tuple[int, ...]]) -> Network | None:
        options = self._providers[PROVIDER]
        threads = options.get("threads") or getattr(self._options, "intra_op_num_threads", 0)
        try:
            graph = load_model(self._path, shapes)
            return compile_model(graph, options.get("target", "native"), threads=int(threads))
        except CpembedError as error:
            if FALLBACK_PROVIDER not in self._providers:
                raise
            text = f"onnxruntime runs {self._path.name}, which cannot be compiled: {error}"
            warnings.warn(" ".join(text.split()), FallbackWarning, stacklevel=4)
            # Without onnxruntime the session is useless, which the caller learns here.
            self._by_onnxruntime()
            return None

    def _by_onnxruntime(self) -> Any:
        """Return onnxruntime's session of the model, made at the first use."""
        if self._fallback is None:
            self._fallback = _onnxruntime().InferenceSession(
                str(self._path), self._options, providers=[FALLBACK_PROVIDER]
            )
        return self._fallback

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Compute the outputs of a binding from its inputs."""
        iobinding.compute(run_options)

    def io_binding(self) -> IOBinding:
        """Return a binding of arrays to this session's inputs and outputs."""
        return IOBinding(self)

    # -------------------------------------------------------------------------------- description

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs; a type or shape that the file leaves out is empty."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return no tensors: constants are part of a compiled network."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's description."""
        return self._metadata

    def get_session_options(self) -> Any:
        """Return the options that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the names of the providers in use."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options by provider, as text."""
        return {
            name: {key: str(value) for key, value in options.items()}
            for name, options in self._providers.items()
        }

    @property
    def networks(self) -> tuple[Network, ...]:
        """Compiled networks that are loaded, one for each set of input shapes."""
        return tuple(network for network in self._networks.values() if network is not None)


class IOBinding:
    """Arrays bound to inputs and outputs of a session, all in the host's memory."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._feed: dict[str, Any] = {}
        self._results: dict[str, Array | None] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array to an input."""
        self._feed[name] = arr_on_cpu

    def bind_output(self, name: str, *_: Any, **__: Any) -> None:
        """Bind an output, whose array is made by the call."""
        self._results[name] = None

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._feed.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._results.clear()

    def compute(self, run_options: Any = None) -> None:
        """Compute the bound outputs."""
        names = list(self._results)
        results = self._session.run(names, self._feed, run_options)
        bound = names or [value.name for value in self._session.get_outputs()]
        self._results = dict(zip(bound, results, strict=True))

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs of the last call, in the order in which they were bound."""
        missing = [name for name, array in self._results.items() if array is None]
        if missing:
            raise WorkloadError(
                f"output {missing[0]} is not computed yet: call run_with_iobinding first"
            )
        return [array for array in self._results.values() if array is not None]


def get_available_providers() -> list[str]:
    """Return the names of the providers that sessions accept here."""
    try:
        _onnxruntime()
    except BackendUnavailable:
        return [PROVIDER]
    return [PROVIDER, FALLBACK_PROVIDER]


def _checked_providers(
    providers: Sequence[Any] | None, options: Sequence[Mapping[str, Any]] | None
) -> dict[str, dict[str, Any]]:
    """Return the options by provider; the one that compiles is always first."""
    checked: dict[str, dict[str, Any]] = {PROVIDER: {}}
    for number, provider in enumerate(providers or ()):
        name, with_name = str(provider), dict[str, Any]()
        if isinstance(provider, tuple):
            name, with_name = cast("tuple[str, dict[str, Any]]", provider)
        if name not in (PROVIDER, FALLBACK_PROVIDER):
            warnings.warn(
                f"provider {name!r} is left out: sessions of cpembed have {PROVIDER} and "
                f"{FALLBACK_PROVIDER}",
                stacklevel=4,
            )
            continue
        checked[name] = {**(options[number] if options else {}), **with_name}
    unknown = checked[PROVIDER].keys() - {"target", "threads"}
    if unknown:
        raise ModelError(
            f"{PROVIDER} has no option {sorted(unknown)[0]!r}: it has target and threads"
        )
    threads = checked[PROVIDER].get("threads")
    # Options of providers may be texts in onnxruntime; 0 and nothing leave the number open.
    if threads and not str(threads).isdecimal():
        raise ModelError(f"{PROVIDER}: threads={threads!r} is no number of threads")
    return checked


def _node_arg(value: ModelInput) -> NodeArg:
    shape = [size if isinstance(size, int) and size >= 0 else size or None
             for size in value.sizes or ()]  # fmt: skip
    return NodeArg(value.name, f"tensor({_TYPE_TEXTS.get(value.dtype, value.dtype)})", shape)


def _is_fixed(value: ModelInput) -> bool:
    sizes = value.sizes
    return sizes is not None and all(isinstance(size, int) and size >= 0 for size in sizes)


def _onnxruntime() -> Any:
    try:
        return import_module("onnxruntime")
    except ImportError:
        raise BackendUnavailable(
            "onnxruntime is not installed: pip install onnxruntime, or leave out "
            f"{FALLBACK_PROVIDER}"
        ) from None


def __getattr__(name: str) -> Any:
    """Return a name of onnxruntime's own, such as ``SessionOptions``."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(_onnxruntime(), name)
    except BackendUnavailable as error:
        raise AttributeError(f"{name}: {error}") from None
