"""Load hardware specifications: TOML in, :class:`HardwareSpec` out, every fault in one line.

The format is described in ``docs/add-a-target.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from cpembed.errors import SpecError, WorkloadError
from cpembed.hw.instruction import (
    HardwareSpec,
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
    read_tile,
)
from cpembed.hw.isa_reader import describes_instruction_set, instruction_set_file
from cpembed.hw.machine import MemoryInterface
from cpembed.hw.machine_reader import read_hierarchies
from cpembed.hw.schema import Key, close_match, joined, spec_error
from cpembed.hw.specification import AxisTable, SpecificationFile
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import INPUT_DTYPES, storage_bytes
from cpembed.ir.grammar import ParsedBody, parse_body
from cpembed.ir.parser import parse_computation
from cpembed.plugins import plugin_file, plugin_files
from cpembed.resources import hardware_spec_files, read_once

# Embedding enumerates every operation of an instruction.
_MAX_EXTENT = 65_536
"""Maximum extent of an instruction axis."""
MAX_OPERATIONS = 2**20
"""Maximum number of operations of an instruction at its largest extents."""

# Far beyond any machine.
_MAX_DELAY = 100_000
"""Maximum number of cycles before main memory answers."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_CPU_FEATURE = re.compile(r"[a-z0-9_]+")


def available_targets() -> tuple[str, ...]:
    """Names of the shipped hardware specifications and of those that distributions add, sorted."""
    return tuple(sorted(_named_files()))


def _named_files() -> dict[str, Path]:
    shipped = hardware_spec_files()
    return shipped | plugin_files("cpembed.hw_specs", shipped)


def _named_file(name: str) -> Path | None:
    # Listing what installed distributions add is slow, so only for names that do not ship.
    return hardware_spec_files().get(name) or plugin_file("cpembed.hw_specs", name)


def load_hardware_spec(name_or_path: str | Path) -> HardwareSpec:
    """Load a target by its name or from a TOML file.

    >>> load_hardware_spec("vta_1x16x16").instruction.extents
    {'x': 1, 'y': 16, 'z': 16}

    Parameters
    ----------
    name_or_path : str or Path
        A ``Path``, a string that ends in ``.toml`` and a string with a ``/`` are files; any other
        string is the name of a shipped specification, or of one that a distribution adds.

    Raises
    ------
    SpecError
        In one line: the file, the key, what is wrong and what is allowed.
    """
    return _build(_path_of(name_or_path))


def _path_of(name_or_path: str | Path) -> Path:
    """Return the file of a target; raise :class:`SpecError` for an unknown name."""
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path:
        return Path(name_or_path)
    path = _named_file(name_or_path)
    if path is None and (path := instruction_set_file(name_or_path)) is None:
        raise SpecError(
            f"unknown target {name_or_path!r}{close_match(name_or_path, _named_files())}; "
            "`cpembed targets` lists them, and a path to a TOML file is a target too"
        )
    return path


def specification_file(name_or_path: str | Path) -> SpecificationFile:
    """Read the tables of a target by its name or from a TOML file, unchecked.

    Parameters
    ----------
    name_or_path : str or Path
        As for :func:`load_hardware_spec`.

    Raises
    ------
    SpecError
        If the name is unknown, or the file cannot be read.
    """
    return SpecificationFile.read(_path_of(name_or_path))


def build_hardware_spec(file: SpecificationFile) -> HardwareSpec:
    """Build a target from tables, which need not be those of its file.

    Raises
    ------
    SpecError
        As for :func:`load_hardware_spec`.
    """
    if describes_instruction_set(file.contents):
        problem = "describes an accelerator of several instructions, and this takes a single one"
        remedy = "give the file to `solve`, `run`, `match`, `network` or `emulate` with `--target`"
        raise spec_error(str(file.path), ("instructions",), f"{problem}; {remedy}")
    return _Builder(file).spec()


@read_once
def _build(path: Path) -> HardwareSpec:
    return build_hardware_spec(SpecificationFile.read(path))


