"""Load hardware specifications: TOML in, :class:`HardwareSpec` out, every fault named in one line.

The format is described in ``docs/add-a-target.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from cpembed.errors import SpecError, WorkloadError
from cpembed.hw.instruction import (
    HardwareSpec,
    Instruction,
    InstructionAxis,
    Machine,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.hw.levels import read_hierarchies
from cpembed.hw.schema import (
    AxisTable,
    HardwareTable,
    Key,
    close_match,
    one_of,
    read_table,
    spec_error,
)
from cpembed.hw.tile import read_tile
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import INPUT_DTYPES, size_bytes
from cpembed.ir.parser import ParsedBody, parse_body, parse_computation
from cpembed.plugins import plugin_file, plugin_files
from cpembed.resources import hardware_spec_files

MAX_EXTENT = 65_536
"""Of an instruction axis; every operation of an instruction is enumerated when it is embedded."""

MAX_OPERATIONS = 2**20
"""Of an instruction, at its largest extents."""

_LONGEST_DELAY = 100_000
"""Cycles before main memory answers; far beyond any machine."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_CPU_FEATURE = re.compile(r"[a-z0-9_]+")


def available_targets() -> tuple[str, ...]:
    """Names of the shipped hardware specifications and of those that distributions add, sorted."""
    return tuple(sorted(_named_files()))


def _named_files() -> dict[str, Path]:
    shipped = hardware_spec_files()
    return shipped | plugin_files("cpembed.hw_specs", shipped)


def _named_file(name: str) -> Path | None:
    """Distributions are looked through only for what does not ship."""
    return hardware_spec_files().get(name) or plugin_file("cpembed.hw_specs", name)


