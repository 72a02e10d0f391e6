"""Damaged files: read, or refused in one line, whatever was done to them."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from cpembed.errors import ModelError
from cpembed.frontends import load_model
from tests.unit.frontends.onnx.referee import single
from tests.unit.frontends.onnx.test_operators import CASES

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@cache
def originals() -> list[bytes]:
    """Files that are mostly structure: architectures without weights, models of one operator."""
    found = [path.read_bytes() for path in sorted(LIGHT.glob("light_s*.onnx"))]
    models = (
        single(
            case.operator, case.inputs, case.constants, outputs=case.outputs, version=case.version,
            domain=case.domain, **case.attributes,
        )
        for case in CASES
    )  # fmt: skip
    return found + [model.SerializeToString() for model in models]


def damaged(original: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return original[: chance.randrange(len(original))]
    changed = bytearray(original)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        place = chance.randrange(len(changed))
        flipped = changed[place] ^ 1 << chance.randrange(8)
        changed[place] = chance.choice([flipped, 0, 1, 127, 128, 255])
    return bytes(changed)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.quick(1)
def test_a_damaged_file_is_read_or_refused_in_one_line(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = tmp_path / "damaged.onnx"
    messages: list[str] = []
    for _ in range(80):
        path.write_bytes(damaged(chance.choice(originals()), chance))
        try:
            load_model(path)
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > 30
    assert not any("\n" in message for message in messages)
