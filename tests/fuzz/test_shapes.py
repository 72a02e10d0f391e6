"""Random expressions, of shapes that are easily forgotten, through every command that takes one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.targets.x86.features import ASSUME_VARIABLE
from tests.cli.calling import Caller
from tests.fuzz.commands import run_all

pytestmark = pytest.mark.slow

SECONDS = 5
EXECUTED = ("avx2_int8", "avx2_int7", "avx2_f32", "avx2_f32_dot", "avx2_f32_lanes", "avx2_lanes")
SOLVED = (
    "avx512_vnni",
    "avx512_vnni_dot",
    "avx512_f32",
    "amx_int8",
    "vta_1x16x16",
    "wmma_f16",
    "mma_s8",
    "complex_mac",
)
ROWS = ("dot", "gemm_16x16x16", "pointwise_conv", "pre_add_dot", "requantize", "axpy", "gemv")
MODELLED = ("avx512_vnni", "avx512_vnni_dot", "avx512_f32", "avx512_sad", "amx_int8", "avx_vnni")


def extent(rng: random.Random) -> int:
    """Tiny, odd, and of the size of an instruction."""
    return rng.choice([1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33])


def expression(rng: random.Random) -> list[str]:
    """One statement or several over a few axes, with windows, one-point axes and groups."""
    sizes = {name: extent(rng) for name in "ijzy"}
    spatial, summed = [*rng.sample("ij", rng.randint(1, 2))], [*rng.sample("zy", rng.randint(0, 2))]
    names = [*spatial, *summed]

    def index() -> str:
        """The indices of a factor: axes alone, windows, strides, constants."""
        chosen = rng.sample(names, rng.randint(1, len(names)))
        parts: list[str] = []
        while chosen:
            part = chosen.pop()
            if chosen and rng.random() < 0.4:
                step, dilation = rng.choice(["", "2*", "3*"]), rng.choice(["", "", "2*"])
                part = f"{step}{part}+{dilation}{chosen.pop()}"
            parts.append(part)
        if rng.random() < 0.1:
            parts.append("0")
        return ",".join(parts)

    kind = rng.random()
    out = ",".join(spatial)
    if kind < 0.65:
        statement = (
            f"O[{out}] {'+=' if summed or rng.random() < 0.5 else '='} A[{index()}] * B[{index()}]"
        )
    elif kind < 0.8:
        statement = f"O[{out}] {rng.choice(['+=', 'max=', '='])} A[{','.join(names)}]"
        if "=" in statement.split()[1] and statement.split()[1] == "=" and summed:
            statement = statement.replace(" = ", " += ")
    elif kind < 0.9:
        statement = f"O[{out}] += (A[{index()}] + C[{index()}]) * B[{index()}]"
    else:
        a, b = ",".join(names), ",".join(summed or spatial)
        statement = (
            f"R[{out},0] += A[{a},0]*B[{b},0] - A[{a},1]*B[{b},1]; "
            f"R[{out},1] += A[{a},0]*B[{b},1] + A[{a},1]*B[{b},0]"
        )
    used = [name for name in names if name in statement.replace("max", "")]
    return [statement, *(f"{name}={sizes[name]}" for name in used)]


def named(rng: random.Random) -> list[str]:
    """A shipped operator at such sizes."""
    e = lambda: extent(rng)  # noqa: E731
    window = f"h={e() + 3} w={e() + 3} r={rng.randint(1, 4)} s={rng.randint(1, 4)}"
    pad = rng.choice(["", " pad=1", " stride=2", " pad=1 stride=2"])
    words = rng.choice(
        [
            f"gemm m={e()} n={e()} k={e()}",
            f"depthwise n=1 c={e()} {window}{pad}",
            f"conv2d n=1 c={e()} k={e()} {window}{pad}",
            f"conv2d n=1 c={e()} k={e()} {window}{pad} groups={rng.choice([1, 2, 3, 8])}",
            f"conv2d n=1 c={e()} k={e()} {window}{pad} layout=NHWC",
        ]
    )
    return words.split()


def cases(rng: random.Random, count: int, folder: Path) -> Iterator[list[str]]:
    for number in range(count):
        words = expression(rng) if rng.random() < 0.7 else named(rng)
        executes = rng.random() < 0.5
        target = rng.choice(EXECUTED if executes else SOLVED + ROWS)
        commands = [["solve"], ["explain"], ["explain", "--chosen"]]
        if executes or target in ("vta_1x16x16", "complex_mac", *ROWS):
            commands += [["run"], ["build", "-o", str(folder / f"built{number}")]]
        command = rng.choice(commands)
        yield [*command, *words, "--target", target, *options(rng, command)]


def options(rng: random.Random, command: list[str]) -> list[str]:
    found = ["--timeout", str(SECONDS)]
    if rng.random() < 0.2:
        found += ["--constraints", rng.choice(["complete", "relaxed", "fused", "strict"])]
    if command[0] in ("solve", "explain") and rng.random() < 0.3:
        found.append("--json")
    return found


def test_every_expression_is_answered_or_refused_in_one_line(tmp_path: Path) -> None:
    found = run_all(list(cases(random.Random(34), 500, tmp_path)), tmp_path)
    wrong = [f"{o.arguments}: {fault}" for o in found if (fault := o.fault(60)) is not None]
    assert not wrong, "\n".join(wrong[:10])


def test_models_choose_for_processors_that_are_not_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``explain --chosen`` compares candidates without executing any."""
    features = {name for target in MODELLED for name in hardware_spec(target).cpu_features}
    monkeypatch.setenv(ASSUME_VARIABLE, ",".join(features))
    cpembed, rng = Caller(capsys), random.Random(35)
    for _ in range(150):
        words = expression(rng) if rng.random() < 0.7 else named(rng)
        command = ["explain", "--chosen", *words, "--target", rng.choice(MODELLED)]
        called = cpembed(*command, *options(rng, command))
        assert called.code in (0, 2, 3, 4, 5), (command, called)
        assert "Traceback" not in called.err, (command, called)
