"""``cpembed calibrate``: measure this machine for the model of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from cpembed import wording
from cpembed.blocks import Block, Header, Table
from cpembed.cli.options import (
    Subcommand,
    folder_option,
    json_option,
    threads_option,
    timeout_option,
    use_threads,
)
from cpembed.cli.output import Bar, message, print_json, print_text
from cpembed.targets.cpu.calibration import OPERATIONS, Calibration
from cpembed.targets.x86.calibrate import CalibrateResult, bandwidth


@click.command(cls=Subcommand)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=60,
    metavar="N",
    show_default=True,
    help="Rounds of all measurements; those that do not settle get more.",
)
@timeout_option(
    "Seconds of measuring after which what has not settled is taken as it is, and said.", 8.0
)
@threads_option("the kernels that it is for")
@folder_option(
    "--database",
    "Folder that keeps what is measured.  [default: $CPEMBED_CALIBRATION_DIR, else a folder "
    "of the user's data]",
)
@click.option("--show", is_flag=True, help="Show what is kept instead of measuring.")
@json_option
def command(
    *,
    rounds: int,
    timeout: float,
    threads: int | None,
    database: Path | None,
    show: bool,
    as_json: bool,
) -> int:
    """Measure the constants of this machine by which x86 kernels are planned: instructions, caches,
    memory, calls. It takes some 20 seconds, and keeps them for this CPU and number of threads.

    Best when the machine has nothing else to do. Ctrl-C leaves what was kept before.

    \b
    cpembed calibrate
    cpembed calibrate --show
    """
    use_threads(threads)
    from cpembed.targets.x86.calibrate import calibrate, known

    if show:
        result = known(database)
    else:
        with Bar("loading the compiler", None) as bar:

            def tell(what: str, done: int, of: int) -> None:
                if what == "build":
                    bar.show("compiling", often=True, total=of, completed=done)
                else:
                    bar.show(f"measuring, round {done}: {of} figures to settle", often=True)

            result = calibrate(rounds=rounds, timeout=timeout, database=database, on_step=tell)
    if result.path is None:
        message("nothing was measured here: these are published figures; run `cpembed calibrate`")
    for note in result.measured.notes if result.measured is not None else ():
        message(f"{note}; calibrate again when the machine is idle")
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.targets.x86.commands import report

        print_text(*report(result))
    return 0


_EMPTY = "·"
_LEVELS = ("L1", "L2", "L3", "memory")
_PRODUCT_COLUMNS = ("ns", "a row less", "same sum", "peak a thread", "all threads")


def report(result: CalibrateResult) -> Iterator[Block]:
    found = result.calibration
    yield Header(_machine_rows(result))
    yield ""
    yield Table(
        ("product", *(f"{name}>" for name in _PRODUCT_COLUMNS)),
        [_product_row(found, name) for name in OPERATIONS if name in found.product_ns],
    )
    yield ""
    yield Table(
        ("64 bytes", *(f"{level}>" for level in _LEVELS)),
        [
            _line_row("tile load", found.tile_line_ns),
            _line_row("  in two lines", (found.split_line_ns,)),
            _line_row("vector load", found.vector_line_ns),
            _line_row("store", found.store_line_ns),
            _line_row("copy", (0.0, found.copy_ns_per_line)),
        ],
    )
    yield ""
    yield Header(
        [
            ("a call", wording.duration(found.call_us)),
            (
                "threads",
                f"{wording.duration(found.launch_us)} for a call that starts {found.threads}",
            ),
            ("a task", f"{found.task_ns:.3g} ns beside its products, loads and stores"),
        ]
    )


def _machine_rows(result: CalibrateResult) -> Iterator[tuple[str, str]]:
    found, run = result.calibration, result.measured
    yield "cpu", f"{found.cpu}; {wording.plural(found.threads, 'thread')}"
    sizes = zip(_LEVELS, found.cache_bytes, strict=False)
    yield "caches", "  ".join(f"{level} {wording.data_size(size)}" for level, size in sizes if size)
    if not found.is_default:
        took = "" if run is None else f", in {run.seconds:.1f} s, at most {run.rounds} rounds"
        yield "measured", f"{found.measured}{took}"
    if result.path is not None:
        yield "kept", str(result.path)
    if run is not None:
        for name, what in run.missing.items():
            yield "absent", f"{name}: {what}"
    if found.noisy:
        yield "not steady", ", ".join(found.noisy)


def _product_row(found: Calibration, name: str) -> list[str]:
    row = found.product_row_ns.get(name, 0.0)
    return [
        name,
        f"{found.product_ns[name]:.3g}",
        f"{row:.3g}" if row else _EMPTY,
        f"{found.latency_ns[name]:.3g}",
        _peak(name, found.peak_gops(name)),
        _peak(name, found.shared_peak_gops(name)),
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
