"""A decoder of Llama's kind as an ONNX file: weights of four bits, caches as inputs and outputs.

Each layer has an RMS norm, grouped-query attention with rotary embedding on a cache of keys and
values, another norm, and an MLP gated by SiLU. All matrices are MatMulNBits, the embedding is
GatherBlockQuantized. A cache holds ``context`` positions; TensorScatter writes those of the new
tokens, which a library does in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]

_MICROSOFT = "com.microsoft"
# Score of a position that a token must not see.
_HIDDEN = np.float32(-1e9)


@dataclass(frozen=True)
class Config:
    """Sizes of a decoder.

    Attributes
    ----------
    vocabulary, width, layers : int
        Number of tokens, elements of a hidden state, and layers.
    heads, kv_heads, head_width : int
        Heads of queries, heads of keys and values that they share, and elements of a head.
    hidden : int
        Elements between the products of the MLP.
    context : int
        Positions of a cache.
    block : int
        Columns of a group of weights.
    accuracy_level : int
        4 rounds activations to int8; 0 multiplies floats.
    """

    vocabulary: int = 256
    width: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 32
    hidden: int = 256
    context: int = 64
    block: int = 32
    accuracy_level: int = 0

    @property
    def weights(self) -> int:
        """Number of weights of the layers."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_width
        return self.layers * (attention + 3 * self.width * self.hidden)

    def caches(self) -> dict[str, Array]:
        """Return empty caches by their names as inputs."""
        shape = (1, self.kv_heads, self.context, self.head_width)
        names = (f"{kind}.{layer}" for layer in range(self.layers) for kind in ("keys", "values"))
        return {f"past_{name}": np.zeros(shape, np.float32) for name in names}


