"""Whatever words a person types: a result, or one line that says what is wrong, in time."""

# ruff: noqa: RUF001 - letters that look like others are part of it
from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cpembed.hw.loader import available_targets
from cpembed.resources import constraint_files
from cpembed.workloads.family import Parameter, ParameterKind
from cpembed.workloads.operators import OPERATORS
from cpembed.workloads.suites import SUITES
from tests.fuzz.commands import run_all

SEED, COUNT, PARTS = 20261124, 3500, 7
TIMEOUT = 1

SMALL = (1, 1, 2, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 64)
LARGE = (100, 128, 224, 512, 1000, 1021, 4096, 65_536, 10**6, 2**31 - 1, 2**31, 2**40)
ABSURD = (
    *(
        "0",
        "-1",
        "",
        "x",
        "1.5",
        "1e3",
        "--",
        "0x10",
        "1_0",
        "nan",
        "None",
        "[1]",
        "1,2",
        "1,2,3,4",
    ),
    *("3,", "٣", "²", "é", "𝟘", "9" * 20, "1" + "0" * 30, "1" * 5000),
    *(str(2**63 - 1), str(2**63)),
)
TYPES = ("int8", "uint8", "int16", "int32", "int64", "float32", "bfloat16", "float16", "int9")
NAMES = ("i", "j", "k", "x", "y", "t", "r", "s")
PIECES = (
    *("", "[", "]", "(", ")", "*", "+=", "=", ";", " ", ">>", "%", '"', "\n", "\x00", "\u202e"),
    *("é", "𝛼", "9" * 40, "(" * 200, "A" * 3000),
)
EXTRAS = (
    *((),) * 6,
    *(("--json",), ("--pareto",), ("--all",), ("--top", "40")),
    *(("--search", "scalar"), ("--search", "portfolio")),
    *(("--weights", "1,0"), ("--weights", "0,0")),
)


def size(rng: random.Random) -> str:
    """Mostly a small one: a case should be quick."""
    chance = rng.random()
    if chance < 0.75:
        return str(rng.choice(SMALL))
    return str(rng.choice(LARGE)) if chance < 0.92 else rng.choice(ABSURD)


def several(rng: random.Random, choices: tuple[object, ...], counts: tuple[int, ...]) -> str:
    return ",".join(str(rng.choice(choices)) for _ in range(rng.choice(counts)))


def value(rng: random.Random, parameter: Parameter) -> str:
    if rng.random() < 0.04:
        return rng.choice(ABSURD)
    match parameter.kind:
        case ParameterKind.SIZE:
            return size(rng)
        case ParameterKind.PER_AXIS:
            return several(rng, (0, 1, 1, 2, 3, 5), (1, 1, 2, 3))
        case ParameterKind.FLAG:
            return rng.choice(("0", "1", "1", "2", "yes"))
        case ParameterKind.CHOICE:
            return rng.choice((*parameter.choices, "NCHW0c", f"NCHW{'9' * 20}c", "nchw"))
        case ParameterKind.DTYPES:
            return several(rng, TYPES, (1, 1, 2, 3, 4))


def operator(rng: random.Random) -> list[str]:
    family = rng.choice(list(OPERATORS.values()))
    words = [family.name]
    words += [f"{p.name}={value(rng, p)}" for p in family.required if rng.random() < 0.99]
    words += [f"{p.name}={value(rng, p)}" for p in family.optional if rng.random() < 0.15]
    if rng.random() < 0.03:
        words.append(rng.choice(words))
    return words


def index(rng: random.Random, axes: list[str]) -> str:
    factors = (*("",) * 4, "2*", "3*", "1000000007*", "-", "0*", "(1+1)*")
    chosen = rng.sample(axes, min(len(axes), rng.choice((1, 1, 1, 1, 2, 3))))
    text = "+".join(rng.choice(factors) + axis for axis in chosen)
    return text + rng.choice((*("",) * 6, "+1", "+7", "-1", "+" + "9" * 17, "*2"))


