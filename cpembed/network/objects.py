"""The kernels of a network as object files: kept ones, and what is compiled, in several processes
at a time."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from cpembed import worker
from cpembed.export.program import CompiledObject
from cpembed.kernel.host_cpu import needed_features
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.runtime import compile_host_object, compiled_for
from cpembed.measure.environment import versions
from cpembed.network.cache import Cache, digest_of, source_digest
from cpembed.network.products import Progress, cores


def symbol_of(plan: KernelPlan) -> str:
    """A name that only equal kernels, compiled alike, have."""
    host = compiled_for()
    compiler = source_digest(("kernel",)), versions()["apache-tvm"], host.name, host.attributes
    return f"k{digest_of(plan, compiler)[:24]}"


def compiled(
    plans: Mapping[str, KernelPlan], cache: Cache, progress: Progress
) -> dict[str, CompiledObject]:
    """Object files by symbol.

    Raises :class:`~cpembed.errors.LoweringError` for a kernel that does not compile, and
    :class:`~cpembed.errors.CrashError` for one that ends the compiler.
    """
    kept = {symbol: cache.get(CompiledObject, f"{symbol}.o") for symbol in plans}
    found = {symbol: one for symbol, one in kept.items() if one is not None}
    missing = [symbol for symbol in plans if symbol not in found]
    progress("compiling", 0, len(missing))
    for number, one in enumerate(_compiled(missing, plans), 1):
        found[one.symbol] = one
        cache.put(f"{one.symbol}.o", one)
        progress("compiling", number, len(missing))
    return found


def _compiled(missing: list[str], plans: Mapping[str, KernelPlan]) -> Iterator[CompiledObject]:
    """As each is done. Where a kernel ends the process that compiles it, the rest is compiled one
    by one in the worker, which says what it was doing."""
    done: set[str] = set()
    if cores() > 1 and len(missing) > 1:
        try:
            for one in _in_parallel(missing, plans):
                done.add(one.symbol)
                yield one
        except BrokenProcessPool:
            pass
    for symbol in missing:
        if symbol not in done:
            yield worker.call(_object, plans[symbol], symbol)


def _in_parallel(missing: list[str], plans: Mapping[str, KernelPlan]) -> Iterator[CompiledObject]:
    pool = ProcessPoolExecutor(cores(), get_context("spawn"), _without_interrupts)
    try:
        # What takes the longest comes first, so that no process waits for one at the end.
        order = sorted(missing, key=lambda symbol: -len(plans[symbol].source))
        tasks = [pool.submit(_object, plans[symbol], symbol) for symbol in order]
        for task in as_completed(tasks):
            yield task.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _without_interrupts() -> None:
    """The parent is told of an interrupt, and ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _object(plan: KernelPlan, symbol: str) -> CompiledObject:
    return CompiledObject(symbol, compile_host_object(plan, symbol).contents)


def features(asked: Iterable[str]) -> tuple[str, ...]:
    """What a processor has to have for kernels that ask for these features: those of this one, for
    which they are compiled, too."""
    return needed_features(tuple(dict.fromkeys(asked)))