class _Writer:
    """Nodes and constants of a model that is being written."""

    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._count = 0

    def constant(self, array: Array) -> str:
        self._count += 1
        name = f"constant.{self._count}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        self._count += 1
        output = output or f"{operator}.{self._count}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def shaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def _scales(self, rows: int, columns: int) -> Array:
        # Results have about the magnitude of the activations.
        scale = 0.25 / np.sqrt(columns)
        shape = (rows, columns // self.config.block)
        return (scale * self.random.uniform(0.5, 1.5, shape)).astype(np.float32)

    def linear(self, x: str, columns: int, rows: int) -> str:
        block = self.config.block
        packed = self.random.integers(0, 256, (rows, columns // block, block // 2), np.uint8)
        return self.node(
            "MatMulNBits", x, self.constant(packed),
            self.constant(self._scales(rows, columns).reshape(-1)), domain=_MICROSOFT, K=columns,
            N=rows, bits=4, block_size=block, accuracy_level=self.config.accuracy_level,
        )  # fmt: skip

    def embedded(self, tokens: str) -> str:
        rows, columns = self.config.vocabulary, self.config.width
        table = self.random.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
        scales = self._scales(rows, columns) * np.float32(np.sqrt(columns))
        return self.node(
            "GatherBlockQuantized", self.constant(table), tokens, self.constant(scales),
            domain=_MICROSOFT, block_size=self.config.block, gather_axis=0, quantize_axis=1, bits=4,
        )  # fmt: skip

    def norm(self, x: str) -> str:
        scale = self.random.uniform(0.8, 1.2, self.config.width).astype(np.float32)
        return self.node("RMSNormalization", x, self.constant(scale), axis=-1, epsilon=1e-5)


def decoder(config: Config, tokens: int, seed: int = 0) -> onnx.ModelProto:
    """Return a decoder of ``tokens`` new tokens; equal seeds give equal weights.

    Inputs are ``tokens`` [1, tokens], the position ``first`` [1] of the first of them, and the
    caches. Outputs are the ``logits`` [1, vocabulary] after the last token, and the caches.
    """
    w, c = _Writer(config, seed), config
    # What tokens must not see: positions of the cache behind their own.
    steps = w.constant(np.arange(tokens, dtype=np.int64).reshape(1, tokens))
    positions = w.node("Add", steps, "first")
    places = w.constant(np.arange(c.context, dtype=np.int64))
    is_visible = w.node("LessOrEqual", places, w.shaped(positions, tokens, 1))
    zero, hidden = w.constant(np.float32(0)), w.constant(_HIDDEN)
    mask = w.node("Where", is_visible, zero, hidden)
    angles = np.outer(
        np.arange(c.context), 10_000.0 ** (-np.arange(0, c.head_width, 2) / c.head_width)
    )
    tables = [w.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    rotation = [w.node("Gather", table, positions, axis=0) for table in tables]
    x = w.embedded("tokens")
    for layer in range(c.layers):
        x = w.node("Add", x, _attention(w, w.norm(x), layer, tokens, mask, rotation))
        x = w.node("Add", x, _mlp(w, w.norm(x)))
    last = w.node("Gather", x, w.constant(np.int64(tokens - 1)), axis=1)
    logits = w.linear(w.norm(last), c.width, c.vocabulary)
    w.node("Identity", logits, output="logits")
    return _model(w, tokens)


def _attention(w: _Writer, x: str, layer: int, tokens: int, mask: str, rotation: list[str]) -> str:
    """Write the attention of a layer.

    Parameters
    ----------
    w : _Writer
    x : str
        Normalized hidden states.
    layer, tokens : int
        Number of the layer, and of the new tokens.
    mask : str
        Addend of the scores [tokens, context].
    rotation : list of str
        Cosines and sines of the new tokens' positions.
    """
    c = w.config
    shared = c.heads // c.kv_heads

    def heads(count: int) -> str:
        projected = w.linear(x, c.width, count * c.head_width)
        split = w.shaped(projected, 1, tokens, count, c.head_width)
        return w.node("Transpose", split, perm=[0, 2, 1, 3])

    queries, keys, values = heads(c.heads), heads(c.kv_heads), heads(c.kv_heads)
    queries, keys = (w.node("RotaryEmbedding", each, *rotation) for each in (queries, keys))
    caches = [
        w.node(
            "TensorScatter", f"past_{name}.{layer}", new, "first", output=f"{name}.{layer}", axis=2
        )
        for name, new in (("keys", keys), ("values", values))
    ]
    # Heads that share keys are rows of one product, so that no cache is repeated.
    rows = w.shaped(queries, 1, c.kv_heads, shared * tokens, c.head_width)
    scale = w.constant(np.float32(c.head_width**-0.5))
    transposed = w.node("Transpose", caches[0], perm=[0, 1, 3, 2])
    scores = w.node("Mul", w.node("MatMul", rows, transposed), scale)
    scores = w.shaped(scores, c.kv_heads, shared, tokens, c.context)
    shares = w.node("Softmax", w.node("Add", scores, mask), axis=-1)
    shares = w.shaped(shares, 1, c.kv_heads, shared * tokens, c.context)
    mixed = w.shaped(w.node("MatMul", shares, caches[1]), 1, c.heads, tokens, c.head_width)
    joined = w.node("Transpose", mixed, perm=[0, 2, 1, 3])
    width = c.heads * c.head_width
    return w.linear(w.shaped(joined, 1, tokens, width), width, c.width)


def _mlp(w: _Writer, x: str) -> str:
    c = w.config
    gate, up = w.linear(x, c.width, c.hidden), w.linear(x, c.width, c.hidden)
    activated = w.node("Mul", gate, w.node("Sigmoid", gate))
    return w.linear(w.node("Mul", activated, up), c.hidden, c.width)


def _model(w: _Writer, tokens: int) -> onnx.ModelProto:
    c = w.config
    floats, integers = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    caches = {name: cache.shape for name, cache in c.caches().items()}
    inputs = [
        helper.make_tensor_value_info("tokens", integers, (1, tokens)),
        helper.make_tensor_value_info("first", integers, (1,)),
        *(helper.make_tensor_value_info(name, floats, shape) for name, shape in caches.items()),
    ]
    outputs = [helper.make_tensor_value_info("logits", floats, (1, c.vocabulary))]
    for name, shape in caches.items():
        updated = name.removeprefix("past_")
        outputs.append(helper.make_tensor_value_info(updated, floats, shape))
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.constants)
    versions = [helper.make_opsetid("", 24), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=11)


def save(config: Config, tokens: int, path: Path, seed: int = 0) -> Path:
    """Write a decoder, with its weights in a file beside it where they are large.

    Parameters
    ----------
    config : Config
    tokens : int
        Number of new tokens of a call.
    path : Path
    seed : int
    """
    model = decoder(config, tokens, seed)
    onnx.save_model(
        model, str(path), save_as_external_data=True, location=f"{path.name}.data",
        size_threshold=1 << 16,
    )  # fmt: skip
    return path
