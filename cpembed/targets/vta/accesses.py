"""Accesses of a program to buffers and DRAM: which elements, and which instructions wrote them.

Instructions are visited in an order with loads as early and stores as late as tokens let them: data
that need not wait for a reader has already arrived. If the last writer is not ordered before the
reader, some execution reads another value; if it is, for every reader, all executions agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta.assembly import instruction_text
from cpembed.targets.vta.encoding import Columns, sram_extent, unpack_uops
from cpembed.targets.vta.isa import FACTORS, LOOPS, UOP_BYTES, Memory, Opcode, VtaConfig
from cpembed.targets.vta.program import Numbers, VtaProgram, dram_bounds
from cpembed.targets.vta.tokens import HappensBefore


@dataclass(frozen=True)
class Violation:
    """Rule that a program breaks.

    ``instruction`` is the number of the instruction that breaks it, None for the whole program.
    """

    instruction: int | None
    problem: str
    remedy: str

    def line(self, program: VtaProgram) -> str:
        """Return a line with the instruction, its text, the problem and the remedy."""
        where = "program"
        if self.instruction is not None:
            where = f"instruction {self.instruction} "
            where += f"({instruction_text(program, self.instruction)})"
        return f"{where}: {self.problem}; {self.remedy}"


Elements = slice | NDArray[np.int64]
"""Distinct elements of a buffer."""

_NOTHING = slice(0, 0)

PARAMETERS = (*LOOPS, *FACTORS, "reset", "op", "use_immediate", "immediate")
"""Fields of GEMM and ALU instructions, without their tokens."""

# As deep as the pipelines of both units: they read an accumulator before they write it.
_DISTANCE = {Opcode.GEMM: 3, Opcode.ALU: 2}
"""Number of micro-ops from one that writes an accumulator to the first that may access it again."""


@dataclass(frozen=True)
class Accesses:
    """Elements that an instruction accesses; ``problem``, with its remedy, if it is illegal."""

    dst: Elements
    src: Elements
    wgt: Elements
    problem: tuple[str, str] | None = None


@dataclass(frozen=True)
class _Index:
    """Index of micro-ops into a memory, and its steps per outer and inner iteration."""

    memory: Memory
    values: Numbers
    outer: int
    inner: int

    def last(self, outer: int, inner: int) -> int:
        """Return the largest element that the iterations access."""
        return int(self.values.max()) + (outer - 1) * self.outer + (inner - 1) * self.inner

    def elements(self, size: int, outer: int, inner: int) -> Elements:
        """Return the elements that the iterations access in a buffer of some size."""
        # A mask of the buffer: an instruction may execute millions of micro-ops on few elements.
        used = np.zeros(size, bool)
        used[self.values] = True
        for count, step in ((inner, self.inner), (outer, self.outer)):
            used = _repeated(used, count, step)
        elements = np.flatnonzero(used)
        # A slice, of which numpy makes views, if there is no gap.
        if len(elements) == elements[-1] - elements[0] + 1:
            return slice(int(elements[0]), int(elements[-1]) + 1)
        return elements

    def at(self, iterations: Numbers) -> Numbers:
        """Return the indices at rows (outer, inner), one after the other."""
        offsets = iterations @ np.array([self.outer, self.inner])
        return (offsets[:, None] + self.values[None, :]).ravel()


def _illegal(problem: str, remedy: str) -> Accesses:
    return Accesses(_NOTHING, _NOTHING, _NOTHING, (problem, remedy))


def _accesses(
    opcode: Opcode, values: dict[str, int], uops: NDArray[np.uint32], config: VtaConfig
) -> Accesses:
    # Words of DRAM may be anything: reserved bits show that they are no micro-ops.
    try:
        dst, src, wgt = unpack_uops(uops, config)
    except ProgramError as error:
        return _illegal(str(error), "load micro-ops there")
    source = Memory.INP if opcode is Opcode.GEMM else Memory.ACC
    indices = {
        "dst": _Index(Memory.ACC, dst, values["dst.outer"], values["dst.inner"]),
        "src": _Index(source, src, values["src.outer"], values["src.inner"]),
        "wgt": _Index(Memory.WGT, wgt, values["wgt.outer"], values["wgt.inner"]),
    }
    unread = {"wgt"} if opcode is Opcode.ALU else set[str]()
    if values["reset"]:
        unread |= {"src", "wgt"}
    if opcode is Opcode.ALU and values["use_immediate"] and (dst != src).any():
        at = int(np.flatnonzero(dst != src)[0])
        uop = f"micro-op {values['uop_begin'] + at} has dst {dst[at]} and src {src[at]}"
        text = f"{uop} with an immediate, and the RTL reads the accumulator at src"
        return _illegal(text, "encode src = dst")
    loops = values["outer"], values["inner"]
    for name, index in indices.items():
        size, last = config.elements(index.memory), index.last(*loops)
        if name not in unread and last >= size:
            text = f"{name} reaches {index.memory.name} element {last}, of 0..{size - 1}"
            return _illegal(text, "use smaller factors, counts or indices")
    elements = {
        name: _NOTHING if name in unread else index.elements(config.elements(index.memory), *loops)
        for name, index in indices.items()
    }
    # A reset reads nothing, so it may write an accumulator twice in a row.
    repeated = None if values["reset"] else _repetition(opcode, values, indices)
    return Accesses(elements["dst"], elements["src"], elements["wgt"], repeated)


def _repeated(used: NDArray[np.bool_], count: int, step: int) -> NDArray[np.bool_]:
    """Return the elements shifted 0 to count-1 times by ``step``, by doubling."""
    if step == 0 or count == 1:
        return used
    # After each round the elements are shifted by all of 0 to shifts-1 steps.
    shifted, shifts = used.copy(), 1
    while shifts < count:
        more = min(shifts, count - shifts)
        shifted[more * step :] |= shifted[: len(shifted) - more * step].copy()
        shifts += more
    return shifted


def _repetition(
    opcode: Opcode, values: dict[str, int], indices: dict[str, _Index]
) -> tuple[str, str] | None:
    """Return a problem and its remedy if an accumulator is used before its writer has finished."""
    # Within the pipeline's depth a micro-op still reads the old value of an accumulator.
    outer, inner = values["outer"], values["inner"]
    reads = ["dst"]
    if opcode is Opcode.ALU and not values["use_immediate"]:
        reads.append("src")
    for first, last in _windows(outer * inner, inner):
        iterations = np.stack(np.divmod(np.arange(first, last), inner), axis=1)
        written = indices["dst"].at(iterations)
        for name in reads:
            read = indices[name].at(iterations)
            for distance in range(1, _DISTANCE[opcode]):
                same = np.flatnonzero(written[:-distance] == read[distance:])
                if len(same):
                    return _too_close(opcode, name, int(written[same[0]]), distance)
    return None


def _windows(iterations: int, inner: int) -> list[tuple[int, int]]:
    """Return ranges of iterations with every kind of neighbours."""
    # Indices are affine in the iterations, so neighbours differ alike within every row of inner
    # iterations, and alike across the ends of all rows. At most two iterations apart matter.
    if inner <= 4:
        return [(0, min(iterations, 3 * inner + 2))]
    return [(0, 3), (inner - 2, min(iterations, inner + 2))]


def _too_close(opcode: Opcode, name: str, element: int, distance: int) -> tuple[str, str]:
    needed = _DISTANCE[opcode] - 1
    use = "writes" if name == "dst" else "reads"
    place = "right after" if distance == 1 else "two micro-ops after"
    remedy = "another micro-op" if needed == 1 else f"{needed} other micro-ops"
    return (
        f"a micro-op {use} accumulator {element} {place} one that writes it",
        f"put {remedy} between, by another order of micro-ops and loops",
    )


# Later than every place, so that one comparison finds unwritten and unordered elements.
_NEVER = np.iinfo(np.int64).max
"""Place of the writer of an element that was never written."""

_LOAD, _COMPUTE, _STORE = range(3)


def content_violations(
    columns: Columns, program: VtaProgram, happens_before: HappensBefore
) -> Iterator[Violation]:
    """Yield the illegal accesses of a program.

    These are reads of elements that no instruction wrote or that another may overwrite, micro-ops
    out of range or too close, and STOREs of elements that neither ALU nor GEMM wrote.

    Parameters
    ----------
    columns, program
        Program to check, as columns and as a whole.
    happens_before
        Order that its tokens enforce.
    """
    visit = _Visit(columns, program, happens_before)
    for number in happens_before.order:
        yield from visit.instruction(number)
    yield from _dram_violations(columns, program, happens_before)


class _Visit:
    """Last writers of all elements while instructions are visited in order."""

    def __init__(
        self, columns: Columns, program: VtaProgram, happens_before: HappensBefore
    ) -> None:
        config = program.config
        self._program = program
        self._parameters = columns.table(*PARAMETERS)
        self._cache: dict[tuple[int, bytes, bytes], Accesses] = {}
        self._opcode: list[int] = columns.opcode.tolist()
        self._module: list[int] = columns.module.tolist()
        self._memory: list[int] = columns["memory"].tolist()
        sizes = sram_extent(columns, "y") * sram_extent(columns, "x") * (columns["x"] > 0)
        self._sram: list[tuple[int, int]] = list(
            zip(columns["sram"].tolist(), (columns["sram"] + sizes).tolist(), strict=True)
        )
        self._range: list[tuple[int, int]] = list(
            zip(columns["uop_begin"].tolist(), columns["uop_end"].tolist(), strict=True)
        )
        self._reset: list[int] = columns["reset"].tolist()
        self._rows = columns.table("dram", "y", "x", "x_stride")
        self._place: list[int] = happens_before.place.tolist()
        self._before: list[list[int]] = happens_before.before.tolist()
        self._writer = {m: np.full(config.elements(m), _NEVER) for m in (Memory.INP, Memory.WGT)}
        self._acc_written = np.zeros(config.elements(Memory.ACC), bool)
        self._out_writer = np.full(config.elements(Memory.OUT), _NEVER)
        self._out_lost = np.zeros(config.elements(Memory.OUT), np.int64)
        """Place of the instruction that gave an accumulator another value than OUT has, or 0."""
        self._uops = np.zeros(config.usable_uops, np.uint32)
        self._uop_loaded = np.zeros(len(self._uops), bool)

    def instruction(self, number: int) -> Iterator[Violation]:
        """Visit an instruction and yield its illegal accesses."""
        opcode = self._opcode[number]
        if opcode == Opcode.GEMM or opcode == Opcode.ALU:
            yield from self._compute(number, opcode == Opcode.GEMM)
        elif opcode == Opcode.LOAD:
            self._load(number)
        elif opcode == Opcode.STORE:
            yield from self._store(number)

    def _load(self, number: int) -> None:
        begin, end = self._sram[number]
        memory, written = self._memory[number], slice(begin, end)
        if memory == Memory.UOP:
            self._uop_loaded[written] = True
            self._uops[written] = loaded_uops(self._program, self._rows[number])
        elif memory == Memory.ACC:
            self._acc_written[written] = True
            self._out_lost[written] = self._place[number]
        else:
            self._writer[Memory(memory)][written] = self._place[number]

    def _compute(self, number: int, gemm: bool) -> Iterator[Violation]:
        begin, end = self._range[number]
        if not self._uop_loaded[begin:end].all():
            at = begin + int(np.flatnonzero(~self._uop_loaded[begin:end])[0])
            yield Violation(number, f"micro-op {at} was never loaded", "load it before")
            return
        accesses = self._accesses(number, self._uops[begin:end])
        if accesses.problem is not None:
            yield Violation(number, *accesses.problem)
        reset = self._reset[number] and gemm
        if not reset:
            yield from self._reads(number, gemm, accesses)
        # A reset clears the accumulator and does not write OUT, which keeps the old value.
        if reset:
            self._out_lost[accesses.dst] = self._place[number]
        else:
            self._out_writer[accesses.dst] = self._place[number]
            self._out_lost[accesses.dst] = 0
        self._acc_written[accesses.dst] = True

    def _accesses(self, number: int, uops: NDArray[np.uint32]) -> Accesses:
        # Programs repeat few instructions on few micro-ops.
        key = (self._opcode[number], self._parameters[number].tobytes(), uops.tobytes())
        if key not in self._cache:
            row: list[int] = self._parameters[number].tolist()
            values: dict[str, int] = dict(zip(PARAMETERS, row, strict=True))
            opcode = Opcode(self._opcode[number])
            self._cache[key] = _accesses(opcode, values, uops, self._program.config)
        return self._cache[key]

    def _reads(self, number: int, gemm: bool, accesses: Accesses) -> Iterator[Violation]:
        # ACC is loaded and written by the compute module alone, in order: no token is needed.
        accumulators = (accesses.dst,) if gemm else (accesses.dst, accesses.src)
        for elements in accumulators:
            if not self._acc_written[elements].all():
                at = _first(elements, ~self._acc_written[elements])
                yield Violation(
                    number,
                    f"reads accumulator {at}, which was never written",
                    "reset or load it before",
                )
        if not gemm:
            return
        ordered = self._before[number][_LOAD]
        for memory, elements in ((Memory.INP, accesses.src), (Memory.WGT, accesses.wgt)):
            writers = self._writer[memory][elements]
            if writers.size and writers.max() > ordered:
                yield self._unordered(number, memory.name, elements, writers, ordered, _LOAD)

    def _store(self, number: int) -> Iterator[Violation]:
        elements = slice(*self._sram[number])
        writers = self._out_writer[elements]
        if not writers.size:
            return
        ordered = self._before[number][_COMPUTE]
        lost = self._out_lost[elements]
        if writers.max() > ordered:
            yield self._unordered(number, "OUT", elements, writers, ordered, _COMPUTE)
        elif lost.any():
            at = _first(elements, lost > 0)
            yield Violation(
                number,
                f"stores OUT element {at} after a LOAD or a reset of accumulator {at}: "
                "only ALU and non-reset GEMM write OUT",
                "let an ALU or GEMM instruction write it in between",
            )

    def _unordered(
        self,
        number: int,
        name: str,
        elements: Elements,
        writers: Numbers,
        ordered: int,
        module: int,
    ) -> Violation:
        """Return the violation of a read of unwritten elements, or with an unordered writer."""
        never = writers == _NEVER
        if never.any():
            writes = "written by ALU or GEMM" if module == _COMPUTE else "loaded"
            at = _first(elements, never)
            return Violation(
                number, f"reads {name} element {at}, which was never {writes}", "write it before"
            )
        at = _first(elements, writers > ordered)
        place = int(writers.max())
        writer = self._place_number(module, place)
        return Violation(
            number,
            f"reads {name} element {at}, which instruction {writer} writes without being ordered "
            "before or after",
            "pass a token between them",
        )

    def _place_number(self, module: int, place: int) -> int:
        """Return the number of a module's ``place``-th instruction."""
        pairs = enumerate(zip(self._place, self._module, strict=True))
        return next(number for number, pair in pairs if pair == (place, module))


