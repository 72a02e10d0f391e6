"""Creating very many values: what keeps the garbage collector from looking at all of them."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Generator[None]:
    """Leave out Python's search for cycles inside; also a decorator of functions.

    Embeddings, layouts and lemmas are values without cycles, of which a complete enumeration makes
    millions that live to its end. Searching them again and again for garbage took up to two fifths
    of its time; what reference counting frees is freed all the same.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
