"""Drawing, where matplotlib is installed."""

from __future__ import annotations

import sys
from typing import Any


def pyplot() -> Any:
    """Matplotlib's interface for drawing reproducible SVG; None where it is not installed, which is
    said.
    """
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (extra: bench)", file=sys.stderr)
        return None
    mpl.rcParams["svg.hashsalt"] = "cpembed"
    return plt
