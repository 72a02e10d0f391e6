"""Files of targets in TOML, which every command reads, with the shapes that were found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from cpembed.errors import CpembedError
from cpembed.exploration.shapes.shape import Shape, template
from cpembed.files import write_whole
from cpembed.resources import constraint_files


def check_file(path: Path) -> None:
    """Raise :class:`CpembedError` if targets cannot be saved at a path, before any search."""
    if path.suffix != ".toml":
        raise CpembedError(f"--save {path}: a target is a TOML file: end its name in .toml")
    if not Path(os.path.realpath(path)).parent.is_dir():
        raise CpembedError(f"{path} cannot be written: there is no folder {path.parent}")


def files_of(path: Path, shapes: Sequence[Shape]) -> list[Path]:
    """Return the file of each shape: the path itself for one, else with the shapes in the names."""
    if len(shapes) == 1:
        return [path]
    return [path.with_name(f"{path.stem}_{shape}{path.suffix}") for shape in shapes]


def save(path: Path, shapes: Sequence[Shape], constraints: str) -> list[Path]:
    """Write all of the targets, or none, and return their files.

    Parameters
    ----------
    path
        The file of a single target, or the pattern of several names.
    shapes
        The shapes.
    constraints
        The name of the constraint set under which they were found.
    """
    texts = [target_text(shape, constraints) for shape in shapes]
    written: list[Path] = []
    try:
        for file, text in zip(files_of(path, shapes), texts, strict=True):
            write_whole(file, text)
            written.append(file)
    except BaseException:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise
    return written


def target_text(shape: Shape, constraints: str) -> str:
    """Return the text of a target. It names shipped constraint sets only: a path is the user's."""
    instruction = template().instruction
    lines = [
        "# The matrix product of BLAS level 3 in a shape that `cpembed shape` found: no hardware",
        "# executes it.",
        "",
        f'name = "gemm_{shape}"',
        f'description = "virtual matrix product, {shape}, int8 x int8 -> int32"',
        f'source = "found by cpembed shape; {template().source}"',
    ]
    if constraints in constraint_files():
        lines.append(f'constraints = "{constraints}"')
    lines += ["", "[instruction]", 'expression = "C[x,y] += A[x,z] * B[z,y]"', ""]
    lines.append("[instruction.axes]")
    lines += [f"{axis} = {extent}" for axis, extent in shape.extents.items()]
    for operand in instruction.computation.operands:
        memory = instruction.memory[operand.name]
        tile = ", ".join(f'"{part}"' for part in memory.tile)
        rules = ", ".join(f'{axis} = "{rule}"' for axis, rule in memory.strides.items())
        dtypes = instruction.dtypes[operand.name]
        listed = f'"{dtypes[0]}"' if len(dtypes) == 1 else str(list(dtypes)).replace("'", '"')
        lines += ["", f"[operands.{operand.name}]", f"dtype = {listed}"]
        lines += [f'scope = "{memory.scope}"', f"tile = [{tile}]", f"stride = {{ {rules} }}"]
    lines += ["", *(f'[memories."{scope}"]' for scope in template().memories)]
    return "\n".join(lines) + "\n"