def loaded_uops(program: VtaProgram, row: Numbers) -> NDArray[np.uint32]:
    """Return the words of a LOAD of micro-ops, of which ``row`` has dram, y, x and x_stride."""
    dram, y, x, stride = row.tolist()
    if not x:
        return np.zeros(0, np.uint32)
    first = dram * UOP_BYTES - program.base
    rows = np.ndarray((y, x * UOP_BYTES), np.uint8, program.dram, first, (stride * UOP_BYTES, 1))
    return rows.reshape(-1).view("<u4").astype(np.uint32)


def _first(elements: Elements, mask: NDArray[np.bool_]) -> int:
    """Return the first element at which a mask holds."""
    at = int(np.flatnonzero(mask)[0])
    return elements.start + at if isinstance(elements, slice) else int(elements[at])


def _dram_violations(
    columns: Columns, program: VtaProgram, happens_before: HappensBefore
) -> Iterator[Violation]:
    """Yield the LOADs of bytes that STOREs of the program write in no fixed order."""
    moves = columns["x"] > 0
    stores, loads = moves & columns.is_a(Opcode.STORE), moves & columns.is_a(Opcode.LOAD)
    if not stores.any() or not loads.any():
        return
    first, last = dram_bounds(columns, program)
    written = np.flatnonzero(stores)
    low, high = first[written].min(), last[written].max()
    # Most programs load nothing near what they store: then no byte has to be marked.
    near = loads & (first < high) & (last > low)
    if not near.any():
        return
    touched = np.zeros(int(high - low), bool)
    for number in written.tolist():
        for begin, end in _byte_rows(columns, program, number):
            touched[begin - low : end - low] = True
    for number in np.flatnonzero(near).tolist():
        for begin, end in _byte_rows(columns, program, number):
            if touched[max(begin - low, 0) : max(end - low, 0)].any():
                yield from _unordered_load(columns, program, happens_before, number, written)
                break