def load_hardware_spec(name_or_path: str | Path) -> HardwareSpec:
    """Load a target by its name or from a TOML file.

    A ``Path``, a string that ends in ``.toml`` and a string with a ``/`` are files; any other
    string is a name. Raises :class:`SpecError`: file, key, what is wrong and what is allowed.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path:
        return _build(Path(name_or_path))
    path = _named_file(name_or_path)
    if path is None:
        raise SpecError(
            f"unknown target {name_or_path!r}{close_match(name_or_path, _named_files())}; "
            "`cpembed targets` lists them, and a path to a TOML file is a target too"
        )
    return _build(path)


def _build(path: Path) -> HardwareSpec:
    table = read_table(path, HardwareTable)
    return _Builder(str(path), table).spec()


class _Builder:
    """Checks one file's tables against each other and makes the values."""

    def __init__(self, path: str, table: HardwareTable) -> None:
        self.path = path
        self.table = table

    def error(self, key: Key, problem: str) -> SpecError:
        return spec_error(self.path, key, problem)

    def spec(self) -> HardwareSpec:
        table = self.table
        self._check_header()
        self._check_names(self._body())
        axes = {name: self._axis(name, value) for name, value in table.instruction.axes.items()}
        operations = math.prod(axis.maximum for axis in axes.values())
        if operations > MAX_OPERATIONS:
            raise self.error(
                ("instruction", "axes"),
                f"{operations:,} operations in one instruction; allowed: {MAX_OPERATIONS:,}",
            )
        dtypes = {name: self._dtypes(name) for name in table.operands}
        computation = self._computation(axes, {name: d[0] for name, d in dtypes.items()})
        for output in (operand.name for operand in computation.outputs):
            for dtype in dtypes[output][1:]:
                # The expression has to make sense in each type that it may be computed in.
                self._computation(axes, {output: dtype})
        self._check_configurable(axes, computation)
        instruction = Instruction(
            name=table.name,
            axes=tuple(axes[axis.name] for axis in computation.axes),
            computation=computation,
            dtypes={operand.name: dtypes[operand.name] for operand in computation.operands},
            memory={o.name: self._memory(o.name, axes, computation) for o in computation.operands},
        )
        self._check_memories(instruction)
        machine = self._machine()
        scopes = tuple(dict.fromkeys(m.scope for m in instruction.memory.values()))
        return HardwareSpec(
            name=table.name,
            description=table.description,
            source=table.source,
            instruction=instruction,
            backend=table.backend,
            cpu_features=tuple(table.cpu_features),
            alternatives=self._alternatives(),
            path=self.path,
            memories={scope: memory.capacity_bytes for scope, memory in table.memories.items()},
            machine=machine,
            machines=read_hierarchies(self.path, table.machines, table.memories, scopes, machine),
        )

    def _machine(self) -> Machine | None:
        table = self.table.machine
        if table is None:
            return None
        if not 0 < table.clock_mhz < math.inf:
            problem = f"{table.clock_mhz} is not allowed; allowed: a number above 0"
            raise self.error(("machine", "clock_mhz"), problem)
        for key, value, lowest, highest in (
            ("bus_bits", table.bus_bits, 8, 4096),
            ("burst_beats", table.burst_beats, 1, 256),
        ):
            if not lowest <= value <= highest or value & (value - 1):
                problem = f"{value} is not allowed; allowed: a power of two, {lowest}..{highest}"
                raise self.error(("machine", key), problem)
        if not 0 <= table.dram_delay_cycles <= _LONGEST_DELAY:
            problem = f"{table.dram_delay_cycles} is not allowed; allowed: 0..{_LONGEST_DELAY}"
            raise self.error(("machine", "dram_delay_cycles"), problem)
        return table

    def _check_header(self) -> None:
        table = self.table
        if not _NAME.fullmatch(table.name):
            raise self.error(
                ("name",),
                f"{table.name!r} is not a name; allowed: a letter, then letters, digits, _ . -",
            )
        for key in ("description", "source"):
            if not getattr(table, key).strip():
                raise self.error((key,), "is empty")
        for position, feature in enumerate(table.cpu_features):
            if not _CPU_FEATURE.fullmatch(feature):
                spelled = re.sub(r"[^a-z0-9]+", "_", feature.lower()).strip("_")
                raise self.error(
                    ("cpu_features", position),
                    f"{feature!r} is not spelled as in /proc/cpuinfo (lower-case letters, digits "
                    "and _)" + (f" (did you mean {spelled}?)" if spelled else ""),
                )

    def _alternatives(self) -> tuple[str, ...]:
        """Targets that are known, and name no others; ``otherwise`` and ``beside`` are older keys
        of one target each."""
        table = self.table
        older = {"otherwise": table.otherwise, "beside": table.beside}
        named: list[tuple[Key, str]] = [
            *((("alternatives", n), name) for n, name in enumerate(table.alternatives)),
            *(((key,), name) for key, name in older.items() if name is not None),
        ]
        for key, name in named:
            path = _named_file(name)
            if path is None:
                match = close_match(name, _named_files())
                problem = f"unknown target {name!r}{match}; allowed: a name that"
                raise self.error(key, f"{problem} `cpembed targets` lists")
            other = read_table(path, HardwareTable)
            if other.alternatives or other.otherwise is not None or other.beside is not None:
                problem = f"{name} names another target in turn; allowed: one that names none"
                raise self.error(key, problem)
        return tuple(dict.fromkeys(name for _, name in named))

    def _axis(self, name: str, value: int | AxisTable) -> InstructionAxis:
        key = ("instruction", "axes", name)
        if isinstance(value, int):
            if not 1 <= value <= MAX_EXTENT:
                raise self.error(key, f"extent {value} is not allowed; allowed: 1..{MAX_EXTENT}")
            return InstructionAxis(name, value, value)
        for part, number in (("min", value.min), ("max", value.max), ("step", value.step)):
            if not 1 <= number <= MAX_EXTENT:
                raise self.error((*key, part), f"{number} is not allowed; allowed: 1..{MAX_EXTENT}")
        if value.min > value.max:
            raise self.error((*key, "min"), f"{value.min} is above max, {value.max}")
        if (value.max - value.min) % value.step:
            raise self.error(
                (*key, "step"),
                f"{value.step} does not lead from min {value.min} to max {value.max}; "
                f"allowed: a divisor of {value.max - value.min}",
            )
        return InstructionAxis(name, value.min, value.max, value.step)

    def _body(self) -> ParsedBody:
        try:
            return parse_body(self.table.instruction.expression)
        except WorkloadError as error:
            raise self._expression_error(error) from None

    def _expression_error(self, error: WorkloadError) -> SpecError:
        problem = str(error).removeprefix("expression").lstrip(":, ")
        return self.error(("instruction", "expression"), problem)

    def _check_names(self, body: ParsedBody) -> None:
        """The tables give every axis and every operand of the expression, and no other."""
        table = self.table
        used = [name for name, _ in body.iterators]
        operands = list(body.operands)
        for key, declared, expected, kind, remedy in (
            (("instruction", "axes"), table.instruction.axes, used, "axes", "an extent"),
            (("operands",), table.operands, operands, "operands", "a table"),
        ):
            for name in expected:
                if name not in declared:
                    raise self.error(
                        (*key, name), f"is missing: {name} is in the expression and needs {remedy}"
                    )
            for name in declared:
                if name not in expected:
                    raise self.error(
                        (*key, name),
                        f"is not in the expression; its {kind}: {one_of(expected) or 'none'}"
                        f"{close_match(name, expected)}",
                    )

    def _computation(
        self, axes: Mapping[str, InstructionAxis], dtypes: Mapping[str, str]
    ) -> Computation:
        """The computation at the largest extents."""
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
        """A shorter axis must only shorten operands: it has to be an index on its own."""
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
        if isinstance(declared, str):
            return (self._known_dtype(declared, key),)
        if not declared:
            raise self.error(key, f"lists no dtype; allowed: {one_of(INPUT_DTYPES)}")
        for position, dtype in enumerate(declared):
            self._known_dtype(dtype, (*key, position))
            if dtype in declared[:position]:
                raise self.error((*key, position), f"{dtype} is listed twice")
        return tuple(declared)

    def _known_dtype(self, dtype: str, key: Key) -> str:
        if dtype not in INPUT_DTYPES:
            problem = f"unknown dtype {dtype!r}; allowed: {one_of(INPUT_DTYPES)}"
            raise self.error(key, problem + close_match(dtype, INPUT_DTYPES))
        return dtype

    def _memory(
        self, operand: str, axes: Mapping[str, InstructionAxis], computation: Computation
    ) -> OperandMemory:
        table = self.table.operands[operand]
        key = ("operands", operand)
        if table.scope not in self.table.memories:
            raise self.error(
                (*key, "scope"),
                f"{table.scope!r} has no [memories] table; declared: "
                f"{one_of(self.table.memories) or 'none'}"
                f"{close_match(table.scope, self.table.memories)}",
            )
        indices = [i for access in computation.access_maps[operand] for i in access.index]
        own = tuple(dict.fromkeys(name for index in indices for name in index.iterators))
        tile = read_tile(table.tile, own, axes, partial(spec_error, self.path, (*key, "tile")))
        self._check_strides(operand, own, tile)
        alignment = table.alignment_bytes
        if alignment < 1 or alignment & (alignment - 1):
            raise self.error(
                (*key, "alignment_bytes"), f"{alignment} is not allowed; allowed: a power of two"
            )
        return OperandMemory(
            scope=table.scope,
            tile=tile,
            strides=dict(table.stride),
            alignment_bytes=alignment,
            capacity_bytes=self.table.memories[table.scope].capacity_bytes,
        )

    def _check_strides(
        self, operand: str, own: tuple[str, ...], tile: tuple[TileDimension, ...]
    ) -> None:
        for axis, rule in self.table.operands[operand].stride.items():
            key = ("operands", operand, "stride", axis)
            if axis not in own:
                raise self.error(
                    key, f"{axis} is not an axis of the operand; its axes: {one_of(own) or 'none'}"
                )
            if rule is StrideRule.ANY and sum(d.axis == axis for d in tile) > 1:
                raise self.error(
                    key, f"{axis} is split in the tile; allowed for a split axis: unit"
                )

    def _check_memories(self, instruction: Instruction) -> None:
        """One execution holds the tiles of all its operands at once."""
        for scope, memory in self.table.memories.items():
            key = ("memories", scope)
            held = [n for n, m in instruction.memory.items() if m.scope == scope]
            if not held and memory.holds is None:
                used = dict.fromkeys(m.scope for m in instruction.memory.values())
                problem = f"holds no operand; scopes in use: {one_of(used)}"
                raise self.error(key, f"{problem}; say with `holds` what else it is for")
            if held and memory.holds is not None:
                problem = f"it holds {one_of(held)}: leave the key out"
                raise self.error((*key, "holds"), problem)
            capacity = memory.capacity_bytes
            if capacity is None:
                continue
            if capacity < 1:
                raise self.error(
                    (*key, "capacity_bytes"), f"{capacity} is not allowed; allowed: at least 1"
                )
            sizes = {name: _largest_tile_bytes(instruction, name) for name in held}
            for name, size in sizes.items():
                if size > capacity:
                    raise self.error(
                        ("operands", name, "tile"),
                        f"takes {size} bytes, {scope} holds {capacity}",
                    )
            if sum(sizes.values()) > capacity:
                raise self.error(
                    (*key, "capacity_bytes"),
                    f"{capacity} is too small for the tiles of {one_of(held)} together, "
                    f"{sum(sizes.values())} bytes",
                )


def _largest_tile_bytes(instruction: Instruction, operand: str) -> int:
    elements = math.prod(instruction.tile_shape(operand))
    return elements * max(size_bytes(dtype) for dtype in instruction.dtypes[operand])