class _Builder:
    """Checks one file's tables against each other and makes the values."""

    def __init__(self, file: SpecificationFile) -> None:
        self.path = str(file.path)
        self.place = file.place
        self.table = file.table()
        self.capacities: dict[str, int | None] = {}

    def error(self, key: Key, problem: str) -> SpecError:
        return spec_error(self.path, key, problem)

    def need(self, condition: bool, key: Key, problem: str) -> None:
        if not condition:
            raise self.error(key, problem)

    def _need_range(self, value: int, lowest: int, highest: int, key: Key) -> None:
        problem = f"{value} is not allowed; allowed: {lowest}..{highest}"
        self.need(lowest <= value <= highest, key, problem)

    def spec(self) -> HardwareSpec:
        table = self.table
        self._check_header()
        # Names first: the expression can be parsed only when each axis has an extent.
        self._check_names(self._body())
        self.capacities = {scope: self._capacity(scope) for scope in table.memories}
        axes = {name: self._axis(name, value) for name, value in table.instruction.axes.items()}
        operations = math.prod(axis.maximum for axis in axes.values())
        problem = f"{operations:,} operations in one instruction; allowed: {MAX_OPERATIONS:,}"
        self.need(operations <= MAX_OPERATIONS, ("instruction", "axes"), problem)
        dtypes = {name: self._dtypes(name) for name in table.operands}
        # In the first type of each operand; what depends on types is checked for the others below.
        first_types = {name: alternatives[0] for name, alternatives in dtypes.items()}
        computation = self._computation(axes, first_types)
        for name, alternatives in dtypes.items():
            for dtype in alternatives[1:]:
                # Parsed again for its errors alone: some operations exist in one kind of arithmetic
                # only, such as shifts of integers, and an integer does not store a float.
                self._computation(axes, {**first_types, name: dtype})
        self._check_configurable(axes, computation)
        instruction = Instruction(
            name=table.name,
            axes=tuple(axes[axis.name] for axis in computation.axes),
            computation=computation,
            dtypes={operand.name: dtypes[operand.name] for operand in computation.operands},
            memory={o.name: self._memory(o.name, axes, computation) for o in computation.operands},
        )
        self._check_memories(instruction)
        interface = self._memory_interface()
        return HardwareSpec(
            name=table.name,
            description=table.description,
            source=table.source,
            instruction=instruction,
            backend=table.backend,
            cpu_features=tuple(table.cpu_features),
            alternatives=self._alternatives(),
            constraints=table.constraints,
            path=self.path,
            memories=self.capacities,
            row_elements={
                scope: memory.row_elements
                for scope, memory in table.memories.items()
                if memory.row_elements is not None
            },
            machine=interface,
            machines=read_hierarchies(
                self.place, table.machines, self.capacities, instruction, interface
            ),
        )

    def _memory_interface(self) -> MemoryInterface | None:
        table = self.table.machine
        if table is None:
            return None
        problem = f"{table.clock_mhz} is not allowed; allowed: a number above 0"
        self.need(0 < table.clock_mhz < math.inf, ("machine", "clock_mhz"), problem)
        # From a byte to far wider than any bus.
        for key, value, lowest, highest in (
            ("bus_bits", table.bus_bits, 8, 4096),
            ("burst_beats", table.burst_beats, 1, 256),
        ):
            problem = f"{value} is not allowed; allowed: a power of two, {lowest}..{highest}"
            allowed = lowest <= value <= highest and not value & (value - 1)
            self.need(allowed, ("machine", key), problem)
        self._need_range(table.dram_delay_cycles, 0, _MAX_DELAY, ("machine", "dram_delay_cycles"))
        return table

    def _check_header(self) -> None:
        table = self.table
        problem = f"{table.name!r} is not a name; allowed: a letter, then letters, digits, _ . -"
        self.need(bool(_NAME.fullmatch(table.name)), ("name",), problem)
        for key in ("description", "source"):
            self.need(bool(getattr(table, key).strip()), (key,), "is empty")
        for position, feature in enumerate(table.cpu_features):
            if not _CPU_FEATURE.fullmatch(feature):
                spelled = re.sub(r"[^a-z0-9]+", "_", feature.lower()).strip("_")
                raise self.error(
                    ("cpu_features", position),
                    f"{feature!r} is not spelled as in /proc/cpuinfo (lower-case letters, digits "
                    "and _)" + (f" (did you mean {spelled}?)" if spelled else ""),
                )

    def _alternatives(self) -> tuple[str, ...]:
        """Return the targets of ``alternatives``: each has to exist and to name none in turn."""
        table = self.table
        older_keys = {"otherwise": table.older_otherwise, "beside": table.older_beside}
        references: list[tuple[Key, str]] = [
            *((("alternatives", n), name) for n, name in enumerate(table.alternatives)),
            *(((key,), name) for key, name in older_keys.items() if name is not None),
        ]
        for key, name in references:
            path = _named_file(name)
            if path is None:
                match = close_match(name, _named_files())
                problem = f"unknown target {name!r}{match}; allowed: a name that"
                raise self.error(key, f"{problem} `cpembed targets` lists")
            # Else a search for an alternative could go round in a circle.
            target = SpecificationFile.read(path).table()
            older = (target.older_otherwise, target.older_beside)
            problem = f"{name} names another target in turn; allowed: one that names none"
            self.need(not target.alternatives and older == (None, None), key, problem)
        return tuple(dict.fromkeys(name for _, name in references))

    def _axis(self, name: str, value: int | AxisTable) -> InstructionAxis:
        key = ("instruction", "axes", name)
        if isinstance(value, int):
            problem = f"extent {value} is not allowed; allowed: 1..{_MAX_EXTENT}"
            self.need(1 <= value <= _MAX_EXTENT, key, problem)
            return InstructionAxis(name, value, value)
        if value.multiple is not None:
            return self._sized_axis(name, value)
        if value.min is None:
            raise self.error((*key, "min"), "is missing; it must be an integer, or say `multiple`")
        for part, number in (("min", value.min), ("max", value.max), ("step", value.step)):
            self._need_range(number, 1, _MAX_EXTENT, (*key, part))
        problem = f"{value.min} is above max, {value.max}"
        self.need(value.min <= value.max, (*key, "min"), problem)
        problem = f"{value.step} does not lead from min {value.min} to max {value.max}"
        problem += f"; allowed: a divisor of {value.max - value.min}"
        self.need((value.max - value.min) % value.step == 0, (*key, "step"), problem)
        return InstructionAxis(name, value.min, value.max, value.step)

    def _sized_axis(self, name: str, value: AxisTable) -> InstructionAxis:
        """Return an axis of any size, in whole multiples of the granule that is embedded."""
        key, granule = ("instruction", "axes", name), value.multiple or 0
        for part, default in (("min", None), ("step", 1)):
            if getattr(value, part) != default:
                raise self.error((*key, part), "stands beside `multiple`: leave one of them out")
        self._need_range(granule, 1, _MAX_EXTENT, (*key, "multiple"))
        problem = f"{value.max} is not allowed; allowed: a multiple of {granule}"
        allowed = granule <= value.max <= _MAX_EXTENT and value.max % granule == 0
        self.need(allowed, (*key, "max"), f"{problem}, up to {_MAX_EXTENT}")
        return InstructionAxis(name, granule, granule, largest=value.max)

    def _body(self) -> ParsedBody:
        try:
            return parse_body(self.table.instruction.expression)
        except WorkloadError as error:
            raise self._expression_error(error) from None

    def _expression_error(self, error: WorkloadError) -> SpecError:
        problem = str(error).removeprefix("expression").lstrip(":, ")
        return self.error(("instruction", "expression"), problem)

    def _check_names(self, body: ParsedBody) -> None:
        """Check that the tables list exactly the axes and the operands of the expression."""
        table = self.table
        used = [name for name, _ in body.iterators]
        operands = list(body.operands)
        for key, declared, expected, kind, remedy in (
            (("instruction", "axes"), table.instruction.axes, used, "axes", "an extent"),
            (("operands",), table.operands, operands, "operands", "a table"),
        ):
            for name in expected:
                problem = f"is missing: {name} is in the expression and needs {remedy}"
                self.need(name in declared, (*key, name), problem)
            for name in declared:
                problem = f"is not in the expression; its {kind}: {joined(expected) or 'none'}"
                # Close matches take a millisecond, which only an error is worth.
                problem += "" if name in expected else close_match(name, expected)
                self.need(name in expected, (*key, name), problem)

    def _computation(
        self, axes: Mapping[str, InstructionAxis], dtypes: Mapping[str, str]
    ) -> Computation:
        """Parse the expression at the largest extents."""
        try:
            return parse_computation(
                self.table.instruction.expression,
                {name: axis.maximum for name, axis in axes.items()},
                name=self.table.name,
                dtypes=dtypes,
            )
        except WorkloadError as error:
            raise self._expression_error(error) from None

    def _check_configurable(
        self, axes: Mapping[str, InstructionAxis], computation: Computation
    ) -> None:
        """Check that a configurable axis is an index alone, so that it only shortens operands."""
        # In a sum of axes, a smaller extent could leave holes in what the index reaches.
        for access in (*computation.reads, *computation.stores):
            for index in access.index:
                for name in index.iterators:
                    if not axes[name].is_fixed and index.single_iterator is None:
                        raise self.error(
                            ("instruction", "axes", name),
                            f"is configurable but occurs in the index {index} of "
                            f"{access.operand}; allowed: a fixed extent, or the index {name} alone",
                        )

    def _dtypes(self, operand: str) -> tuple[str, ...]:
        declared = self.table.operands[operand].dtype
        key: Key = ("operands", operand, "dtype")
        if isinstance(declared, str):  # a single type needs no brackets
            return (self._require_dtype(declared, key),)
        self.need(bool(declared), key, f"lists no dtype; allowed: {joined(INPUT_DTYPES)}")
        for position, dtype in enumerate(declared):
            self._require_dtype(dtype, (*key, position))
            repeated = dtype in declared[:position]
            self.need(not repeated, (*key, position), f"{dtype} is listed twice")
        return tuple(declared)

    def _require_dtype(self, dtype: str, key: Key) -> str:
        problem = f"unknown dtype {dtype!r}; allowed: {joined(INPUT_DTYPES)}"
        problem += "" if dtype in INPUT_DTYPES else close_match(dtype, INPUT_DTYPES)
        self.need(dtype in INPUT_DTYPES, key, problem)
        return dtype

    def _memory(
        self, operand: str, axes: Mapping[str, InstructionAxis], computation: Computation
    ) -> OperandMemory:
        table = self.table.operands[operand]
        key = ("operands", operand)
        scopes = self.table.memories
        problem = f"{table.scope!r} has no [memories] table; declared: {joined(scopes) or 'none'}"
        problem += "" if table.scope in scopes else close_match(table.scope, scopes)
        self.need(table.scope in scopes, (*key, "scope"), problem)
        accesses = computation.access_maps[operand]
        operand_axes = tuple(
            dict.fromkeys(name for access in accesses for name in access.iterators)
        )
        error = partial(spec_error, self.path, (*key, "tile"))
        tile = read_tile(table.tile, operand_axes, axes, error)
        self._check_strides(operand, operand_axes, tile)
        alignment = table.alignment_bytes
        problem = f"{alignment} is not allowed; allowed: a power of two"
        is_power = alignment >= 1 and not alignment & (alignment - 1)
        self.need(is_power, (*key, "alignment_bytes"), problem)
        for position, axis in enumerate(table.contiguous):
            problem = f"{axis} is not an axis of the operand; its axes: {joined(operand_axes)}"
            self.need(axis in operand_axes, (*key, "contiguous", position), problem)
        return OperandMemory(
            scope=table.scope,
            tile=tile,
            strides=dict(table.stride),
            alignment_bytes=alignment,
            capacity_bytes=self.capacities[table.scope],
            contiguous=tuple(table.contiguous),
        )

    def _check_strides(
        self, operand: str, axes: tuple[str, ...], tile: tuple[TileDimension, ...]
    ) -> None:
        for axis, rule in self.table.operands[operand].stride.items():
            key = ("operands", operand, "stride", axis)
            problem = f"{axis} is not an axis of the operand; its axes: {joined(axes) or 'none'}"
            self.need(axis in axes, key, problem)
            # Digits of one axis in two places have no single distance that could be free.
            undivided = sum(dimension.axis == axis for dimension in tile) <= 1
            problem = f"{axis} is split in the tile; allowed for a split axis: unit"
            self.need(undivided or rule is not StrideRule.ANY, key, problem)

    def _capacity(self, scope: str) -> int | None:
        """Return the bytes of a scope, which may be given as its number of rows."""
        memory, key = self.table.memories[scope], ("memories", scope)
        for name in ("capacity_bytes", "row_elements", "rows"):
            value = getattr(memory, name)
            problem = f"{value} is not allowed; allowed: at least 1"
            self.need(value is None or value >= 1, (*key, name), problem)
        if memory.rows is None:
            return memory.capacity_bytes
        problem = "is missing: `rows` counts rows of so many elements"
        self.need(memory.row_elements is not None, (*key, "row_elements"), problem)
        problem = "the number of rows gives the capacity: leave one of both out"
        self.need(memory.capacity_bytes is None, (*key, "capacity_bytes"), problem)
        dtypes = {
            dtype
            for name, operand in self.table.operands.items()
            if operand.scope == scope
            for dtype in self._dtypes(name)
        }
        row_bytes = {storage_bytes(memory.row_elements or 0, dtype) for dtype in dtypes}
        problem = f"rows of {joined(sorted(dtypes))} have different sizes: give capacity_bytes"
        self.need(len(row_bytes) <= 1, (*key, "rows"), problem)
        return memory.rows * row_bytes.pop() if row_bytes else None

    def _check_rows(self, scope: str, instruction: Instruction, operands: Sequence[str]) -> None:
        """Check that the last dimension of each tile fits a row."""
        row = self.table.memories[scope].row_elements
        for name in operands if row else ():
            tile, shape = instruction.memory[name].tile, instruction.tile_shape(name)
            key = ("operands", name, "tile")
            problem = f"has no axis for the rows of {scope}; allowed: at least one axis"
            self.need(bool(tile), key, problem)
            problem = f"{tile[-1]} has {shape[-1]} elements, and a row of {scope} holds {row}"
            problem += f"; allowed: row_elements of at least {shape[-1]}"
            self.need(shape[-1] <= (row or 0), key, problem)

    def _check_memories(self, instruction: Instruction) -> None:
        """Check that a scope holds the tiles of all its operands at once."""
        for scope, memory in self.table.memories.items():
            key = ("memories", scope)
            operands = [n for n, m in instruction.memory.items() if m.scope == scope]
            if not operands and memory.holds is None:
                used = dict.fromkeys(m.scope for m in instruction.memory.values())
                problem = f"holds no operand; scopes in use: {joined(used)}"
                raise self.error(key, f"{problem}; say with `holds` what else it is for")
            problem = f"it holds {joined(operands)}: leave the key out"
            self.need(not operands or memory.holds is None, (*key, "holds"), problem)
            self._check_rows(scope, instruction, operands)
            capacity = self.capacities[scope]
            if capacity is None:
                continue
            size_key = (*key, "capacity_bytes" if memory.rows is None else "rows")
            row = memory.row_elements or 0
            sizes = {name: _largest_tile_bytes(instruction, name, row) for name in operands}
            for name, size in sizes.items():
                problem = f"takes {size} bytes, {scope} holds {capacity}"
                self.need(size <= capacity, ("operands", name, "tile"), problem)
            # An execution reads and writes all tiles at once.
            total = sum(sizes.values())
            size = (
                f"{capacity} is" if memory.rows is None else f"{memory.rows} ({capacity} bytes) is"
            )
            problem = f"{size} too small for the tiles of {joined(operands)} together"
            self.need(total <= capacity, size_key, f"{problem}, {total} bytes")


def _largest_tile_bytes(instruction: Instruction, operand: str, row: int) -> int:
    # At the largest extents and in the widest type: whatever is chosen has to fit.
    shape = instruction.tile_shape(operand)
    elements = math.prod((*shape[:-1], max(row, shape[-1]))) if shape else 1
    return max(storage_bytes(elements, dtype) for dtype in instruction.dtypes[operand])
