"""The constants of a machine that the model of its kernels needs, measured once and kept.

``cpembed calibrate`` measures them (:mod:`cpembed.targets.x86.calibrate`). They are kept in a file
for each CPU model and number of threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import msgspec

from cpembed.codegen.runtime import thread_count
from cpembed.codegen.system import cpu_model
from cpembed.errors import CpembedError
from cpembed.files import write_whole
from cpembed.stores import (
    Count,
    Natural,
    NotARow,
    Positive,
    Time,
    decoded,
    store_folder,
    warn_damaged,
)
from cpembed.targets.cpu.figures import published

DIRECTORY_VARIABLE = "CPEMBED_CALIBRATION_DIR"

OPERATIONS: Mapping[str, int] = {
    "tdpbusd": 2 * 16 * 16 * 64,
    "tdpbf16ps": 2 * 16 * 16 * 32,
    "vpdpbusd": 2 * 16 * 4,
    "vdpbf16ps": 2 * 16 * 2,
    "vpdpbusd_ymm": 2 * 8 * 4,
    "vfmadd231ps": 2 * 16,
    "vfmadd231ps_ymm": 2 * 8,
}
"""Of one product at its largest, a multiplication and an addition being two."""


@dataclass(frozen=True)
class Calibration:
    """Times of the parts of a kernel, in nanoseconds where the name does not say otherwise.

    Products, and lines that come from L1 and L2, are those of a thread that has its core for
    itself. L3 and memory are shared: a line's time is each thread's while all ``threads`` stream.
    What the CPU has not is absent from the mappings, and 0 in the tuples.
    """

    cpu: str
    """The model, as :func:`~cpembed.codegen.system.cpu_model` names it."""
    threads: Count
    cache_bytes: tuple[Natural, Natural, Natural]
    """L1 data, L2, L3 as the system gives them; 0 where unknown."""
    product_ns: Mapping[str, Positive]
    """A product of the largest shape, operands in registers, accumulators independent."""
    product_row_ns: Mapping[str, Time]
    """What a tile row less saves of it, between 16 rows and 8; fewer rows save nothing more. 0
    where there are no rows."""
    latency_ns: Mapping[str, Positive]
    """From a product to one that adds to the same accumulator."""
    tile_line_ns: tuple[Time, Time, Time, Time]
    """A row of 64 bytes of a tile load, from L1, L2, L3, memory, in sequence."""
    vector_line_ns: tuple[Time, Time, Time, Time]
    """The same by 64-byte vectors."""
    store_line_ns: tuple[Time, Time, Time]
    """A row of a tile store (of vectors where there are no tiles), to lines in L1, in L2, and
    streaming through more than L2 holds."""
    task_ns: Time
    """What a task costs beside its steps and the lines it stores: clearing accumulators, filling
    and draining the pipeline, its loop."""
    launch_us: Time
    """Calling a kernel of ``threads`` parallel parts without work."""
    call_us: Time
    """Calling a kernel of one part without work."""
    copy_ns_per_line: Time
    """Copying 64 bytes to another place, one thread, both in L2."""
    measured: str
    """Date (ISO 8601); empty where nothing was measured and the figures are published ones."""
    split_line_ns: Time = 0.0
    """A row of a tile load that lies in two cache lines, both in L1; 0 where that is unknown."""
    product_shared_ns: Mapping[str, Positive] = field(default_factory=dict[str, float])
    """``product_ns`` of each thread while all threads multiply; a product whose threads never ran
    at the same time is absent."""
    noisy: tuple[str, ...] = ()
    """Figures that did not settle, by field, a place in it after a colon (``tile_line_ns:L3``)."""

    @property
    def is_default(self) -> bool:
        """Whether nothing was measured."""
        return not self.measured

    def knowing(self, product: str) -> Calibration:
        """These figures where they have the product, else published ones: kernels are planned also
        on a machine that cannot execute them."""
        return self if product in self.product_ns else default_calibration(self.threads)

    def peak_gops(self, product: str) -> float:
        """Operations a nanosecond of a thread that has its core for itself."""
        return OPERATIONS[product] / self.product_ns[product]

    def shared_peak_gops(self, product: str) -> float | None:
        """Operations a nanosecond of all threads together; None where that was not measured."""
        if product not in self.product_shared_ns:
            return None
        return self.threads * OPERATIONS[product] / self.product_shared_ns[product]


_ROWS = 8
"""Of 16 that a product can have less and be faster."""


def default_calibration(threads: int = 1) -> Calibration:
    """Figures of a Sapphire Rapids server core, for where nothing was measured: ``measured`` is
    empty and ``cpu`` says so (:func:`~cpembed.targets.cpu.figures.published`)."""
    found = msgspec.convert({**published(), "threads": threads, "measured": ""}, Calibration)
    # Made anew, so that fields of a default are among those that documents show.
    return replace(found)


def default_directory() -> Path:
    """The folder that ``CPEMBED_CALIBRATION_DIR`` names, else one of the user's data folder."""
    return store_folder("calibration", variable=DIRECTORY_VARIABLE, durable=True)


def calibration_path(folder: Path | None = None, threads: int | None = None) -> Path:
    """The file of this machine's CPU and of a number of threads, those of kernels by default."""
    cpu, count = cpu_model(), threads or thread_count()
    digest = hashlib.sha256(cpu.encode()).hexdigest()[:8]
    name = re.sub(r"\W+", "_", cpu).strip("_")
    return (folder or default_directory()) / f"{name}-{count}-{digest}.json"


def load_calibration(folder: Path | None = None) -> Calibration | None:
    """What was measured on this CPU with as many threads as kernels have; None where nothing was,
    or what is there is damaged, which is said in one line."""
    path = calibration_path(folder)
    try:
        return decoded(path.read_bytes(), Calibration, _flaw)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except NotARow as error:
        reason = f"is no calibration of this version ({error})"
    warn_damaged(f"{path} {reason}; published figures stand in: run `cpembed calibrate` again")
    return None


def _flaw(found: Calibration) -> str | None:
    """What no measurement of this machine says."""
    if found.threads != thread_count():
        return f"threads: {found.threads}, and kernels have {thread_count()}"
    if not found.measured:
        return "measured: no date"
    if not found.product_ns:
        return "product_ns: no product"
    for name, ns in found.product_ns.items():
        if name not in OPERATIONS:
            return f"product_ns: {name} is none of {', '.join(OPERATIONS)}"
        if name not in found.latency_ns:
            return f"latency_ns: {name} is missing"
        if name not in found.product_row_ns:
            return f"product_row_ns: {name} is missing"
        if _ROWS * found.product_row_ns[name] >= ns:
            return f"product_row_ns: {_ROWS} rows less of {name} take no time"
    return None


def store_calibration(measured: Calibration, folder: Path | None = None) -> Path:
    """Keep a calibration of this machine in the place of an older one, in one step; where it is.

    Raises :class:`CpembedError` where the folder cannot be written.
    """
    path = calibration_path(folder, measured.threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.strerror}; name another folder"
        raise CpembedError(f"{path.parent} cannot be made: {reason}") from None
    text = msgspec.json.format(msgspec.json.encode(measured), indent=2).decode()
    write_whole(path, f"{text}\n")
    calibration.cache_clear()
    return path


@cache
def calibration() -> Calibration:
    """What kernels are planned by: what was measured here, else :func:`default_calibration`."""
    return load_calibration() or default_calibration(thread_count())
