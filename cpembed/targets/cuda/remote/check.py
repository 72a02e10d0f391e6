"""Run the kernels of this folder on a GPU: compare their results, then time them.

    python check.py [--device N] [--json FILE] [--no-time]

The exit status is 0 if every result is right, and 1, with one line that begins with ``error:``, if
there is no device, a call is refused, or a result differs. Inputs are made here from a seed; what
the kernels have to store was computed when they were saved.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cpembed.targets.cuda.remote.load import CudaError, Device, Driver, Kernels

DAMAGED = (
    ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
    ctypes.ArgumentError, struct.error,
)  # fmt: skip
"""Errors of reading a manifest whose entries are not those that were saved."""

PERIOD = 65521
"""Number of elements after which generated data repeats: prime, so that no two rows of an operand
are equal, unless they are that far apart."""

_MASK = 0xFFFFFFFF

GUARD_BYTES = 4096
"""Number of bytes behind every buffer that kernels must not change."""
GUARD, UNWRITTEN = 0x5A, 0xA5

RUNS, WARM_UP = 100, 10
"""Number of timed calls, and of calls before them."""

# Exponent and mantissa bits of float types, by which NaN and negative zero are recognised.
FLOAT_BITS = {
    "float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23),
    "float8_e5m2": (5, 2),
}  # fmt: skip


def mixed(number: int) -> int:
    """Return a well mixed function of 32 bits to 32 bits; ``check.cu`` has the same."""
    number ^= number >> 16
    number = number * 0x7FEB352D & _MASK
    number ^= number >> 15
    number = number * 0x846CA68B & _MASK
    return number ^ number >> 16


def generated(spec: Mapping[str, Any], elements: int, itemsize: int) -> bytes:
    """Return the bytes of an operand.

    Parameters
    ----------
    spec : mapping
        The seed; ``values``, the bits of the numbers that are drawn; and ``rare``, those of numbers
        each of which is drawn once in ``rare_one_in`` elements.
    elements, itemsize : int
        Number of elements, and bytes of each.

    Examples
    --------
    >>> spec = {"seed": 1, "values": [0, 1, 255], "rare": [], "rare_one_in": 1}
    >>> sorted(set(generated(spec, 50, 1))), len(generated(spec, 70000, 2))
    ([0, 1, 255], 140000)
    """
    values, rare, one_in = spec["values"], spec["rare"], spec["rare_one_in"]
    start, count = spec["seed"] * 0x9E3779B9 & _MASK, len(values)
    block: list[int] = []
    for number in range(min(elements, PERIOD)):
        drawn = mixed((start + number) & _MASK)
        place = mixed(drawn ^ 0x5BD1E995) % one_in
        block.append(rare[place] if place < len(rare) else values[drawn % count])
    letter = {1: "B", 2: "H", 4: "I"}[itemsize]
    data = struct.pack(f"<{len(block)}{letter}", *block)
    return (data * -(-elements // len(block)))[: elements * itemsize]


def canonical(data: bytes, dtype: str) -> bytes:
    """Return stored numbers with one pattern for every NaN, and one for both zeros.

    >>> canonical(struct.pack("<3H", 0x8000, 0xFE01, 0x3C00), "float16").hex(" ", 2)
    '0000 007e 003c'
    """
    if dtype not in FLOAT_BITS:
        return data
    exponent, mantissa = FLOAT_BITS[dtype]
    size = 1 + exponent + mantissa
    infinity = (1 << exponent) - 1 << mantissa
    quiet, sign = infinity | 1 << mantissa - 1, 1 << size - 1
    letter = {8: "B", 16: "H", 32: "I"}[size]
    letters = f"<{8 * len(data) // size}{letter}"
    numbers: tuple[int, ...] = struct.unpack(letters, data)
    clean = [(quiet if (n & ~sign) > infinity else 0 if n == sign else n) for n in numbers]
    return struct.pack(letters, *clean)


def number_of(bits: bytes, dtype: str) -> float:
    """Return the number of an element's bytes."""
    if dtype == "bfloat16":
        return struct.unpack("<f", b"\0\0" + bits)[0]
    letters = {"float16": "e", "float32": "f", "int8": "b", "uint8": "B", "int32": "i"}
    return float(struct.unpack(f"<{letters[dtype]}", bits)[0])


