"""The wheel as a user gets it: built, installed on its own, and run away from the checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.relative_to(CHECKOUT) for path in CHECKOUT.glob("cpembed/**/*.py"))
TABLES = sorted(
    path.relative_to(CHECKOUT)
    for kind in ("csv", "toml")
    for path in CHECKOUT.glob(f"cpembed/**/*.{kind}")
)


def run(*command, cwd):
    """Standard output of a command that must succeed, without the checkout on any path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built with the build back end that is installed (nothing is downloaded)."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir")
    run(*build, str(folder), str(CHECKOUT), cwd=folder)
    (built,) = folder.glob("cpembed-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment that holds the wheel and borrows the dependencies of this one."""
    prefix = tmp_path_factory.mktemp("installed")
    venv.create(prefix, symlinks=True, with_pip=False)
    python = prefix / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", str(python), "install")
    run(*install, "--quiet", "--no-deps", "--no-index", str(wheel), cwd=prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A folder named in a .pth file is searched, but its own .pth files, such as the one of an
    # editable install of cpembed, are not read.
    borrowed = prefix / "lib" / version / "site-packages" / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return prefix


def evaluate(installed, expression, folder):
    """The printed value of an expression over an imported ``cpembed.resources``."""
    code = f"import cpembed; from cpembed import resources; print({expression})"
    return run(str(installed / "bin" / "python"), "-c", code, cwd=folder).strip()


@pytest.mark.slow
def test_the_package_comes_from_the_wheel(installed, tmp_path):
    assert evaluate(installed, "cpembed.__file__", tmp_path).startswith(str(installed))


@pytest.mark.parametrize(
    "kind, folder, listing",
    [
        ("constraints", "constraints", "constraint_files"),
        ("hw_specs", "hw_specs", "hardware_spec_files"),
        ("hw_specs", "hw_specs/accelerators", "accelerator_files"),
    ],
)
def test_the_wheel_carries_the_data_folders_inside_the_package(
    installed, tmp_path, kind, folder, listing
):
    names = evaluate(installed, f"*resources.{listing}()", tmp_path).split()
    assert names == sorted(path.stem for path in (CHECKOUT / folder).glob("*.toml"))
    assert names, f"{folder}/ holds no .toml file"
    directory = evaluate(installed, f"resources.data_directory('{kind}')", tmp_path)
    assert directory.startswith(str(installed))


def test_every_module_and_table_and_the_type_marker_are_in_the_wheel(installed):
    (site,) = installed.glob("lib/python*/site-packages")
    expected = [*MODULES, *TABLES, Path("cpembed/py.typed")]
    assert [str(path) for path in expected if not (site / path).is_file()] == []


def test_the_console_script_lists_the_shipped_targets(installed, tmp_path):
    printed = run(str(installed / "bin" / "cpembed"), "targets", cwd=tmp_path)
    targets = [path.stem for path in (CHECKOUT / "hw_specs").glob("*.toml")]
    assert [target for target in targets if target not in printed] == []
