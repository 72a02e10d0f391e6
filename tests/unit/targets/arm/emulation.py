"""What the tests of Arm's kernels share."""

from __future__ import annotations

import pytest

from cpembed.targets.arm.emulator import emulator, missing

needs_emulator = pytest.mark.skipif(emulator() is None, reason=f"missing: {missing()}")
