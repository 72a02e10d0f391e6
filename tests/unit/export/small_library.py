"""Inputs and expected results of the library of sums, compiled without optimization."""

from __future__ import annotations

from functools import partial

import numpy as np

from cpembed.export import library as written
from tests.unit.export.handwritten import SIZE

write_library = partial(written.write_library, options=("-O0",))

X = np.random.default_rng(1).integers(-1000, 1000, (SIZE // 10, 10), dtype=np.int32)
W = np.random.default_rng(2).integers(-1000, 1000, SIZE, dtype=np.int32)
Y = -(X.reshape(-1) + 2 * W - 7)
