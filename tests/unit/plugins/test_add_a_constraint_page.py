"""The page on adding a constraint: its package works as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.embedding.constraints import CONSTRAINTS
from cpembed.errors import InvariantError
from tests.cli.calling import Caller
from tests.unit.plugins.conftest import Install

PAGE = (Path(__file__).parents[3] / "docs" / "add-a-constraint.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


FILES = {
    "cpembed_keep/__init__.py": PYTHON[0],
    "cpembed_keep/sets/one_image.toml": TOML[1],
    "cpembed_keep/targets/tiny.toml": TOML[2],
}


@pytest.fixture(autouse=True)
def package(install: Install) -> None:
    project = tomllib.loads(TOML[0])["project"]
    assert all(name in PAGE for name in FILES)
    install(project["name"], project["entry-points"], FILES)


@pytest.mark.slow
def test_pip_installs_the_package_as_it_is_written(tmp_path: Path) -> None:
    for name, text in {"pyproject.toml": TOML[0], **FILES}.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    there = tmp_path / "installed"
    # Of this environment, which has hatchling: nothing is downloaded.
    offline = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    install = (sys.executable, "-m", "pip", "install", *offline, "--target", str(there), ".")
    done = subprocess.run(install, cwd=tmp_path / "package", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(there), str(Path.cwd())])}
    command = re.search(r"    cpembed (solve .* --constraints one_image)\n", PAGE)
    assert command
    solved = subprocess.run(
        [sys.executable, "-m", "cpembed", *command[1].split(), "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert solved.returncode == 0, solved.stderr
    assert json.loads(solved.stdout)["constraints"] == "one_image"


def test_brute_force_agrees_as_the_page_tests_it() -> None:
    scope: dict[str, object] = {"__name__": "example"}
    exec(PYTHON[1], scope)
    test = scope["test_keep_is_the_same_in_all_faces"]
    (cases,) = test.pytestmark  # type: ignore[attr-defined]
    assert len(cases.args[1]) == 3
    for arguments in cases.args[1]:
        test(*arguments)  # type: ignore[operator]


@pytest.mark.parametrize(
    "old, new",
    [
        ("ids.ravel()[1:],", "ids.ravel()[1:2],"),
        ("return not any(", "return any("),
        ("return not set(option", "return True or not set(option"),
    ],
    ids=["post", "holds", "allows"],
)
def test_the_pages_test_notices_a_face_that_differs(old: str, new: str) -> None:
    import cpembed_keep  # type: ignore[import-not-found]

    assert PYTHON[0].count(old) == 1
    exec(PYTHON[0].replace(old, new), vars(cpembed_keep))
    with pytest.raises((AssertionError, InvariantError)):
        test_brute_force_agrees_as_the_page_tests_it()


def test_the_set_of_the_page_keeps_the_axis_out(capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r"    cpembed (solve .* --constraints one_image)\n", PAGE)
    assert command
    document = Caller(capsys)(*command[1].split(), "--json", "--all").json
    assert document["count"] > 0
    for embedding in document["embeddings"]:
        assert all("n" not in axes for axes in embedding["family"].values())
    layer = workload(command[1].split(" --")[0].removeprefix("solve "), "amx_int8")
    assert solve(layer, "amx_int8", top=1).count > document["count"]


def test_an_infeasible_problem_names_the_constraint(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gemm", "m=4", "n=64", "k=64", "--target", "tiny", "--constraints", "one_image")
    called = Caller(capsys)("solve", *words)
    assert called.code == 3
    assert re.search(
        r"(?:this constraint alone excludes every embedding|all of these constraints): .*\bkeep\b",
        called.out,
    )


def test_the_table_of_groups_is_complete() -> None:
    from typing import get_args

    from cpembed.plugins import Group

    listed = re.findall(r"^\| `(cpembed\.\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(get_args(Group))
    assert "keep" not in CONSTRAINTS
