"""``cpembed calibrate``: measure this machine for the model of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpembed import wording
from cpembed.blocks import Block, Header, Table
from cpembed.cli.options import (
    folder_option,
    json_option,
    threads_option,
    timeout_option,
    use_threads,
)
from cpembed.cli.output import Bar, message, print_json, print_text
from cpembed.cli.parameters import subcommand
from cpembed.driver.options import option
from cpembed.targets.cpu.calibration import OPERATIONS, Calibration
from cpembed.targets.x86.calibrate import (
    ROUNDS,
    TIMEOUT,
    CalibrateResult,
    bandwidth,
    calibrate,
    calibration_in_use,
)


@dataclass(frozen=True, kw_only=True)
class CalibrateArguments:
    """Command line of ``cpembed calibrate``."""

    rounds: int = option(
        ROUNDS,
        "Rounds of all measurements; those that are not steady get more.",
        metavar="N",
        limits=(1, None),
    )
    timeout: float = timeout_option(
        "Seconds after which what is not steady is accepted as it is, and listed.", TIMEOUT
    )
    threads: int | None = threads_option("the kernels that it is for")
    database: Path | None = folder_option(
        "Folder of calibrations.  [default: $CPEMBED_CALIBRATION_DIR, else a folder of the "
        "user's data]"
    )
    show: bool = option(False, "Show the constants in use instead of measuring.")
    as_json: bool = json_option()


@subcommand("calibrate", CalibrateArguments)
def command(arguments: CalibrateArguments) -> int:
    r"""Measure the constants of this machine by which x86 kernels are planned.

    They are the times of instructions, caches, memory and calls. Measuring takes some 20 seconds;
    the constants are stored for this CPU and number of threads.

    Best when the machine has nothing else to do. Ctrl-C leaves what was stored before.

    \b
    cpembed calibrate
    cpembed calibrate --show
    """
    use_threads(arguments.threads)
    if arguments.show:
        result = calibration_in_use(arguments.database)
    else:
        with Bar("loading the compiler", None) as bar:

            def on_step(phase: str, finished: int, total: int) -> None:
                if phase == "build":
                    bar.show("compiling", often=True, total=total, completed=finished)
                else:
                    text = f"measuring, round {finished}: {total} constants to settle"
                    bar.show(text, often=True)

            result = calibrate(
                rounds=arguments.rounds,
                timeout=arguments.timeout,
                database=arguments.database,
                on_step=on_step,
            )
    if result.path is None:
        message("nothing was measured here: these are published figures; run `cpembed calibrate`")
    # Messages go to stderr, so that stdout has the document alone.
    for note in result.measured.notes if result.measured is not None else ():
        message(f"{note}; calibrate again when the machine is idle")
    if arguments.as_json:
        print_json(result.to_json())
    else:
        print_text(*report(result))
    return 0


_EMPTY = "·"
_LEVELS = ("L1", "L2", "L3", "memory")
_PRODUCT_COLUMNS = ("ns", "a row less", "same sum", "peak a thread", "all threads")


def report(result: CalibrateResult) -> Iterator[Block]:
    """Yield the report of a calibration."""
    constants = result.calibration
    yield Header(_machine_rows(result))
    yield ""
    yield Table(
        ("product", *(f"{name}>" for name in _PRODUCT_COLUMNS)),
        [_product_row(constants, name) for name in OPERATIONS if name in constants.product_ns],
    )
    yield ""
    yield Table(
        ("64 bytes", *(f"{level}>" for level in _LEVELS)),
        [
            _line_row("tile load", constants.tile_line_ns),
            _line_row("  in two lines", (constants.split_line_ns,)),
            _line_row("vector load", constants.vector_line_ns),
            _line_row("store", constants.store_line_ns),
            # Copies are measured in L2 alone.
            _line_row("copy", (0.0, constants.copy_ns_per_line)),
        ],
    )
    yield ""
    launch = wording.duration(constants.launch_us)
    yield Header(
        [
            ("a call", wording.duration(constants.call_us)),
            ("threads", f"{launch} for a call that starts {constants.threads}"),
            ("a task", f"{constants.task_ns:.3g} ns besides its products, loads and stores"),
        ]
    )


def _machine_rows(result: CalibrateResult) -> Iterator[tuple[str, str]]:
    constants, run = result.calibration, result.measured
    yield "cpu", f"{constants.cpu}; {wording.plural(constants.threads, 'thread')}"
    # A size that the system does not report is 0.
    sizes = zip(_LEVELS, constants.cache_bytes, strict=False)
    yield "caches", "  ".join(f"{level} {wording.data_size(size)}" for level, size in sizes if size)
    if not constants.is_default:
        duration = "" if run is None else f", in {run.seconds:.1f} s, at most {run.rounds} rounds"
        yield "measured", f"{constants.measured}{duration}"
    if result.path is not None:
        yield "stored in", str(result.path)
    if run is not None:
        for name, reason in run.missing.items():
            yield "absent", f"{name}: {reason}"
    if constants.noisy:
        yield "not steady", ", ".join(constants.noisy)


def _product_row(constants: Calibration, name: str) -> list[str]:
    row = constants.product_row_ns.get(name, 0.0)
    return [
        name,
        f"{constants.product_ns[name]:.3g}",
        f"{row:.3g}" if row else _EMPTY,
        f"{constants.latency_ns[name]:.3g}",
        _peak(name, constants.peak_gops(name)),
        _peak(name, constants.shared_peak_gops(name)),
    ]


def _peak(name: str, gops: float | None) -> str:
    unit = "TFLOPS" if "bf16" in name else "TOPS"
    return _EMPTY if gops is None else f"{gops / 1e3:.3g} {unit}"


def _line_row(name: str, lines: Sequence[float]) -> list[str]:
    cells = [_line(ns) for ns in lines]
    return [name, *cells, *[_EMPTY] * (len(_LEVELS) - len(cells))]


def _line(ns: float) -> str:
    rate = bandwidth(ns)
    return _EMPTY if rate is None else f"{ns:.3g} ns, {rate:.3g} GB/s"
