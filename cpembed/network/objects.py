"""The kernels of a network as object files: kept ones, and what is compiled, in several processes
at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cpembed.codegen.host_cpu import needed_features
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_host_object, compiled_for
from cpembed.export.program import CompiledObject
from cpembed.network.cache import Cache, digest_of, source_digest
from cpembed.network.products import cores
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import versions
from cpembed.steps import Progress


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
    # What takes the longest comes first, so that no process waits for one at the end.
    missing.sort(key=lambda symbol: -len(plans[symbol].source))
    tasks = [(plans[symbol], symbol) for symbol in missing]
    for number, (_, one) in enumerate(worker.call_each(_object, tasks, cores()), 1):
        found[one.symbol] = one
        cache.put(f"{one.symbol}.o", one)
        progress("compiling", number, len(missing))
    return found


def _object(task: tuple[KernelPlan, str]) -> CompiledObject:
    plan, symbol = task
    return CompiledObject(symbol, compile_host_object(plan, symbol).contents)


def features(asked: Iterable[str]) -> tuple[str, ...]:
    """What a processor has to have for kernels that ask for these features: those of this one, for
    which they are compiled, too."""
    return needed_features(tuple(dict.fromkeys(asked)))
