"""Constraint files: what is refused, in one line that names the file and the key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.constraints.domain import Padding
from cpembed.errors import SpecError

WRONG = {
    "[weights]\nmac = nan": "weights: mac is nan",
    "[weights]\ndata = -1": "weights: data is -1",
    "[flatten]\nmax_axes = 0": "flatten: max_axes is 0",
    "[flatten]\nmin_extent = 0": "flatten: min_extent is 0",
    "[digits]\nper_axis = 0": "digits: per_axis is 0",
    '[padding]\naxes = "all"\ngrowth = 0.5': "padding: growth is 0.5",
    "[digits]\nper_axis = 9999999999": "digits: 9999999999 is beyond any size: at most 2147483647",
    f'extends = "{"x" * 3000}"': "which is no set",
    "name = 3": "name is 3",
    "extends = 3": "extends is 3",
    'extends = "missing"': "extends 'missing', which is no set",
    "[dense]\nstride = 1": "unknown key dense.stride",
    "[densse]": "did you mean dense?",
    "[padding]": "padding speaks of the boxes",
    "[dense": "not valid TOML",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_values_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as raised:
        load_constraint_set(str(path))
    message = str(raised.value)
    assert message.startswith(str(path))
    assert WRONG[text] in message
    assert "\n" not in message


def test_a_file_extends_a_shipped_set(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "strict"\nlinear_access = false\n[padding]\naxes = ["c"]\n')
    found = load_constraint_set(str(path))
    assert found.get("linear_access") is None
    assert found.padding.axes == ("c",)
    assert found.get("hyper_rectangle") is not None


def test_a_table_replaces_the_extended_one_whole(tmp_path: Path) -> None:
    """What docs/add-a-constraint.md says of its example."""
    path = tmp_path / "mine.toml"
    path.write_text('extends = "strict_padded"\n[padding]\nbelow = 16\n')
    assert load_constraint_set("strict_padded").padding.axes == "all"
    assert load_constraint_set(str(path)).padding == Padding((), below=16)


def test_constraints_post_in_one_order_however_they_are_given() -> None:
    """A constraint may rely on what an earlier one posted: boxes come first."""
    shipped = load_constraint_set("relaxed")
    reversed_ = replace(shipped, constraints=shipped.constraints[::-1])
    assert reversed_.constraints == shipped.constraints
    assert shipped.constraints[0].name == "hyper_rectangle"
