"""A trained encoder of sentences (all-MiniLM-L6-v2): its weights in our own BERT, and its words."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.models.language import bert_base

SEQUENCE, LAYERS, WIDTH, HEADS = 32, 6, 384, 12
NEAR = ("A man is eating a piece of bread.", "Someone eats some bread.")
FAR = ("A cheetah chases its prey across a field.", "The engine compiles a network ahead of time.")
"""Sentences that mean nearly the same, and sentences that have nothing to do with those."""


def encoder(folder: Path) -> onnx.ModelProto:
    """Return the network with the weights in ``folder/model.safetensors``."""
    weights = _safetensors(folder / "model.safetensors")
    vocabulary = len(weights["embeddings.word_embeddings.weight"])
    model = bert_base(SEQUENCE, LAYERS, WIDTH, HEADS, vocabulary, masked=True)
    arrays = _in_order(weights)
    for constant in model.graph.initializer:
        if constant.data_type == onnx.TensorProto.FLOAT and constant.dims:
            array = next(arrays)
            if array.shape != tuple(constant.dims):
                raise ValueError(f"{constant.name} is {list(constant.dims)}, not {array.shape}")
            constant.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), constant.name))
    if next(arrays, None) is not None:
        raise ValueError(f"{folder}: more weights than the network has")
    return model


def _in_order(weights: dict[str, NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield the weights as ``bert_base`` creates its own; products are transposed there."""

    def linear(name: str) -> Iterator[NDArray[np.float32]]:
        yield weights[f"{name}.weight"].T
        yield weights[f"{name}.bias"]

    def normalisation(name: str) -> Iterator[NDArray[np.float32]]:
        yield weights[f"{name}.LayerNorm.weight"]
        yield weights[f"{name}.LayerNorm.bias"]

    yield weights["embeddings.word_embeddings.weight"]
    places = weights["embeddings.position_embeddings.weight"][:SEQUENCE]
    yield (places + weights["embeddings.token_type_embeddings.weight"][0])[None]
    yield from normalisation("embeddings")
    for k in range(LAYERS):
        layer = f"encoder.layer.{k}"
        for part in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{part}")
        yield from linear(f"{layer}.attention.output.dense")
        yield from normalisation(f"{layer}.attention.output")
        yield from linear(f"{layer}.intermediate.dense")
        yield from linear(f"{layer}.output.dense")
        yield from normalisation(f"{layer}.output")
    yield from linear("pooler.dense")


def _safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """The float32 tensors of a file: a header in JSON that says where each one lies."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    return {
        name: np.frombuffer(
            data, np.float32, (about["data_offsets"][1] - about["data_offsets"][0]) // 4,
            8 + length + about["data_offsets"][0],
        ).reshape(about["shape"])
        for name, about in header.items()
        if about.get("dtype") == "F32"
    }  # fmt: skip


def tokens(sentence: str, vocabulary: list[str]) -> dict[str, NDArray[np.int64]]:
    """Return the network's inputs, by the longest known parts of each word."""
    number = {word: k for k, word in enumerate(vocabulary)}
    spaced = "".join(c if c.isalnum() else f" {c} " for c in sentence.lower())
    parts = ["[CLS]", *(part for word in spaced.split() for part in _parts(word, number)), "[SEP]"]
    ids, mask = np.zeros((2, 1, SEQUENCE), np.int64)
    ids[0, : len(parts)] = [number[part] for part in parts]
    mask[0, : len(parts)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _parts(word: str, number: dict[str, int]) -> list[str]:
    """Return the parts of a word; the entire word is unknown if one of its parts is."""
    parts: list[str] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((e for e in ends if prefix + word[start:e] in number), None)
        if end is None:
            return ["[UNK]"]
        parts.append(prefix + word[start:end])
        start = end
    return parts


def meaning(hidden: NDArray[np.float32], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a sentence's vector of length one: the mean over its tokens."""
    mean = (hidden[0] * mask[0, :, None]).sum(0)
    return mean / np.sqrt((mean * mean).sum())
