"""Whatever a file says of a machine with scratchpads: it has programs, or one line says why not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.errors import CpembedError, InvariantError
from cpembed.hw.loader import load_hardware_spec
from cpembed.resources import hardware_spec_files
from cpembed.targets.scratchpad.boxes import lower
from cpembed.targets.scratchpad.emit import c_text
from cpembed.targets.scratchpad.machine import scratchpad_machine
from cpembed.targets.scratchpad.schedule import Plan, check, require_proven
from cpembed.targets.scratchpad.space import ScratchpadSpace
from tests.fuzz.test_specs import mutant

SEED, COUNT, PARTS = 20261126, 1200, 4
TARGETS = ("gemmini_16x16", "nvdla_small", "sw26010")
LAYERS = (
    "gemm m=20 n=32 k=40",
    "gemv m=32 k=48",
    "conv2d n=1 c=8 h=6 w=6 k=16 r=3 s=3 layout=NHWC",
    "conv2d n=1 c=16 h=6 w=5 k=8 r=3 s=3 stride=2 pad=1",
)
TIMEOUT = 2.0


def outcome(path: Path, words: str) -> str:
    """Return what is wrong with the file, or "program"; errors of other kinds are faults here."""
    try:
        spec = load_hardware_spec(path)
        machine = scratchpad_machine(spec)
        layer = workload(words, spec)
        result = solve(layer, spec, top=3, timeout=TIMEOUT)
        reasons = ["no embedding"]
        for each in result.embeddings:
            try:
                product = lower(each.candidate.program, machine)
                plan = check(Plan(product, ScratchpadSpace(product).best().schedule))
                require_proven(plan)
                c_text(plan)
            except InvariantError:
                raise
            except CpembedError as error:
                reasons.append(str(error))
                continue
            return "program"
    except InvariantError:
        raise
    except CpembedError as error:
        reasons = [str(error)]
    assert all("\n" not in reason and reason.strip() for reason in reasons)
    return reasons[-1]


def outcomes(folder: Path, numbers: range) -> list[str]:
    texts = {name: hardware_spec_files()[name].read_text(encoding="utf-8") for name in TARGETS}
    results: list[str] = []
    for number in numbers:
        rng = random.Random(SEED + number)
        name = rng.choice(TARGETS)
        path = folder / f"{name}_{number}.toml"
        path.write_bytes(mutant(rng, texts[name]))
        words = rng.choice(LAYERS)
        try:
            results.append(outcome(path, words))
        except Exception as error:
            error.add_note(f"{number}: {words}\n{path.read_bytes()!r}")
            raise
    return results


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_machine_has_programs_or_one_line(part: int, tmp_path: Path) -> None:
    results = outcomes(tmp_path, range(part, COUNT, PARTS))
    assert results.count("program") > len(results) // 20
    assert len(set(results)) > len(results) // 20
