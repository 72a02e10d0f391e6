"""Whatever is in a file of an instruction set: it is read, or one line says what is wrong."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.resources import accelerator_files
from tests.fuzz.test_specs import mutant

SEED = 20261126
SECONDS = 20.0
"""Maximum time of reading a file, on a machine that does other things too."""


def outcome(path: Path) -> str | None:
    """Read a file; return what is wrong with the answer, or None."""
    begun = time.process_time()
    try:
        load_instruction_set(path)
    except SpecError as error:
        text = str(error)
        if "\n" in text or not text.startswith(f"{path}: ") or len(text) > 20_000:
            return f"no line for people: {text[:200]!r}"
    except Exception as error:  # the point of the test: nothing else may come out
        return f"{type(error).__name__}: {error}"
    seconds = time.process_time() - begun
    return None if seconds < SECONDS else f"took {seconds:.0f} s"


def faults(seed: int, count: int, folder: Path) -> list[str]:
    rng = random.Random(seed)
    originals = [path.read_text(encoding="utf-8") for path in accelerator_files().values()]
    found: list[str] = []
    for number in range(count):
        path = folder / f"{number}.toml"
        path.write_bytes(mutant(rng, rng.choice(originals)))
        fault = outcome(path)
        if fault is None:
            path.unlink()
        else:
            found.append(f"{path}: {fault}")
    return found


def test_damaged_files_give_one_line(tmp_path: Path) -> None:
    assert not faults(SEED, 60, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_any_damaged_file_gives_one_line(part: int, tmp_path: Path) -> None:
    assert not faults(SEED + 1 + part, 1000, tmp_path)
