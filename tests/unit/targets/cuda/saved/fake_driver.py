"""A CUDA driver without a GPU: built of ``fake_cuda.cpp``, and programs that run on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from cpembed.targets.cuda.emulator.executor import NATIVE, compile_text

SOURCE = Path(__file__).with_name("fake_cuda.cpp")


def build(folder: Path) -> Path:
    """Return a folder with ``libcuda.so.1`` and ``libcudart.so`` of no GPU."""
    runtime = (NATIVE / "runtime.cpp").read_text(encoding="utf-8")
    structs = re.findall(r"^struct Executor(?:Buffer|Launch) \{.*?^\};", runtime, re.S | re.M)
    assert len(structs) == 2
    (folder / "launch.h").write_text("#include <stdint.h>\n" + "\n".join(structs))
    library = folder / "libcuda.so.1"
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-I{folder}"]
    command = ["g++", *options, "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("libcudart.so", "libcudart.so.13", "libcudart.so.12"):
        shutil.copyfile(library, folder / name)
    return folder


def emulated(text: Path) -> str:
    """Return the library of the emulated kernels of a CUDA text."""
    return str(compile_text(text.read_text(encoding="utf-8")).library)


def environment(driver: Path | None, behaviour: str, **further: Any) -> dict[str, str]:
    """Return an environment in which ``driver`` is the only CUDA driver."""
    values = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    values["FAKE_CUDA"] = behaviour
    if driver is not None:
        values["LD_LIBRARY_PATH"] = str(driver)
    return values | {name: str(value) for name, value in further.items()}


def call(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def check_py(folder: Path, env: dict[str, str], *arguments: str) -> Any:
    """Run the folder's ``check.py`` with the standard library alone."""
    return call([sys.executable, "-E", "-S", str(folder / "check.py"), *arguments], env)
