"""Variables that nothing reads: random kernels compute the same without them."""

from __future__ import annotations

import random
import re

from cpembed.targets.cuda.unread import without_unread

NAMES = [f"v{number}" for number in range(8)]


def random_kernel(rng: random.Random) -> str:
    """Straight-line text as TVM writes it: arrays and scalars, some in conditions."""
    arrays = {name for name in NAMES if rng.random() < 0.7}
    places = [f"{name}[0]" if name in arrays else name for name in NAMES]
    lines = ["__global__ void kernel(int* out, int* data) {"]
    lines += [
        f"  alignas(64) int {name}[1];" if name in arrays else f"  int {name};" for name in NAMES
    ]
    lines += [f"  {place} = {number};" for number, place in enumerate(places)]
    for _ in range(rng.randint(4, 16)):
        first, second = (rng.choice([*places, "data[1]", "7"]) for _ in range(2))
        store = f"{rng.choice([*places, 'out[0]', 'out[1]'])} = ({first} + ({second} * 3));"
        if rng.random() < 0.2:
            lines += [f"  if ({rng.choice(places)} < 9) {{", f"    {store}", "  }"]
        elif rng.random() < 0.1:
            lines.append(f"  cpembed_use((&({rng.choice(places)})), {first});")
        else:
            lines.append(f"  {store}")
    return "\n".join([*lines, "}"]) + "\n"


def executed(text: str) -> tuple[list[int], list[int]]:
    """Results of a kernel, and what it passed to functions."""
    scope: dict[str, object] = {name: 0 for name in NAMES if re.search(rf"int {name};", text)}
    scope |= {name: [0] for name in NAMES if f"int {name}[1]" in text}
    out, used = [0, 0], list[int]()

    def use(*values: int) -> None:
        used.extend(values)

    lines: list[str] = []
    for line in (each.removeprefix("  ") for each in text.splitlines()[1:-1]):
        if re.fullmatch(r"(alignas\(64\) )?int \w+(\[1\])?;", line):
            continue
        call = re.sub(r"cpembed_use\(\(&\((.*?)\)\), (.*)\);", r"use(\1, \2)", line)
        python = call.replace(") {", "):").replace(";", "")
        lines.append("  pass" if python == "}" else python)
    exec("\n".join(lines), {"out": out, "data": [5, 6], "use": use, **scope})
    return out, used


def unread(text: str) -> set[str]:
    """Variables that occur in no line but as what it stores into."""
    found: set[str] = set()
    for name in NAMES:
        uses = [line for line in text.splitlines() if re.search(rf"\b{name}\b", line)]
        reads = [
            line
            for line in uses
            if not re.fullmatch(rf"\s*(alignas\(64\) )?int {name}(\[1\])?;", line)
            and not re.match(rf"\s*{name}(\[0\])? = ", line)
        ]
        if uses and not reads:
            found.add(name)
    return found


def test_random_kernels_compute_the_same_without_what_is_not_read() -> None:
    rng, removed = random.Random(1), 0
    for _ in range(400):
        text = random_kernel(rng)
        clean = without_unread(text)
        assert executed(clean) == executed(text), text
        assert not unread(clean), clean
        removed += len(text.splitlines()) > len(clean.splitlines())
    assert removed > 100


def test_other_functions_and_other_kernels_keep_their_variables() -> None:
    helper = "static __device__ void helper() {\n  int a;\n  a = 1;\n}\n"
    first = "__global__ void first(int* o) {\n  int a;\n  a = 1;\n  o[0] = 2;\n}\n"
    second = "__global__ void second(int* o) {\n  int a;\n  a = 1;\n  o[0] = a;\n}\n"
    clean = without_unread(helper + first + "\n" + second)
    assert clean == helper + first.replace("  int a;\n  a = 1;\n", "") + "\n" + second


def test_what_functions_return_is_computed() -> None:
    text = "__global__ void f(int* o) {\n  int a;\n  a = cpembed_next(o);\n}\n"
    assert without_unread(text) == text
