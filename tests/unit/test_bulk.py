"""No collection inside, and the collector as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cpembed.bulk import without_collection


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_nothing_is_collected_inside_and_all_is_as_before_after() -> None:
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with without_collection():
        pass
    assert not gc.isenabled()


def test_an_error_brings_it_back() -> None:
    def fail() -> None:
        with without_collection():
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert gc.isenabled()


def test_as_a_decorator_it_can_be_used_again() -> None:
    @without_collection()
    def inside() -> bool:
        return gc.isenabled()

    assert [inside(), inside()] == [False, False]
    assert gc.isenabled()
