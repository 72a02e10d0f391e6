"""Which targets there are, and what is said of a specification that names none of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.errors import BackendUnavailable, SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.base import Target
from cpembed.targets.known import BUILT_IN, require_known
from cpembed.targets.registry import all_targets, missing_for, open_target, target_class
from tests.unit.plugins.conftest import Install, install

__all__ = ["install"]

SPEC = load_hardware_spec("vta_1x16x16")


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_built_in_is_a_target_of_that_name(name: str) -> None:
    kind = target_class(name)
    assert kind is not None
    assert issubclass(kind, Target)
    assert all_targets()[name] is kind


def test_an_unknown_back_end_is_one_line() -> None:
    assert require_known(SPEC) is SPEC
    assert require_known(replace(SPEC, backend=None)).backend is None
    with pytest.raises(SpecError) as caught:
        require_known(replace(SPEC, backend="vtta"))
    words = str(caught.value)
    assert words.startswith(f"{SPEC.path}: backend: unknown backend 'vtta' (did you mean vta?)")
    assert f"allowed: {', '.join(BUILT_IN)}, " in words
    assert "the name of an entry point of cpembed.targets, or leave the key out" in words
    assert "\n" not in words


@pytest.mark.parametrize(
    "name, problem",
    [
        ("cut_boxs", "no constraint set named 'cut_boxs': there are boxes, "),
        ("", "no constraint set named ''"),
        ("missing.toml", "missing.toml"),
    ],
)
def test_an_unknown_constraint_set_is_one_line(name: str, problem: str) -> None:
    assert require_known(replace(SPEC, constraints="boxes")).constraints == "boxes"
    with pytest.raises(SpecError) as caught:
        require_known(replace(SPEC, constraints=name))
    assert str(caught.value).startswith(f"{SPEC.path}: constraints: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_nothing_executes_is_missing_its_back_end() -> None:
    spec = hardware_spec("gemm_16x16x16")
    with pytest.raises(BackendUnavailable, match="no back end executes gemm_16x16x16 yet"):
        open_target(spec)
    assert missing_for(spec) == ("no back end executes gemm_16x16x16 yet",)
    assert missing_for(SPEC) == ()


def test_what_is_no_target_says_so_and_is_left_out_of_lists(install: Install) -> None:
    install(
        "not-one", {"cpembed.targets": {"odd": "odd_module:VALUE"}}, {"odd_module.py": "VALUE = 1"}
    )
    with pytest.raises(SpecError, match=r"not-one: .* is no class derived from .*base\.Target"):
        open_target(replace(SPEC, backend="odd"))
    assert require_known(replace(SPEC, backend="odd")).backend == "odd"
    assert "odd" not in all_targets()
