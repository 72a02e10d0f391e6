"""What tests know of a shipped specification beside the specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

Model = Callable[[Array, Array, Array], None]
"""An instruction on the flat tiles of A, B and C, by the manual's pseudo-code; C changes."""

Irregular = Callable[[Mapping[str, Array]], Array]
"""The result of an instruction that is no sum of products, of its operands by name."""


@dataclass(frozen=True)
class Facts:
    """Figures of a manual; None: not looked up.

    ``types`` are those of A, B and C, each combination that there is, sorted; ``free`` are the
    operands and axes along which elements may lie any distance apart.
    """

    extents: Mapping[str, int]
    backend: str | None = None
    features: tuple[str, ...] = ()
    types: tuple[str, ...] | None = None
    free: frozenset[str] | None = None


def facts(
    extents: str,
    backend: str | None = None,
    features: str = "",
    types: str | None = None,
    free: str | None = None,
) -> Facts:
    """From texts: ``x 16, y 16``, names, ``int8 int8 int32, ...``, and ``A.x, C.x``."""
    sizes = dict(part.split() for part in extents.split(", "))
    return Facts(
        {name: int(size) for name, size in sizes.items()},
        backend,
        tuple(features.split()),
        None if types is None else tuple(types.split(", ")),
        None if free is None else frozenset(free.split(", ") if free else ()),
    )