def _unordered_load(
    columns: Columns, program: VtaProgram, happens_before: HappensBefore, load: int, stores: Numbers
) -> Iterator[Violation]:
    """Yield the first STORE that overlaps a LOAD without being ordered before or after it."""
    module = int(columns.module[load])
    rows = _byte_rows(columns, program, load)
    for store in stores.tolist():
        ordered = (
            happens_before.before[load, _STORE] >= happens_before.place[store]
            or happens_before.before[store, module] >= happens_before.place[load]
        )
        # The checker reads micro-ops from the initial image, so no STORE may change them at all.
        uops = columns["memory"][load] == Memory.UOP
        if (ordered and not uops) or not any(
            begin < b and a < end
            for begin, end in rows
            for a, b in _byte_rows(columns, program, store)
        ):
            continue
        if uops:
            yield Violation(
                load,
                f"loads micro-ops that the STORE at instruction {store} writes",
                "keep micro-ops and results apart in DRAM",
            )
        else:
            yield Violation(
                load,
                f"loads DRAM that the STORE at instruction {store} writes without being ordered "
                "before or after",
                "pass tokens between them",
            )
        return


def _byte_rows(columns: Columns, program: VtaProgram, number: int) -> list[tuple[int, int]]:
    """Return the ranges of the image's bytes that a transfer accesses, row by row."""
    size = program.config.element_bytes(Memory(columns["memory"][number]))
    dram, y, x, stride = (int(columns[name][number]) for name in ("dram", "y", "x", "x_stride"))
    start = dram * size - program.base
    return [(start + k * stride * size, start + (k * stride + x) * size) for k in range(y)]
