"""Shapes of a matrix-product instruction with their targets, and the layers that they compute.

A shape is a value; its target can be saved as a file. The layers are those of a suite or a model.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cpembed.driver.bench_layers import layer_workload, named_suite
from cpembed.errors import CpembedError, WorkloadError
from cpembed.files import write_whole
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec, Instruction, InstructionAxis
from cpembed.hw.loader import MAX_OPERATIONS, load_hardware_spec
from cpembed.hw.schema import close_match
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import INPUT_DTYPES, size_bytes
from cpembed.resources import constraint_files
from cpembed.workloads.user_suites import ComputedLayer

if TYPE_CHECKING:
    from cpembed.exploration.shapes.timed import TimedMachine

AXES = ("x", "y", "z")
"""Names of the rows, columns and steps of ``C[x,y] += A[x,z] * B[z,y]``."""

TEMPLATE = Path(__file__).with_name("matrix_product.toml")
"""Path of the specification with the element types and memories that every shape has."""

MAX_SHAPES = 500_000
"""Maximum number of shapes: with a hundred layers a table of as many takes half a gigabyte."""

Extents = NDArray[np.int64]
"""Array with a row of three extents for each shape."""


@dataclass(frozen=True, order=True)
class Shape:
    """The extents of one instruction."""

    x: int
    y: int
    z: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of an execution."""
        return self.x * self.y * self.z

    @property
    def extents(self) -> dict[str, int]:
        """Extents by the names of the axes."""
        return {"x": self.x, "y": self.y, "z": self.z}

    def __str__(self) -> str:
        return f"{self.x}x{self.y}x{self.z}"


