from __future__ import annotations

import pytest

from cpembed.targets.x86 import features
from tests.cli.calling import Caller


@pytest.fixture
def cpembed(capsys: pytest.CaptureFixture[str]) -> Caller:
    """Calls the command line in this process."""
    return Caller(capsys)


@pytest.fixture
def bare_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without any feature."""
    monkeypatch.setattr(features, "cpu_features", frozenset)
    monkeypatch.delenv(features.ASSUME_VARIABLE, raising=False)
