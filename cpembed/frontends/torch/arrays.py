"""Arrays of tensors of PyTorch and back, with the same elements in memory."""

# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from cpembed.graph.kinds.base import Array


def as_array(tensor: torch.Tensor) -> Array:
    """Return the elements of a tensor in row-major order, without a copy where they are."""
    plain = tensor.detach().contiguous()
    # numpy itself has no bfloat16: the bits are those of ml_dtypes.
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def as_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor, without a copy of elements that are in row-major order."""
    # Unlike ascontiguousarray, this leaves an array without axes one without axes.
    plain = np.asarray(array, order="C")
    if plain.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(plain)