def difference(
    data: bytes, output: Mapping[str, Any], expected: Mapping[str, Any], sample: bytes
) -> str | None:
    """Return how a result differs from what it has to be; None if it does not.

    Parameters
    ----------
    data : bytes
    output : mapping
        Document of its buffer.
    expected : mapping
        Rule and checksums: ``exact`` compares the checksums of all bits, ``tolerance`` a sample;
        ``special`` a sample too, of which some of the numbers may have become NaN.
    sample : bytes
        Elements of the right result, one of each ``sample_step``.
    """
    dtype, size = output["dtype"], output["itemsize"]
    exact, wrong_slice = expected["rule"] == "exact", ""
    if exact:
        length = expected["slice_elements"] * size
        for number, checksum in enumerate(expected["crc32"]):
            part = data[number * length : (number + 1) * length]
            # Other NaNs and zeros are looked for only where the bits differ: that takes long.
            if checksum not in (zlib.crc32(part), zlib.crc32(canonical(part, dtype))):
                first = number * expected["slice_elements"]
                wrong_slice = f"elements {first} to {first + len(part) // size - 1}"
                break
        if not wrong_slice:
            return None
    numbers = spread = 0
    for place in range(len(sample) // size):
        index = place * expected["sample_step"]
        bits = data[index * size : (index + 1) * size]
        right = sample[place * size : (place + 1) * size]
        stored, right_number = number_of(bits, dtype), number_of(right, dtype)
        numbers += not math.isnan(right_number)
        if bits == right or _near(stored, right_number, expected):
            continue
        if expected["rule"] != "special" or not math.isnan(stored):
            return f"element {index} is {stored:g}, not {right_number:g}"
        spread += 1
    if 0 < spread == numbers:
        return f"all {numbers} elements that should be numbers are NaN"
    return f"{wrong_slice} have another checksum" if wrong_slice else None


def _near(stored: float, right: float, expected: Mapping[str, Any]) -> bool:
    if stored == right or (math.isnan(stored) and math.isnan(right)):
        return True
    return abs(stored - right) <= expected["absolute"] + expected["relative"] * abs(right)


class Memory:
    """Device memory of all buffers of some kernels, with a guard behind each."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.device = kernels, kernels.device
        self.buffers = kernels.manifest["buffers"]
        self.addresses: dict[str, int] = {}
        for buffer in kernels.buffers.values():
            self.addresses[buffer.name] = self.device.allocate(buffer.bytes + GUARD_BYTES)

    def free(self) -> None:
        """Release the memory."""
        for address in self.addresses.values():
            self.device.free(address)
        self.addresses.clear()

    def write_inputs(self, case: Mapping[str, Any]) -> None:
        """Write a case's inputs; raises :class:`CudaError` unless they are those it was saved with.

        All other memory gets a pattern that no result may depend on.
        """
        for buffer in self.kernels.buffers.values():
            address = self.addresses[buffer.name]
            self.device.fill(address, buffer.bytes, UNWRITTEN)
            self.device.fill(address + buffer.bytes, GUARD_BYTES, GUARD)
            if buffer.role == "input":
                spec = case["inputs"][buffer.name]
                data = generated(spec, buffer.elements, buffer.itemsize)
                if zlib.crc32(data) != spec["crc32"]:
                    raise CudaError(f"{buffer.name} of {case['name']} is not as it was saved")
                self.device.write(address, data)

    def erase_results(self) -> None:
        """Fill the results with a pattern, so that the next call has to write them."""
        for buffer in self.kernels.buffers.values():
            if buffer.role == "output":
                self.device.fill(self.addresses[buffer.name], buffer.bytes, UNWRITTEN)

    def overwritten(self) -> list[str]:
        """Return the buffers behind whose end something was written."""
        guard = bytes([GUARD]) * GUARD_BYTES
        return [
            buffer.name
            for buffer in self.kernels.buffers.values()
            if self.device.read(self.addresses[buffer.name] + buffer.bytes, GUARD_BYTES) != guard
        ]

    def fault(self, case: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the results of a case; None if they are right."""
        overwritten = self.overwritten()
        if overwritten:
            return f"the kernels write behind the end of {', '.join(overwritten)}"
        for output in (b for b in self.buffers if b["role"] == "output"):
            size = output["elements"] * output["itemsize"]
            data = self.device.read(self.addresses[output["name"]], size)
            expected = case["expected"][output["name"]]
            sample = (self.kernels.folder / expected["sample"]).read_bytes()
            fault = difference(data, output, expected, sample)
            if fault is not None:
                # The result has no name of its own in messages.
                is_first = output["tensor"] == self.kernels.manifest["results"][0]
                return fault if is_first else f"second output: {fault}"
        return None


def check_case(kernels: Kernels, memory: Memory, case: Mapping[str, Any]) -> None:
    """Run the kernels on a case.

    Parameters
    ----------
    kernels : Kernels
    memory : Memory
        Memory of their buffers.
    case : mapping
        Document of the case.

    Raises
    ------
    CudaError
        If a call is refused, or the result is wrong.
    """
    memory.write_inputs(case)
    kernels.launch(memory.addresses)
    kernels.device.synchronize()
    fault = memory.fault(case)
    if fault is not None:
        raise CudaError(f"wrong result for {case['name']}: {fault}")


class Timer:
    """Microseconds between two events, the second level cache emptied before the first."""

    def __init__(self, device: Device) -> None:
        self.device, self.driver = device, device.driver
        self.flushed_bytes = 2 * device.l2_bytes
        self._flushed = device.allocate(self.flushed_bytes) if self.flushed_bytes else 0
        self._begin, self._end = self._event(), self._event()

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.driver.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def __call__(self, run: Callable[[], None]) -> float:
        """Return the microseconds of a call; raises :class:`CudaError` if events measure none."""
        if self._flushed:
            self.device.fill(self._flushed, self.flushed_bytes, 0)
        self.driver.call("cuEventRecord", self._begin, None)
        run()
        self.driver.call("cuEventRecord", self._end, None)
        self.driver.call("cuEventSynchronize", self._end)
        elapsed = ctypes.c_float()
        name = "cuEventElapsedTime"
        self.driver.call(name, ctypes.byref(elapsed), self._begin, self._end)
        if not elapsed.value > 0:
            raise CudaError(f"events measured {elapsed.value:g} ms: this is no time")
        return elapsed.value * 1e3


def timed(kernels: Kernels, memory: Memory, timer: Timer) -> list[float]:
    """Return the microseconds of calls; weights are packed before them.

    Parameters
    ----------
    kernels : Kernels
    memory : Memory
        Memory of their buffers, with the inputs of a case.
    timer : Timer
    """
    kernels.launch(memory.addresses, kernels.prepares)

    def run() -> None:
        kernels.launch(memory.addresses, kernels.computes)

    for _ in range(WARM_UP):
        run()
    # Later calls have to write results too: counters of parts, for one, are cleared by the first.
    memory.erase_results()
    return [timer(run) for _ in range(RUNS)]


def figures(manifest: Mapping[str, Any], samples: list[float]) -> dict[str, Any]:
    """Return the median time, its quantiles, and the rates that follow from it."""
    us = statistics.median(samples)
    tenths = statistics.quantiles(samples, n=10) if len(samples) > 1 else [us] * 9
    moved = sum(
        buffer["elements"] * buffer["itemsize"]
        for buffer in manifest["buffers"]
        if buffer["role"] != "workspace"
    )
    return {
        "us": us, "p10_us": tenths[0], "p90_us": tenths[-1], "calls": len(samples),
        "gb_per_s": moved / us / 1e3, "bytes": moved,
        "tera_operations_per_s": 2 * manifest["macs"] / us / 1e6,
    }  # fmt: skip


def checked(kernels: Kernels, *, time: bool = True) -> dict[str, Any]:
    """Check the kernels on every case, then time them.

    Parameters
    ----------
    kernels : Kernels
        Kernels of a folder.
    time : bool
        False to leave the timing out.

    Raises
    ------
    CudaError
        If a call is refused or a result is wrong, also after the timing.
    """
    memory, cases = Memory(kernels), kernels.manifest["cases"]
    if not cases:
        raise CudaError(f"{kernels.folder} was saved without expected results: nothing is checked")
    for case in cases:
        check_case(kernels, memory, case)
    result: dict[str, Any] = {"name": kernels.manifest["name"], "image": kernels.image["file"]}
    result["cases"] = {
        case["name"]: ", ".join(dict.fromkeys(e["rule"] for e in case["expected"].values()))
        for case in cases
    }
    result["kernels"] = kernels.attributes()
    if time:
        timer = Timer(kernels.device)
        # Ordinary numbers, which decide the power.
        memory.write_inputs(cases[0])
        result |= figures(kernels.manifest, timed(kernels, memory, timer))
        result["l2_flushed"] = timer.flushed_bytes > 0
        kernels.device.synchronize()
        fault = memory.fault(cases[0])
        if fault is not None:
            raise CudaError(f"wrong result after {RUNS} timed calls: {fault}")
    memory.free()
    return result


def device_facts(device: Device) -> dict[str, Any]:
    """Return the name of a device, its limits and the driver's version."""
    return {
        "device": device.name,
        "capability": list(device.capability),
        "multiprocessors": device.multiprocessors,
        "l2_bytes": device.l2_bytes,
        "clock_mhz": device.clock_mhz,
        "cuda_driver": device.driver.version(),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    summary = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser("check.py", description=summary)
    parser.add_argument("--device", type=int, default=0, help="number of the GPU (0)")
    parser.add_argument("--json", type=Path, help="write the results to a file")
    parser.add_argument("--no-time", action="store_true", help="compare only")
    options = parser.parse_args(arguments)
    try:
        device = Device(Driver(), options.device)
        kernels = Kernels(device=device)
        result = checked(kernels, time=not options.no_time)
    except (CudaError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except DAMAGED as error:
        print(f"error: the manifest is damaged: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    facts = device_facts(device)
    major, minor = device.capability
    print(f"{device.name}, sm_{major}{minor}, up to {device.clock_mhz:.0f} MHz, {result['image']}")
    rules = ", ".join(f"{name} ({rule})" for name, rule in result["cases"].items())
    print(f"right: {rules}")
    if "us" in result:
        cache = "L2 flushed before each" if result["l2_flushed"] else "L2 not flushed"
        print(
            f"{result['us']:.3f} us median of {result['calls']} calls ({result['p10_us']:.3f} to "
            f"{result['p90_us']:.3f}), {cache}: {result['gb_per_s']:.1f} GB/s, "
            f"{result['tera_operations_per_s']:.2f} tera-operations a second"
        )
    if options.json is not None:
        document = {"machine": facts, "results": [result]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
