"""Choices of kernels that other machines made, in files of JSON lines.

A search for a kernel takes tenths of a second, and a network has hundreds. What it found is a
target, an embedding and a schedule, which are exchanged by files. Nothing in one is trusted: a
program is derived from the embedding and proven, the schedule has to fit, and times and sizes are
computed again, so that a wrong line costs time and no result. A choice has the key of its search,
which is equal where the versions, the targets, their calibration and the number of threads are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.plan import Knobs
from cpembed.codegen.runtime import thread_count
from cpembed.cost.ranking import derive_candidate, overheads
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError
from cpembed.files import read_regular, write_whole
from cpembed.ir.computation import Computation
from cpembed.network.factor_extension import extension_us, with_words
from cpembed.network.kernel_cache import Cache
from cpembed.network.product_kernel import CachedKernel, ProductKernel
from cpembed.stores import LARGEST_STORE, DamagedRowError, SealedFolder, decoded, decoded_rows
from cpembed.targets.registry import open_target
from cpembed.targets.units import Units, with_alternatives
from cpembed.transform.proof import require

_PATTERN = "choices-*.jsonl"

_Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Line = Annotated[str, msgspec.Meta(max_length=400, pattern=r"^[\x20-\x7e]*$")]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kernel of a search: its target, embedding, operands in place, and schedule.

    ``extends`` is true if the bytes of the first factor are extended in memory before it.
    """

    key: _Key
    target: _Line
    embedding: dict[str, Any]
    in_place: tuple[_Line, ...]
    variant: _Line
    schedule: Knobs
    reason: _Line | None
    extends: bool = False


def export_choices(cache: Cache, path: Path) -> int:
    """Write the choices of a cache to a file and return their number.

    Raises :class:`~cpembed.errors.CpembedError` if the file cannot be written.
    """
    choices = {choice.key: choice for choice in (*read_choices(cache), *_searched(cache))}
    lines = [msgspec.json.encode(choices[key]) + b"\n" for key in sorted(choices)]
    write_whole(path, b"".join(lines))
    return len(lines)


def _searched(cache: Cache) -> Iterator[Choice]:
    """Yield the choices that searches of this user made."""
    folder = SealedFolder(cache.folder)
    for path in sorted(cache.folder.iterdir()) if cache.folder and cache.folder.is_dir() else ():
        if len(path.name) != hashlib.sha256().digest_size * 2:
            continue
        cached = cache.get(CachedKernel, path.name) if folder.get(path.name) else None
        kernel = None if cached is None else cached.kernel
        if kernel is None or kernel.spec is None or not isinstance(kernel.schedule, Knobs):
            continue
        yield Choice(
            key=path.name,
            target=kernel.spec.name,
            embedding=kernel.candidate.embedding.to_json(),
            in_place=kernel.candidate.program.in_place,
            variant=kernel.candidate.variant,
            schedule=kernel.schedule,
            reason=kernel.reason,
            extends=kernel.extended is not None,
        )


def import_choices(cache: Cache, path: Path) -> int:
    """Add the choices in a file to a cache and return their number.

    Raises
    ------
    CpembedError
        If the file is none of choices, or the cache has no folder that can be written.
    """
    if cache.folder is None:
        raise CpembedError("nothing is cached: CPEMBED_NETWORK_CACHE is empty")
    try:
        content = read_regular(path, LARGEST_STORE)
    except OSError as error:
        raise CpembedError(f"{path} cannot be read: {error.strerror}") from None
    lines = [line for line in content.split(b"\n") if line]
    for number, line in enumerate(lines, 1):
        try:
            decoded(line, Choice)
        except DamagedRowError as error:
            raise CpembedError(
                f"{path}: line {number}: {error}; `cpembed cache export` writes such files"
            ) from None
    try:
        cache.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CpembedError(f"{cache.folder} cannot be written: {error.strerror}") from None
    name = hashlib.sha256(content).hexdigest()[:16]
    write_whole(cache.folder / _PATTERN.replace("*", name), content)
    return len(lines)


def read_choices(cache: Cache) -> list[Choice]:
    """Return the choices that were imported to a cache, with a warning about damaged ones."""
    choices: list[Choice] = []
    for path in sorted(cache.folder.glob(_PATTERN)) if cache.folder else ():
        try:
            lines = read_regular(path, LARGEST_STORE).split(b"\n")
        except OSError:
            continue
        rows = [(number, line) for number, line in enumerate(lines, 1) if line]
        choices += decoded_rows(path, rows, Choice)
    return choices


def proven_kernel(
    choice: Choice,
    units: Units,
    workload: Computation,
    epilogue: Epilogue | None,
    in_place: tuple[str, ...],
) -> ProductKernel | None:
    """Return the kernel of a choice, derived, proven and estimated; None if it does not fit.

    Parameters
    ----------
    choice : Choice
        Choice, which anybody may have written.
    units : Units
        Targets that may compute the workload.
    workload : Computation
    epilogue : Epilogue or None
    in_place : tuple of str
        Operands that the kernel has to leave in place.
    """
    specs = [each for leader in units.leaders for each in with_alternatives(leader)]
    spec = next((spec for spec in specs if spec.name == choice.target), None)
    multiplied = with_words(workload) if choice.extends else workload
    if spec is None or multiplied is None:
        return None
    target = open_target(spec)
    try:
        embedding = Embedding.from_json(choice.embedding)
        candidate = derive_candidate(
            multiplied, spec.instruction, embedding, in_place=choice.in_place
        )
        require(candidate.program)
        scored = target.space(target.lower(candidate.program, epilogue)).scored(choice.schedule)
        fits = all(candidate.program.operand(name).is_identity for name in in_place)
    except (
        CpembedError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError
    ):  # fmt: skip
        return None
    if target.missing() or not fits or not math.isfinite(scored.cost):
        return None
    cost = overheads(candidate.program)
    added_us = extension_us(spec, workload, thread_count()) if choice.extends else 0.0
    return ProductKernel(
        spec=spec,
        candidate=replace(candidate, variant=choice.variant),
        schedule=choice.schedule,
        epilogue=epilogue,
        cost_us=scored.cost + added_us,
        utilisation=cost.occupancy,
        moved_bytes=cost.packing_bytes,
        reason=choice.reason,
        extended=workload.inputs[0].dtype if choice.extends else None,
    )
