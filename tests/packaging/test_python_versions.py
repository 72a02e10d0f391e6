"""The wheel under each Python that is supported besides this one: installed with the pinned
dependencies, and used."""

import json
import shutil
import subprocess

import pytest

from tests.cli.test_time_limit import SOLVE, STOPPED, WATCHERS
from tests.packaging.test_wheel import CHECKOUT, run, wheel  # noqa: F401

LAYER = ("gemm", "m=8", "n=32", "k=64")


def interpreter(version):
    """The path of ``python3.12``, None where there is none or it does not start (as pyenv's)."""
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    started = subprocess.run((found, "-c", ""), capture_output=True)
    return found if started.returncode == 0 else None


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_wheel_works_with_the_pins_of_the_lock_file(wheel, tmp_path, version):  # noqa: F811
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no python{version} that starts")
    run(python, "-m", "venv", str(tmp_path), cwd=tmp_path)
    pins = ("--constraint", str(CHECKOUT / "requirements.lock"))
    own = tmp_path / "bin"
    install = (str(own / "python"), "-m", "pip", "install", "--quiet", *pins, str(wheel))
    run(*install, cwd=tmp_path)
    cpembed = str(own / "cpembed")
    solved = json.loads(
        run(cpembed, "solve", *LAYER, "--target", "amx_int8", "--json", cwd=tmp_path)
    )
    assert solved["embeddings"][0]["proven"] is True
    options = ("--target", "gemm_16x16x16", "--backend", "generic", "--json")
    ran = json.loads(run(cpembed, "run", *LAYER, *options, cwd=tmp_path))
    assert (ran["verified"], ran["backend"]) == (True, "generic")
    simulated = json.loads(
        run(cpembed, "run", *LAYER, "--target", "vta_1x16x16", "--json", cwd=tmp_path)
    )
    assert simulated["verified"] is True
    # A limit is kept where something watches: an exception from outside would not arrive.
    own_python = str(own / "python")
    for watcher in WATCHERS.values():
        for arguments in (SOLVE, STOPPED):
            command = (own_python, *watcher, *arguments)
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode in (0, 4), done.stderr
            assert "Traceback" not in done.stderr


def test_the_versions_that_are_named_are_the_same_everywhere():
    project = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    named = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]
    assert [name for name in named if f'"{name}"' not in project] == []
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "3.11 to 3.13" in (CHECKOUT / page).read_text(encoding="utf-8"), page
