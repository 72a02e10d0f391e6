"""Constants of the performance model of CPU kernels: of a machine and of the model itself.

:class:`Calibration` holds the times of one machine. ``cpembed calibrate`` measures them
(:mod:`cpembed.targets.x86.calibrate`) and stores them in a file for each CPU model and number of
threads. :class:`ModelConstants` holds what the model uses for every CPU, until another machine's
differs. Both have defaults in ``targets/x86/machines/*.toml``, which say what each constant means,
where and when it was measured.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cpembed.codegen.host_cpu import (
    Processor,
    cache_by_processor,
    cpu_model,
    named_processor,
)
from cpembed.codegen.runtime import thread_count
from cpembed.errors import CpembedError, InvariantError
from cpembed.files import read_toml, write_whole
from cpembed.stores import (
    Count,
    DamagedRowError,
    Natural,
    Positive,
    Time,
    decoded,
    store_folder,
    warn_damaged,
)

MACHINES = Path(__file__).parents[1] / "x86" / "machines"


class ModelConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of all ``[model]`` tables; each field is explained beside its value."""

    line_bytes: int
    page_bytes: int
    not_hidden: float
    pieces: tuple[tuple[int, float, float], ...]
    hardware_streams: int
    unforeseen: float
    coherence_miss: float
    transposed: float
    scattered: float
    computed: float
    segment_lines: float
    segment_ns: float
    launches_worth: float
    packing_shares: tuple[float, float]
    packed_in: tuple[float, float, float]
    cache_tile_shares: tuple[float, ...]
    prefetch_a_share: float
    prefetch_b_share: float
    spare_registers: int
    largest_side: int
    waits: float
    lane_sum_registers: int
    halving_products: int
    lane_products: float
    tile_rows_saved: int
    rows_apart: float
    rows_near_bytes: int
    stream_bytes: int
    converted_store: dict[int, float]


@cache
def model_constants() -> ModelConstants:
    """Return the constants of the model. Raises :class:`InvariantError` if two files define one."""
    constants: dict[str, Any] = {}
    for path in sorted(MACHINES.glob("*.toml")):
        model = read_toml(path).get("model", {})
        # Which machine a constant was measured on would depend on the order of the files.
        if duplicates := constants.keys() & model.keys():
            raise InvariantError(f"{path}: {', '.join(sorted(duplicates))}: in another file too")
        constants |= model
    # The keys of a TOML table are strings.
    return msgspec.convert(constants, ModelConstants, strict=False)


@cache
def _published_calibration() -> dict[str, Any]:
    """Return the calibration without threads that is used where nothing was measured."""
    return read_toml(MACHINES / "sapphire_rapids.toml")["published"]


DIRECTORY_VARIABLE = "CPEMBED_CALIBRATION_DIR"
"""Environment variable that names the folder of calibrations."""

OPERATIONS: Mapping[str, int] = {
    "tdpbusd": 2 * 16 * 16 * 64,
    "tdpbf16ps": 2 * 16 * 16 * 32,
    "vpdpbusd": 2 * 16 * 4,
    "vdpbf16ps": 2 * 16 * 2,
    "vpdpbusd_ymm": 2 * 8 * 4,
    "vfmadd231ps": 2 * 16,
    "vfmadd231ps_ymm": 2 * 8,
}
"""Number of operations of a full-size product, by instruction; a multiply-accumulate is two."""