def shapes_within(
    macs: int,
    *,
    powers: bool = False,
    smallest: int = 1,
    multiples: tuple[int, int, int] = (1, 1, 1),
) -> Extents:
    """Return all triples of extents whose product is at most ``macs``, ascending.

    Parameters
    ----------
    macs
        Maximum number of multiply-accumulates.
    powers
        True for powers of two only.
    smallest
        Minimum extent.
    multiples
        Numbers of which the extents of x, y and z are multiples.

    Raises
    ------
    WorkloadError
        If there is no shape, or more than ``MAX_SHAPES``.
    """
    if not 1 <= macs <= MAX_OPERATIONS:
        raise WorkloadError(f"macs is {macs:,}: an instruction has 1 to {MAX_OPERATIONS:,}")
    if smallest < 1 or min(multiples) < 1:
        raise WorkloadError("extents, and what they are multiples of, are 1 or more")
    first, second, third = _extents(macs, powers, smallest, multiples)
    blocks: list[Extents] = []
    count, values = 0, np.array(third, np.int64)
    for x in first:
        for y in second:
            last = int(np.searchsorted(values, macs // (x * y), side="right"))
            if not last:
                break
            count += last
            # Counted while they are listed, so that a large budget fails before its memory is
            # allocated.
            if count > MAX_SHAPES:
                raise WorkloadError(
                    f"more than {MAX_SHAPES:,} shapes have {macs:,} multiply-accumulates or "
                    "fewer: allow powers of two, or multiples, only"
                )
            block = np.empty((last, 3), np.int64)
            block[:, 0], block[:, 1], block[:, 2] = x, y, values[:last]
            blocks.append(block)
    if not blocks:
        several = "" if multiples == (1, 1, 1) else f", multiples of {multiples},"
        raise WorkloadError(
            f"no shape of extents of {smallest} or more{several} has {macs:,} "
            "multiply-accumulates or fewer: allow smaller extents"
        )
    return np.concatenate(blocks)


def _extents(
    macs: int, powers: bool, smallest: int, multiples: tuple[int, int, int]
) -> tuple[list[int], list[int], list[int]]:
    """Return the extents of each axis that occur in a shape, ascending."""
    # The smallest that each axis can have bounds the others.
    least = [-(-smallest // multiple) * multiple for multiple in multiples]
    axes: list[list[int]] = []
    for place, multiple in enumerate(multiples):
        largest = macs // math.prod(least[:place] + least[place + 1 :])
        if powers:
            sizes = [2**k for k in range(macs.bit_length()) if smallest <= 2**k <= largest]
            axes.append([size for size in sizes if size % multiple == 0])
        else:
            axes.append(list(range(least[place], largest + 1, multiple)))
    return axes[0], axes[1], axes[2]


PICOSECONDS = 1e6
"""Picoseconds of a microsecond: the costs of times, since the solver adds integers."""


@dataclass(frozen=True)
class Cost:
    """The measure of a shape: executions, or executions and bytes of packing, or time.

    ``bytes_per_execution`` says how many bytes that packing and unpacking move are worth an
    execution; None if they do not count. A cost is an integer: executions, or executions times
    ``bytes_per_execution`` plus bytes; where ``machine`` is set, picoseconds of its estimates.
    """

    bytes_per_execution: int | None = None
    machine: TimedMachine | None = None

    @property
    def unit(self) -> float:
        """The cost of one execution, or of a microsecond."""
        return self.bytes_per_execution or (1 if self.machine is None else PICOSECONDS)

    @property
    def is_time(self) -> bool:
        """True where costs are times."""
        return self.machine is not None

    def combined(self, executions: int, packing_bytes: int) -> int:
        """Return the cost of executions with packing."""
        moved = 0 if self.bytes_per_execution is None else packing_bytes
        return executions * (self.bytes_per_execution or 1) + moved


@dataclass(frozen=True)
class Scope:
    """The shapes that are compared.

    They have at most ``macs`` multiply-accumulates and extents of at least ``smallest``, which are
    powers of two only where ``powers`` is set, and ``multiples`` of three numbers.
    """

    macs: int
    powers: bool = False
    smallest: int = 1
    multiples: tuple[int, int, int] = (1, 1, 1)

    @property
    def shapes(self) -> Extents:
        """All shapes, ascending; their row numbers are the columns of cost tables."""
        return _shapes(self)

    @property
    def largest(self) -> int:
        """The largest extent of any shape."""
        return int(self.shapes.max())


@lru_cache(maxsize=2)
def _shapes(scope: Scope) -> Extents:
    return shapes_within(
        scope.macs, powers=scope.powers, smallest=scope.smallest, multiples=scope.multiples
    )


@cache
def template() -> HardwareSpec:
    """Return the specification with the element types and memories that every shape has."""
    return load_hardware_spec(TEMPLATE)


def template_of(dtypes: Sequence[str] | None = None) -> HardwareSpec:
    """Return the specification of all shapes with other element types of A, B and C.

    Raises :class:`WorkloadError` for anything but three known types.
    """
    if dtypes is None:
        return template()
    spec = template()
    operands = spec.instruction.computation.operands
    for dtype in dtypes:
        if dtype not in INPUT_DTYPES:
            near = close_match(dtype, INPUT_DTYPES)
            raise WorkloadError(f"unknown element type {dtype!r}{near}")
    if len(dtypes) != len(operands):
        raise WorkloadError(f"{','.join(dtypes)}: name the element types of A, B and C")
    types = {operand.name: dtype for operand, dtype in zip(operands, dtypes, strict=True)}
    computation = spec.instruction.computation.with_dtypes(types)
    instruction = replace(
        spec.instruction,
        computation=computation,
        dtypes={name: (dtype,) for name, dtype in types.items()},
    )
    return replace(spec, instruction=instruction)


def representative(spec: HardwareSpec) -> Instruction:
    """Return a small instruction that stands for all shapes where only the axes' roles matter."""
    axes = {name: InstructionAxis(name, 1, 4) for name in AXES}
    return _instruction("matrix_product", axes, spec)


def instruction_of(shape: Shape, spec: HardwareSpec) -> Instruction:
    """Return the instruction of a shape, on the element types and memories of a specification."""
    axes = {name: InstructionAxis(name, size, size) for name, size in shape.extents.items()}
    return _instruction(f"gemm_{shape}", axes, spec)


def _instruction(name: str, axes: Mapping[str, InstructionAxis], spec: HardwareSpec) -> Instruction:
    first = spec.instruction
    sizes = {axis.name: axis.maximum for axis in axes.values()}
    # The template is configurable to any extent that the shape or the template itself has.
    most = max(*sizes.values(), *first.extents.values())
    free = replace(first, axes=tuple(InstructionAxis(axis, 1, most) for axis in AXES))
    computation = replace(free.with_extents(sizes), name=name)
    return replace(
        first, name=name, axes=tuple(axes[axis] for axis in AXES), computation=computation
    )


def _description(shape: Shape, spec: HardwareSpec) -> str:
    first, second, result = (
        spec.instruction.dtypes[operand.name][0]
        for operand in spec.instruction.computation.operands
    )
    return f"virtual matrix product, {shape}, {first} x {second} -> {result}"


def tile_bytes(shapes: Extents, spec: HardwareSpec) -> NDArray[np.int64]:
    """Return the bytes of the tiles of all operands of each shape."""
    instruction = spec.instruction
    columns = {axis: shapes[:, place] for place, axis in enumerate(AXES)}
    total = np.zeros(len(shapes), np.int64)
    for operand in instruction.computation.operands:
        elements = np.ones(len(shapes), np.int64)
        for axis in instruction.memory[operand.name].axes:
            elements = elements * columns[axis]
        total += elements * size_bytes(instruction.dtypes[operand.name][0])
    return total


def check_file(path: Path) -> None:
    """Raise :class:`CpembedError` if targets cannot be saved at a path, before any search."""
    if path.suffix != ".toml":
        raise CpembedError(f"--save {path}: a target is a TOML file: end its name in .toml")
    # The target of a symbolic link is what is written.
    if not Path(os.path.realpath(path)).parent.is_dir():
        raise CpembedError(f"{path} cannot be written: there is no folder {path.parent}")


def _files_of(path: Path, shapes: Sequence[Shape]) -> list[Path]:
    """Return the file of each shape: the path itself for one, else with the shapes in the names."""
    if len(shapes) == 1:
        return [path]
    return [path.with_name(f"{path.stem}_{shape}{path.suffix}") for shape in shapes]


def save(path: Path, texts: Mapping[Shape, str]) -> list[Path]:
    """Write targets, all or none, and return their files.

    Parameters
    ----------
    path
        The file of a single target, or the pattern of several names.
    texts
        The text of each shape's target.
    """
    written: list[Path] = []
    try:
        for file, text in zip(_files_of(path, list(texts)), texts.values(), strict=True):
            write_whole(file, text)
            written.append(file)
    # Also on an interrupt: some of the files would pass for all of them.
    except BaseException:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise
    return written


def target_text(shape: Shape, constraints: str, spec: HardwareSpec) -> str:
    """Return a shape's target as TOML.

    Parameters
    ----------
    shape
        The shape.
    constraints
        The name of the constraint set under which it was found.
    spec
        Specification with the element types and memories.
    """
    instruction = spec.instruction
    lines = [
        "# The matrix product of BLAS level 3 in a shape that `cpembed shape` found: no hardware",
        "# executes it.",
        "",
        f'name = "gemm_{shape}"',
        f'description = "{_description(shape, spec)}"',
        f'source = "found by cpembed shape; {template().source}"',
    ]
    # A path is the user's, and the file may go elsewhere.
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


# ------------------------------------------------------------------------------ layers


@dataclass(frozen=True)
class Model:
    """A suite or a model, with the shapes of a model's inputs."""

    name: str
    inputs: Mapping[str, Sequence[int]] | None = None


@dataclass(frozen=True)
class ShapedLayer:
    """A layer of the suite; ``computation`` is its number among the distinct computations."""

    index: int
    label: str
    count: int
    macs: int
    computation: int


@dataclass(frozen=True)
class LayerSet:
    """All layers of a suite, and its distinct computations as ``workloads``.

    A model has a ``graph`` too, and ``of_product`` by a product's own computation
    (:func:`~cpembed.driver.bench_layers.product_key`) its number among the distinct ones.
    """

    suite: str
    layers: tuple[ShapedLayer, ...]
    workloads: tuple[Computation, ...]
    graph: Graph | None = None
    of_product: Mapping[Computation, int] = field(default_factory=dict[Computation, int])

    def weight(self, computation: int) -> int:
        """Return how often the network has a computation."""
        return sum(layer.count for layer in self.layers if layer.computation == computation)


def read_layers(model: Model, spec: HardwareSpec) -> LayerSet:
    """Return the layers of a suite or a model, on the element types of a specification.

    Raises :class:`WorkloadError` if the suite is unknown.
    """
    # Every shape has the specification's element types, so that layers are typed once.
    suite = named_suite(model.name, spec, model.inputs)
    numbers: dict[Computation, int] = {}
    layers: list[ShapedLayer] = []
    products: dict[Computation, int] = {}
    for layer in suite.layers:
        workload = layer_workload(layer, spec)
        # Layers of the same computation differ in their names after the first word.
        number = numbers.setdefault(replace(workload, name=workload.name.split()[0]), len(numbers))
        layers.append(
            ShapedLayer(layer.index, layer.label, layer.count, workload.macs, computation=number)
        )
        if isinstance(layer, ComputedLayer):
            products[layer.computation] = number
    return LayerSet(suite.name, tuple(layers), tuple(numbers), suite.graph, of_product=products)
