"""Markers of tests that need a compiler which a minimal system does not have."""

from __future__ import annotations

import pytest

from cpembed.accelerator.executor import COMPILER

needs_executor = pytest.mark.skipif(
    bool(COMPILER.missing()), reason=f"missing: {', '.join(COMPILER.missing())}"
)
"""Marker of tests that execute programs of described machines, which takes a C++ compiler."""
