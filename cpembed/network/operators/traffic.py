"""Bytes that a generated kernel reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpembed.graph.kinds import Expand, Gather, Kind, Slice
from cpembed.network.operators.placed import Placed


def bytes_moved(kind: Kind, inputs: Sequence[Placed], outputs: Sequence[Placed]) -> int:
    """Of the elements that a kernel reads, each counted once, and of those that it writes; halos
    are not touched. A slice and a gather read no more of the data than they write."""
    written = sum(tensor.bytes for tensor in outputs)
    if isinstance(kind, (Slice, Gather, Expand)):
        size = np.dtype(inputs[0].stored).itemsize
        taken = min(inputs[0].type.elements, outputs[0].type.elements) * size
        return taken + sum(tensor.bytes for tensor in inputs[1:]) + written
    return sum(tensor.bytes for tensor in inputs) + written
