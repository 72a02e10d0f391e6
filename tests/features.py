"""Skips of tests that execute instructions which this CPU may lack."""

from __future__ import annotations

import pytest

from cpembed.hw.instruction import HardwareSpec
from cpembed.targets.x86.features import missing_features


def require_features(spec: HardwareSpec) -> None:
    """Skip the running test, with the names of the features, if this CPU lacks one of a target."""
    if missing := missing_features(spec):
        pytest.skip(f"missing: {', '.join(missing)}")
