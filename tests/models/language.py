"""BERT (Devlin et al. 2019), a small causal transformer, and a step of an LSTM with multiplicative
integration (Wu et al. 2016) with its classifier."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from tests.models.building import ModelBuilder


def bert_base(
    sequence: int = 128,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
    seed: int = 0,
    masked: bool = False,
) -> onnx.ModelProto:
    """The encoder and its pooler; ``masked`` adds the input ``attention_mask``."""
    net = ModelBuilder("bert_base", seed)
    tokens = net.input("input_ids", (1, sequence), TensorProto.INT64)
    mask = _attention_mask(net, sequence) if masked else None
    table = net.constant(net.weights(vocabulary, width, summed=1, gain=0.05))
    places = net.constant(net.weights(1, sequence, width, summed=1, gain=0.05))
    x = _normalised(net, net.node("Add", net.node("Gather", table, tokens), places), width)
    for _ in range(layers):
        attended = _attention(net, x, sequence, width, heads, mask)
        x = _normalised(net, net.node("Add", attended, x), width)
        y = net.linear(_gelu(net, net.linear(x, width, 4 * width)), 4 * width, width)
        x = _normalised(net, net.node("Add", y, x), width)
    first = net.node("Gather", x, net.constant(np.asarray(0, np.int64)), axis=1)
    pooled = net.node("Tanh", net.linear(first, width, width))
    return net.model(hidden=x, pooled=pooled)


def transformer(
    sequence: int = 32,
    layers: int = 2,
    width: int = 128,
    heads: int = 4,
    vocabulary: int = 1000,
    seed: int = 0,
) -> onnx.ModelProto:
    """A causal language model: normalisation first and decomposed into elementary operators, GELU
    by tanh, the scores of the next token for every position."""
    net = ModelBuilder("transformer", seed)
    tokens = net.input("input_ids", (1, sequence), TensorProto.INT64)
    later = np.triu(np.full((sequence, sequence), -1e4, np.float32), 1)
    mask = net.constant(later.reshape(1, 1, sequence, sequence))
    table = net.constant(net.weights(vocabulary, width, summed=1, gain=0.05))
    places = net.constant(net.weights(1, sequence, width, summed=1, gain=0.05))
    x = net.node("Add", net.node("Gather", table, tokens), places)
    for _ in range(layers):
        y = _attention(net, _decomposed(net, x, width), sequence, width, heads, mask)
        x = net.node("Add", x, y)
        y = net.linear(_decomposed(net, x, width), width, 4 * width)
        x = net.node("Add", x, net.linear(_tanh_gelu(net, y), 4 * width, width))
    x = _decomposed(net, x, width)
    return net.model(logits=net.linear(x, width, vocabulary))


def milstm(
    features: int = 784, width: int = 1024, classes: int = 10, batch: int = 1, seed: int = 0
) -> onnx.ModelProto:
    """One step: the input's and the state's products of four gates, and the classifier's, nine
    linear layers. A gate is ``a * Wx * Uh + b * Wx + c * Uh + d``."""
    net = ModelBuilder("milstm", seed)
    x = net.input("input", (batch, features))
    hidden, cell = net.input("hidden", (batch, width)), net.input("cell", (batch, width))
    gates: list[str] = []
    for act in ("Sigmoid", "Sigmoid", "Sigmoid", "Tanh"):
        wx, uh = (
            net.node("MatMul", y, net.constant(net.weights(depth, width, summed=depth, gain=1.0)))
            for y, depth in ((x, features), (hidden, width))
        )
        a, b, c = (net.constant(1 + net.bias(width)) for _ in range(3))
        terms = net.node("Mul", net.node("Mul", wx, uh), a)
        for term in (net.node("Mul", wx, b), net.node("Mul", uh, c), net.constant(net.bias(width))):
            terms = net.node("Add", terms, term)
        gates.append(net.node(act, terms))
    forget, write, read, new = gates
    kept = net.node("Add", net.node("Mul", forget, cell), net.node("Mul", write, new))
    state = net.node("Mul", read, net.node("Tanh", kept))
    return net.model(
        logits=net.linear(state, width, classes), next_hidden=state, next_cell=kept
    )  # fmt: skip


def _attention(
    net: ModelBuilder, x: str, sequence: int, width: int, heads: int, mask: str | None
) -> str:  # fmt: skip
    """Self-attention of several heads; ``mask`` is added to the scores."""
    depth = width // heads
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (
        net.node(
            "Transpose",
            net.node("Reshape", net.linear(x, width, width), net.shape(1, sequence, heads, depth)),
            perm=order,
        )
        for order in orders
    )
    scores = net.node("Div", net.node("MatMul", query, key), net.scalar(math.sqrt(depth)))
    if mask is not None:
        scores = net.node("Add", scores, mask)
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), value)
    y = net.node("Transpose", y, perm=[0, 2, 1, 3])
    return net.linear(net.node("Reshape", y, net.shape(1, sequence, width)), width, width)


def _attention_mask(net: ModelBuilder, sequence: int) -> str:
    """1 where a token counts, as what is added to the scores."""
    given = net.input("attention_mask", (1, sequence), TensorProto.INT64)
    wide = net.node("Unsqueeze", given, net.shape(1, 2))
    absent = net.node("Sub", net.scalar(1.0), net.node("Cast", wide, to=TensorProto.FLOAT))
    return net.node("Mul", absent, net.scalar(-1e4))


def _normalised(net: ModelBuilder, x: str, width: int) -> str:
    scale, shift = net.constant(1 + net.bias(width)), net.constant(net.bias(width))
    return net.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)


def _decomposed(net: ModelBuilder, x: str, width: int) -> str:
    """Layer normalisation as exporters without such an operator write it."""
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
    variance = net.node("ReduceMean", net.node("Pow", centred, net.scalar(2.0)), axes=[-1])
    deviation = net.node("Sqrt", net.node("Add", variance, net.scalar(1e-5)))
    y = net.node("Mul", net.node("Div", centred, deviation), net.constant(1 + net.bias(width)))
    return net.node("Add", y, net.constant(net.bias(width)))


def _gelu(net: ModelBuilder, x: str) -> str:
    erf = net.node("Erf", net.node("Div", x, net.scalar(math.sqrt(2))))
    y = net.node("Mul", x, net.node("Add", erf, net.scalar(1.0)))
    return net.node("Mul", y, net.scalar(0.5))


def _tanh_gelu(net: ModelBuilder, x: str) -> str:
    cube = net.node("Mul", net.node("Pow", x, net.scalar(3.0)), net.scalar(0.044715))
    inner = net.node("Mul", net.node("Add", x, cube), net.scalar(math.sqrt(2 / math.pi)))
    y = net.node("Mul", x, net.node("Add", net.node("Tanh", inner), net.scalar(1.0)))
    return net.node("Mul", y, net.scalar(0.5))