@dataclass(frozen=True)
class Calibration:
    """Times of the parts of a kernel, in nanoseconds unless the name says otherwise.

    Times of products, and of lines from L1 and L2, hold for a thread that has its core for itself.
    L3 and memory are shared: a line's time is that of each thread while all ``threads`` stream.
    What a CPU does not have is absent from the mappings and 0 in the tuples.
    """

    cpu: str
    """Model of the CPU, as named by :func:`~cpembed.codegen.host_cpu.cpu_model`."""
    threads: Count
    cache_bytes: tuple[Natural, Natural, Natural]
    """Sizes of L1 data, L2 and L3, as the system gives them; 0 if unknown."""
    product_ns: Mapping[str, Positive]
    """Time of a full-size product with operands in registers and independent accumulators."""
    product_row_ns: Mapping[str, Time]
    """Time that each missing tile row saves, from 16 rows down to 8; fewer rows save nothing more.
    0 for instructions without rows."""
    latency_ns: Mapping[str, Positive]
    """Time from a product to one that adds to the same accumulator."""
    tile_line_ns: tuple[Time, Time, Time, Time]
    """Time of a 64-byte row of a tile load from L1, L2, L3 and memory, in sequence."""
    vector_line_ns: tuple[Time, Time, Time, Time]
    """Time of a 64-byte vector load from L1, L2, L3 and memory, in sequence."""
    store_line_ns: tuple[Time, Time, Time]
    """Time of a row of a tile store (of a vector store where there are no tiles) to lines in L1, in
    L2, and streaming through more than L2 holds."""
    task_ns: Time
    """Overhead of a task besides its steps and stored lines: clearing accumulators, filling and
    draining the pipeline, its loop."""
    launch_us: Time
    """Time to call a kernel of ``threads`` parallel parts without work."""
    call_us: Time
    """Time to call a kernel of one part without work."""
    copy_ns_per_line: Time
    """Time to copy 64 bytes by one thread, both places in L2."""
    measured: str
    """Date of the measurement (ISO 8601); empty for published constants."""
    split_line_ns: Time = 0.0
    """Time of a row of a tile load that spans two cache lines, both in L1; 0 if unknown."""
    product_shared_ns: Mapping[str, Positive] = field(default_factory=dict[str, float])
    """``product_ns`` of each thread while all threads multiply; a product whose threads never ran
    at the same time is absent."""
    noisy: tuple[str, ...] = ()
    """Constants that did not settle, by field, with a place in it after a colon
    (``tile_line_ns:L3``)."""

    @property
    def is_default(self) -> bool:
        """True if nothing was measured."""
        return not self.measured

    def for_product(self, product: str) -> Calibration:
        """Return this calibration if it has the product, else the published one."""
        # Kernels are planned also on machines that cannot execute them.
        return self if product in self.product_ns else default_calibration(self.threads)

    def peak_gops(self, product: str) -> float:
        """Return the operations per nanosecond of a thread that has its core for itself."""
        return OPERATIONS[product] / self.product_ns[product]

    def shared_peak_gops(self, product: str) -> float | None:
        """Return the operations per nanosecond of all threads; None if that was not measured."""
        if product not in self.product_shared_ns:
            return None
        return self.threads * OPERATIONS[product] / self.product_shared_ns[product]


def product_ns(machine: Calibration, product: str) -> float:
    """Return the least time of a product instruction, relative to a full-size one."""
    times = machine.for_product(product)
    full = times.product_ns[product]
    # A product of half the rows may take less than half of the time.
    halved = full - _REMOVABLE_ROWS * times.product_row_ns.get(product, 0.0)
    return min(full, 2 * halved)


_REMOVABLE_ROWS = 8
"""Number of rows, of 16, that a product can lack and be faster for it."""


def default_calibration(threads: int = 1) -> Calibration:
    """Return the constants of a Sapphire Rapids server core; ``measured`` is empty."""
    # Threads are those of this machine, but times of a server core.
    values = {**_published_calibration(), "threads": threads, "measured": ""}
    # A copy, so that fields with defaults count as set and appear in documents.
    return replace(msgspec.convert(values, Calibration))


def calibration_path(folder: Path | None = None, threads: int | None = None) -> Path:
    """Return the file of this machine's CPU for a number of threads, by default that of kernels."""
    # The digest tells CPUs apart whose names differ only in characters that file names lack.
    cpu, count = cpu_model(), threads or thread_count()
    digest = hashlib.sha256(cpu.encode()).hexdigest()[:8]
    name = re.sub(r"\W+", "_", cpu).strip("_")
    folder = folder or store_folder("calibration", variable=DIRECTORY_VARIABLE, durable=True)
    return folder / f"{name}-{count}-{digest}.json"


