"""Small tensors on several threads, which would run on one."""

from __future__ import annotations

import pytest

from cpembed.network.operators import emission


@pytest.fixture(autouse=True)
def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emission, "SHARE_BYTES", 256)