def access(rng: random.Random, name: str, axes: list[str]) -> str:
    count = rng.choice((0, 1, 1, 2, 2, 2, 3, 5))
    return f"{name}[{','.join(index(rng, axes) for _ in range(count))}]"


class Tree:
    """Random values over some axes."""

    def __init__(self, rng: random.Random, axes: list[str]) -> None:
        self.rng, self.axes = rng, axes
        self.reads: dict[str, str] = {}

    def read(self) -> str:
        name = self.rng.choice("ABDI")
        # Mostly the same access again: another number of indices is refused.
        if name not in self.reads or self.rng.random() < 0.2:
            self.reads[name] = access(self.rng, name, self.axes)
        return self.reads[name]

    def text(self, depth: int) -> str:
        chance = self.rng.random()
        if depth == 0 or chance < 0.3:
            return self.read()
        first = self.text(depth - 1)
        if chance < 0.8:
            return f"{first}{self.rng.choice('*****+-')}{self.text(depth - 1)}"
        if chance < 0.9:
            return f"{self.rng.choice(('max', 'min'))}({first}, {self.text(depth - 1)})"
        forms = ("({})", "abs({})", "-{}", "cast({}, int32)", "3*{}", "({} >> 2)")
        return self.rng.choice(forms).format(first)


def expression(rng: random.Random) -> list[str]:
    axes = list(NAMES[: rng.choice((1, 2, 2, 3, 3, 4, 6, 8))])
    if rng.random() < 0.04:
        axes = [f"{rng.choice(NAMES)}{n}" for n in range(rng.choice((12, 20, 40, 200)))]
    tree = Tree(rng, axes)
    body = "; ".join(
        f"{access(rng, 'C', axes)} {rng.choice(('+=', '+=', '+=', '+=', '=', 'max='))} "
        f"{tree.text(rng.choice((1, 1, 2, 3)))}"
        for _ in range(rng.choice((1, 1, 1, 1, 1, 2)))
    )
    words = [body, *(f"{axis}={size(rng)}" for axis in axes if axis in body)]
    if rng.random() < 0.1:
        words.append(f"dtype={several(rng, TYPES, (1, 2, 3))}")
    return words


def product(rng: random.Random) -> list[str]:
    """What often fits an instruction: products of two, with strides and windows."""
    inner = rng.sample(NAMES, rng.choice((1, 2, 3, 4)))
    outer = [name for name in NAMES if name not in inner][: rng.choice((1, 2, 3))]

    def some(axes: list[str]) -> str:
        found = [axis if rng.random() < 0.8 else f"{rng.choice((2, 3, 5))}*{axis}" for axis in axes]
        if len(found) > 1 and rng.random() < 0.3:
            found[:2] = [f"{found[0]}+{found[1]}"]
        return ",".join(found)

    half = rng.randrange(len(outer) + 1)
    left, right = some([*outer[:half], *inner]), some([*outer[half:], *inner])
    store = ",".join(outer) if rng.random() < 0.8 else some(outer)
    values = (
        *("A[{a}]*B[{b}]",) * 6,
        *("(A[{a}]+D[{a}])*B[{b}]", "abs(A[{a}]-B[{b}])", "(A[{a}]+B[{b}])*B[{b}]"),
        "A[{a}]*A[{a}]",
    )
    body = f"C[{store}] += {rng.choice(values).format(a=left, b=right)}"
    return [body, *(f"{axis}={size(rng)}" for axis in (*outer, *inner))]


def malformed(rng: random.Random) -> list[str]:
    """A workload with characters taken out, put in or exchanged."""
    words = rng.choice((operator, expression, product))(rng)
    place = rng.randrange(len(words))
    letters = list(words[place])
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(letters) + 1)
        letters[at : at + rng.choice((0, 1))] = [rng.choice(PIECES)]
    words[place] = "".join(letters)
    return words


