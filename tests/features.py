"""Skips of tests that execute instructions which this CPU may lack."""

from __future__ import annotations

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.hw.instruction import HardwareSpec
from cpembed.targets.x86.features import missing_features


def needs(target: str | HardwareSpec) -> pytest.MarkDecorator:
    """Marker of tests that execute a target's instruction; the reason names what is missing."""
    missing = missing_features(hardware_spec(target) if isinstance(target, str) else target)
    return pytest.mark.skipif(bool(missing), reason=f"missing: {', '.join(missing)}")


def require_features(spec: HardwareSpec) -> None:
    """Skip the running test, with the names of the features, if this CPU lacks one of a target."""
    if missing := missing_features(spec):
        pytest.skip(f"missing: {', '.join(missing)}")
