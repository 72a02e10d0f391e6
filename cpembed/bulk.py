"""Creation of millions of values without the garbage collector's search for cycles."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Generator[None]:
    """Suspend Python's search for cycles in the body; also a decorator of functions.

    Embeddings, layouts and lemmas are values without cycles, of which a complete enumeration makes
    millions that live to its end. Searching them again and again for garbage took up to two fifths
    of its time. Reference counting still frees values.
    """
    # Bodies may be nested: only the outermost enables the search again.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
