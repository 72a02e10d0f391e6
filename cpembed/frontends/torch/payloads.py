"""Parameters, buffers and constants of a saved program: raw bytes and a description of each."""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from cpembed.errors import ModelError
from cpembed.frontends.builder import LARGEST_TENSOR
from cpembed.frontends.torch import description as d
from cpembed.frontends.torch.archive import (
    CONSTANTS,
    CONSTANTS_INDEX,
    WEIGHTS,
    WEIGHTS_INDEX,
    Archive,
)

ELEMENT_TYPES: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
    28: torch.uint16,
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz,
    34: torch.uint32,
    35: torch.uint64,
}
"""By the numbers that PyTorch gives them in a file."""
STRIDED = 7
"""PyTorch's number of the layout of dense tensors."""
_REPEATED_BYTES, _REPEATED_SHARE = 64 << 20, 4
"""Tensors have at most these bytes together, and so many times those of the members: strides may
repeat elements, and several tensors may share a member."""


class Payloads:
    """The tensors that an archive holds, made of raw bytes by their descriptions."""

    def __init__(self, archive: Archive) -> None:
        self.path, self.members = archive.path, archive.tensors
        self.indices: dict[str, Mapping[str, d.Payload]] = {}
        for folder, name in ((WEIGHTS, WEIGHTS_INDEX), (CONSTANTS, CONSTANTS_INDEX)):
            index = d.decoded(f"{archive.path}: {name}", archive.texts[name], d.PayloadIndex)
            self.indices[folder] = index.config
        self._storages: dict[str, torch.Tensor] = {}
        self._stored = sum(map(len, self.members.values()))
        self._room = _REPEATED_BYTES + _REPEATED_SHARE * self._stored

    def tensor(self, target: str, folder: str) -> torch.Tensor:
        """A parameter, buffer or constant by its name in the model.

        Raises
        ------
        ModelError
            For one that is missing, is an object of Python, or does not fit its member.
        """
        # A buffer that is not saved with a model's weights is among the constants.
        folders = dict.fromkeys((folder, CONSTANTS))
        found = next((f for f in folders if target in self.indices[f]), None)
        place = f"{self.path}: {target[:200]}"
        if found is None:
            raise ModelError(f"{place}: the archive does not say where it is")
        payload = self.indices[found][target]
        if payload.use_pickle or payload.tensor_meta is None:
            raise ModelError(f"{place} is an object of Python: a network holds tensors")
        if found + payload.path_name not in self.members:
            raise ModelError(f"{place}: the archive holds no {payload.path_name[:60]!r}")
        return self._strided(place, found + payload.path_name, payload.tensor_meta)

    def _strided(self, place: str, member: str, meta: d.TensorMeta) -> torch.Tensor:
        sizes = [d.integer(place, union) for union in meta.sizes]
        strides = [d.integer(place, union) for union in meta.strides]
        offset = d.integer(place, meta.storage_offset)
        check_layout(place, meta, sizes, strides)
        dtype = ELEMENT_TYPES[meta.dtype]
        content = self.members[member]
        elements = math.prod(sizes)
        last = offset + sum((s - 1) * t for s, t in zip(sizes, strides, strict=True))
        if elements and (last + 1) * dtype.itemsize > len(content):
            raise ModelError(
                f"{place}: the tensor ends at byte {(last + 1) * dtype.itemsize:,} of its storage, "
                f"which has {len(content):,}"
            )
        self._room -= elements * dtype.itemsize
        if self._room < 0:
            raise ModelError(
                f"{place}: the tensors up to this one are made of {self._stored:,} bytes by "
                f"repetition, and have more than {_REPEATED_BYTES:,} and {_REPEATED_SHARE} times "
                "these: expand them in the model's forward"
            )
        if not elements:
            return torch.empty(sizes, dtype=dtype)
        if dtype is torch.bool and content.translate(None, b"\0\1"):
            raise ModelError(f"{place}: a Boolean is neither 0 nor 1")
        storage = self._storage(member)
        whole = storage[: len(content) // dtype.itemsize * dtype.itemsize].view(dtype)
        return torch.as_strided(whole, sizes, strides, offset)

    def _storage(self, member: str) -> torch.Tensor:
        if member not in self._storages:
            # A copy: PyTorch wants memory that it may write to.
            self._storages[member] = torch.frombuffer(
                bytearray(self.members[member]), dtype=torch.uint8
            )
        return self._storages[member]


def check_layout(place: str, meta: d.TensorMeta, sizes: list[int], strides: list[int]) -> None:
    """Raise :class:`ModelError` for a tensor that is not dense, not on the CPU, or too large."""
    if meta.layout != STRIDED:
        raise ModelError(f"{place} is no dense tensor: convert it before the export")
    if meta.dtype not in ELEMENT_TYPES:
        raise ModelError(f"{place}: the element type {meta.dtype} is not known")
    if meta.device.type != "cpu":
        raise ModelError(
            f"{place} is on {meta.device.type[:40]}: move the model to the CPU before the export"
        )
    if len(sizes) != len(strides) or len(sizes) > 64:
        raise ModelError(f"{place} is damaged: {len(sizes)} sizes and {len(strides)} strides")
    if max([*sizes, *strides, math.prod(sizes)], default=0) > LARGEST_TENSOR:
        raise ModelError(f"{place} has {math.prod(sizes):,} elements: at most 2^31 are taken")