def layer(rng: random.Random) -> list[str]:
    numbers = (0, 1, 3, 7, 13, 50, 107, 124, 10**6, "-1", "x", "", "1:2", "9" * 40)
    words = [f"{rng.choice((*SUITES, 'none'))}:{rng.choice(numbers)}"]
    if rng.random() < 0.3:
        words.append("layout=" + rng.choice(("NHWC", "NCHW16c", "NCHW4c", "HWCN")))
    return words


def absurd(rng: random.Random) -> list[str]:
    """What nobody means."""
    many = [f"i{n}" for n in range(rng.choice((30, 300, 1500)))]
    listed, ones, twos = ",".join(many), [f"{a}=1" for a in many], [f"{a}=2" for a in many]
    deep = rng.choice((10, 63, 64, 65, 2000))
    name = rng.choice(("A" * 5000, "ключ", "a-b", "__", "A" * 60))
    far = rng.choice(("999999999999999999*i", "1000000000000*i+k", f"{2**62}*i"))
    cases = (
        [f"C[{listed}] += A[{listed}]", *ones],
        [f"C[i] += A[{'+'.join(many)},i]", "i=4", *twos],
        [f"C[i] += A[{listed}]*B[i]", "i=16", *twos],
        [f"C[i] += {'(' * deep}A[i]{')' * deep}", "i=4"],
        [f"C[i] += {'-' * deep}A[i]", "i=4"],
        [f"C[i] += A[{'(' * deep}i{')' * deep}]", "i=4"],
        ["C[i] += " + "+".join(["A[i]"] * deep), "i=4"],
        ["C[i] += " + "*".join(f"A{n}[i]" for n in range(deep)), "i=4"],
        ["; ".join(f"C[{n}] += A[i,{n}]" for n in range(rng.choice((3, 8, 12)))), "i=16"],
        [f"{name}[i] += A[i,k]*B[k]", "i=16", "k=16"],
        [f"C[{name}] += A[{name},k]*B[k]", f"{name}=16", "k=16"],
        [name, "k=3"],
        [f"C[i] += A[{far},k]*B[k]", "i=16", "k=16"],
        ["C[i] += A[i,k]*B[k]*" + "9" * rng.choice((17, 18, 19, 400)), "i=16", "k=16"],
        ["C[i] += A[i,k]*B[k] >> 1000", "i=16", "k=16"],
        ["gemm", f"m={10 ** rng.choice((3, 9, 18))}", f"n={10 ** rng.choice((6, 15))}", "k=1021"],
        ["dot", "k=1" + "0" * rng.choice((18, 19, 30, 5000))],
    )
    return rng.choice(cases)


KINDS: tuple[Callable[[random.Random], list[str]], ...] = (
    *(operator,) * 5,
    *(expression,) * 4,
    *(product,) * 5,
    *(malformed,) * 3,
    layer,
    absurd,
)


def cases() -> list[list[str]]:
    rng = random.Random(SEED)
    targets, sets = available_targets(), sorted(constraint_files())
    found: list[list[str]] = []
    for _ in range(COUNT):
        command = rng.choice((*("solve",) * 7, "explain", "explain"))
        arguments = [command, *rng.choice(KINDS)(rng), "--timeout", str(TIMEOUT)]
        arguments += ["--target", rng.choice(targets)]
        if rng.random() < 0.6:
            arguments += ["--constraints", rng.choice(sets)]
        if command == "solve":
            arguments += rng.choice(EXTRAS)
        found.append(arguments)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_words_end_with_a_result_or_one_line_in_time(part: int, tmp_path: Path) -> None:
    asked = cases()[part::PARTS]
    outcomes = run_all(asked, tmp_path)
    faults = [(o.arguments, fault) for o in outcomes if (fault := o.fault(TIMEOUT))]
    assert not faults, "\n".join(f"{arguments}: {fault}" for arguments, fault in faults[:20])
    assert [o.arguments for o in outcomes] == asked
    # Not all are refused at once: whatever is searched is part of it.
    assert {2, 3, 0} <= {o.code for o in outcomes}
