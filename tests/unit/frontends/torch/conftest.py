"""A saved program, which tests of archives read or change."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from tests.unit.frontends.torch.archives import saved

    return saved(tmp_path_factory.mktemp("saved") / "model.pt2")


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model.pt2"
    copy.write_bytes(original.read_bytes())
    return copy