def load_calibration(folder: Path | None = None) -> Calibration | None:
    """Return the calibration of this CPU with the threads of kernels, or None.

    None if nothing was measured, or if the file is damaged, which is reported in one line.
    """
    path = calibration_path(folder)
    try:
        return decoded(path.read_bytes(), Calibration, _flaw)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except DamagedRowError as error:
        reason = f"is no calibration of this version ({error})"
    warn_damaged(f"{path} {reason}; published figures stand in: run `cpembed calibrate` again")
    return None


def _flaw(calibration: Calibration) -> str | None:
    """Return the reason why a file holds no measurement of this machine; None if it does."""
    # L3 and memory are shared, so the times of another number of threads are other times.
    if calibration.threads != thread_count():
        return f"threads: {calibration.threads}, and kernels have {thread_count()}"
    if not calibration.measured:
        return "measured: no date"
    if not calibration.product_ns:
        return "product_ns: no product"
    for name, ns in calibration.product_ns.items():
        if name not in OPERATIONS:
            return f"product_ns: {name} is none of {', '.join(OPERATIONS)}"
        if name not in calibration.latency_ns:
            return f"latency_ns: {name} is missing"
        if name not in calibration.product_row_ns:
            return f"product_row_ns: {name} is missing"
        # A product of eight rows less would take no time, or less than none.
        if _REMOVABLE_ROWS * calibration.product_row_ns[name] >= ns:
            return f"product_row_ns: {_REMOVABLE_ROWS} rows less of {name} take no time"
    return None


def store_calibration(measured: Calibration, folder: Path | None = None) -> Path:
    """Replace the stored calibration of this machine and return its file.

    Raises :class:`CpembedError` if the folder cannot be written.
    """
    path = calibration_path(folder, measured.threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.strerror}; name another folder"
        raise CpembedError(f"{path.parent} cannot be made: {reason}") from None
    text = msgspec.json.format(msgspec.json.encode(measured), indent=2).decode()
    write_whole(path, f"{text}\n")
    # This process plans by the new constants from now on.
    calibration.cache_clear()
    return path


@cache_by_processor
def calibration() -> Calibration:
    """Return the constants that kernels are planned by: those measured on this machine, if any.

    Kernels for another processor are planned by its published figures.
    """
    if named_processor() is not None:
        return published_for(default_calibration(thread_count()))
    return load_calibration() or default_calibration(thread_count())


class _Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Published figures of processors that are alike, as ``processors.toml`` explains them."""

    names: tuple[str, ...]
    clock_ghz: float
    cache_bytes: tuple[int, int, int]
    line: tuple[float, float]
    product_cycles: dict[str, float]
    latency_cycles: dict[str, float]


@cache
def _figures() -> dict[str, tuple[str, _Figures]]:
    """Return the figures of each processor, with the name of the table they are in."""
    tables = read_toml(Path(__file__).parent / "processors.toml")
    figures = {name: msgspec.convert(table, _Figures) for name, table in tables.items()}
    return {name: (table, each) for table, each in figures.items() for name in each.names}


def figures_name(processor: Processor) -> str | None:
    """Return the name of the published figures of a processor; None if there are none."""
    figures = _figures().get(processor.name)
    return None if figures is None else figures[0]


def published_for(base: Calibration) -> Calibration:
    """Return published figures of the processor that kernels are built for.

    What is not published of it, and everything without a processor that is named, is that of
    ``base``.
    """
    processor = named_processor()
    figures = None if processor is None else _figures().get(processor.name)
    if figures is None:
        return base
    name, table = figures
    cycle = 1 / table.clock_ghz
    first, second = (cycle * line for line in table.line)
    products = {product: cycle * cost for product, cost in table.product_cycles.items()}
    return replace(
        base,
        cpu=f"none: published figures of {name}",
        cache_bytes=table.cache_bytes,
        vector_line_ns=(first, second, *base.vector_line_ns[2:]),
        product_ns={**base.product_ns, **products},
        latency_ns={
            **base.latency_ns,
            **{product: cycle * cost for product, cost in table.latency_cycles.items()},
        },
        product_row_ns={**dict.fromkeys(products, 0.0), **base.product_row_ns},
    )
