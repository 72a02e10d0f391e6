"""Random errors in the statements of generated kernels, and in the PTX that they call."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A text with one error: its kind, the line before and after it, and the number of the line."""

    kind: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.kind} at line {self.line}: {self.before} -> {self.after or 'nothing'}"


Edit = Callable[[random.Random, str], str | None]
"""Change of a line; None if there is nothing to change."""

_NUMBER = re.compile(r"(?<![\w.])(\d+)(?![\w.]|\]\s*;$)")
_SCALAR = re.compile(r"\b([a-z]\w*?_ptr(?:_\d+)?)\[0\]")
_OPERATORS = {
    "<": ("<=", ">"), "<=": ("<", ">"), "==": ("!=", ">="), "&&": ("||",), "||": ("&&",),
    "+": ("-",), "*": ("+",), "/": ("%",), "%": ("/",), ">>": ("<<",), "^": ("|", "+"),
    "&": ("|",),
}  # fmt: skip
_OPERATOR = re.compile(r" (<=|>=|==|&&|\|\||>>|<<|[-<>+*/%&^]) ")
_DECLARATION = re.compile(r"(alignas\(\d+\) )?(const )?[\w:]+\*? ?\w+(\[\d+\])*;|extern |using |#")


def _is_statement(line: str) -> bool:
    code = line.strip()
    return code.endswith(";") and not _DECLARATION.match(code) and not code.startswith("return")


def _number(rng: random.Random, line: str) -> str | None:
    matches = [m for m in _NUMBER.finditer(line) if not line[: m.start()].endswith("_ptr[")]
    if not matches:
        return None
    match = rng.choice(matches)
    value = int(match[1])
    other = rng.choice([n for n in (value + 1, value - 1, 2 * value, 0) if n != value])
    return f"{line[: match.start()]}{other}{line[match.end() :]}"


def _operator(rng: random.Random, line: str) -> str | None:
    matches = [m for m in _OPERATOR.finditer(line) if m[1] in _OPERATORS]
    if not matches:
        return None
    match = rng.choice(matches)
    return f"{line[: match.start(1)]}{rng.choice(_OPERATORS[match[1]])}{line[match.end(1) :]}"


def _condition(rng: random.Random, line: str) -> str | None:
    match = re.match(r"(\s*(?:\} else )?if \()(.*)(\) \{)$", line)
    if match is None:
        return None
    condition = rng.choice((f"!({match[2]})", "true", "false"))
    return f"{match[1]}{condition}{match[3]}"


def _arguments(rng: random.Random, line: str) -> str | None:
    match = re.match(r"(\s*\w+\()(.*)(\);)$", line)
    parts = split_arguments(match[2]) if match else []
    if match is None or len(parts) < 2:
        return None
    first, second = sorted(rng.sample(range(len(parts)), 2))
    parts[first], parts[second] = parts[second], parts[first]
    return f"{match[1]}{', '.join(parts)}{match[3]}"


def _term(rng: random.Random, line: str) -> str | None:
    """Drop a term of a sum, or a factor."""
    matches = list(re.finditer(r" [+*^] (\d+|\w+\[\d+\]|\(\w+\[\d+\] \* \d+\))", line))
    if not matches:
        return None
    match = rng.choice(matches)
    return line[: match.start()] + line[match.end() :]


def _thread(rng: random.Random, line: str) -> str | None:
    place = r"\(\(int\)threadIdx\.x\)|\b(?:lane|warp)_ptr(?:_\d+)?\[0\](?! =)"
    matches = list(re.finditer(place, line))
    if not matches:
        return None
    match = rng.choice(matches)
    change = rng.choice((f"({match[0]} ^ 1)", f"({match[0]} + 1)", f"({match[0]} ^ 16)"))
    return line[: match.start()] + change + line[match.end() :]


def split_arguments(text: str) -> list[str]:
    """Split the arguments of a call at the commas outside of parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


LINE_KINDS: dict[str, Edit] = {
    "another number": _number,
    "another operator": _operator,
    "another condition": _condition,
    "arguments exchanged": _arguments,
    "a term is missing": _term,
    "another lane or warp": _thread,
}

_CALL = re.compile(r"\s*(cpembed_|tvm_builtin_|__syncthreads|__threadfence)\w*\(")


class KernelText:
    """The kernels of a text, as lines that errors are put into."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.bodies = list[int]()
        self.functions = list[int]()
        inside = ""
        for number, line in enumerate(self.lines):
            if "__global__" in line and line.endswith("{"):
                inside = "kernel"
            elif "__device__" in line and line.endswith("{"):
                inside = "function"
            elif line == "}":
                inside = ""
            elif inside == "kernel":
                self.bodies.append(number)
            elif inside == "function" and "asm volatile" in line:
                self.functions.append(number)
        templates = dict[str, list[int]]()
        for number in self.bodies:
            templates.setdefault(re.sub(r"\d+", "", self.lines[number]), []).append(number)
        self.templates = list(templates.values())

    def mutant(self, rng: random.Random) -> Mutant | None:
        """Return an error at random; None where the line that was drawn cannot have it."""
        kind = rng.choice(
            ("deleted", "deleted call", "doubled call", "moved", "another variable",
             *LINE_KINDS, "ptx", "ptx")
        )  # fmt: skip
        if kind == "ptx":
            return self._ptx(rng)
        # Lines that were unrolled differ in their numbers only, and count as one.
        number = rng.choice(rng.choice(self.templates))
        line = self.lines[number]
        if kind in LINE_KINDS:
            changed = LINE_KINDS[kind](rng, line) if not _DECLARATION.match(line.strip()) else None
            return self.made(kind, number, changed)
        if not _is_statement(line) or (kind.endswith("call") and not _CALL.match(line)):
            return None
        if kind.startswith("deleted"):
            return self.made(kind, number, ";")
        if kind == "doubled call":
            return self.made(kind, number, f"{line} {line.strip()}")
        if kind == "moved":
            return self.moved(number)
        return self.made(kind, number, self._variable(rng, line))

    def made(self, kind: str, number: int, changed: str | None) -> Mutant | None:
        before = self.lines[number]
        if changed is None or changed == before:
            return None
        lines = [*self.lines[:number], changed, *self.lines[number + 1 :]]
        return Mutant(kind, number + 1, before.strip(), changed.strip(), "\n".join(lines))

    def moved(self, number: int) -> Mutant | None:
        """Exchange a statement with the next one of its block."""
        line, after = self.lines[number], self.lines[number + 1]
        indent = len(line) - len(line.lstrip())
        if not _is_statement(after) or len(after) - len(after.lstrip()) != indent:
            return None
        lines = [*self.lines[:number], after, line, *self.lines[number + 2 :]]
        return Mutant("moved", number + 1, line.strip(), after.strip(), "\n".join(lines))

    def _variable(self, rng: random.Random, line: str) -> str | None:
        start = line.index(" = ") if " = " in line else 0
        uses = [m for m in _SCALAR.finditer(line) if m.start() >= start]
        names = {
            m[1]
            for row in self.bodies
            if (m := re.match(r"\s*alignas\(\d+\) int (\w+)\[1\];", self.lines[row]))
        }
        uses = [m for m in uses if m[1] in names]
        others = sorted(names - {m[1] for m in uses})
        if not uses or not others:
            return None
        match = rng.choice(uses)
        return f"{line[: match.start(1)]}{rng.choice(others)}{line[match.end(1) :]}"

    def _ptx(self, rng: random.Random) -> Mutant | None:
        if not self.functions:
            return None
        number = rng.choice(self.functions)
        name, edit = rng.choice(list(PTX_KINDS.items()))
        match = re.search(r'asm volatile\("((?:[^"\\]|\\.)*)"', self.lines[number])
        changed = edit(rng, match[1]) if match else None
        if match is None or changed is None:
            return None
        line = self.lines[number]
        return self.made(name, number, line[: match.start(1)] + changed + line[match.end(1) :])


def _ptx_dropped(rng: random.Random, text: str) -> str | None:
    parts = re.findall(r"[^;]*;", text)
    usable = [n for n, part in enumerate(parts) if ".reg" not in part]
    if not usable:
        return None
    dropped = rng.choice(usable)
    kept = re.sub(r"^(\s*\{)?.*", r"\1", parts[dropped])
    return text.replace(parts[dropped], kept, 1)


def _ptx_registers(rng: random.Random, text: str) -> str | None:
    places = list(re.finditer(r"%\d+", text))
    if len({m[0] for m in places}) < 2:
        return None
    first, second = sorted(rng.sample(places, 2), key=lambda m: m.start())
    middle = text[first.end() : second.start()]
    return text[: first.start()] + second[0] + middle + first[0] + text[second.end() :]


def _ptx_number(rng: random.Random, text: str) -> str | None:
    places = list(re.finditer(r"(?<=[ ,])(\d+)(?=[,;])", text))
    if not places:
        return None
    match = rng.choice(places)
    value = int(match[1])
    other = rng.choice([n for n in (value + 1, abs(value - 1), 2 * value) if n != value])
    return f"{text[: match.start()]}{other}{text[match.end() :]}"


_MODIFIERS = (
    (r"\.release", ".relaxed"), (r"\.acquire", ".relaxed"), (r"\.acq_rel", ".relaxed"),
    (r"\.read ", " "), (r"\.shared::cluster", ".shared::cta"), (r"\.multicast::cluster", ""),
    (r"\.trans\b", ""), (r"setp\.ne", "setp.eq"), ("@p ", "@!p "), ("@p ", ""), (r"\.parity", ""),
    (r"\.gpu", ".cta"), (r"\.tile", ".im2col"), (r"\.im2col", ".tile"), (r"\.inc\b", ".dec"),
    (r"\.v4", ".v2"), (r"\.expect_tx", ""), (r"fence\.proxy\.async", "fence.acq_rel.cta"),
    (r"\.row\.col", ".row.row"), ("wait_group", "wait_all"), (r"\.f16\.f16", ".bf16.bf16"),
    ("n64k16", "n32k16"), (r"\.shared::cta", ".shared::cluster"),
)  # fmt: skip


def _ptx_modifier(rng: random.Random, text: str) -> str | None:
    usable = [pair for pair in _MODIFIERS if re.search(pair[0], text)]
    return re.sub(*rng.choice(usable), text, count=1) if usable else None


PTX_KINDS: dict[str, Edit] = {
    "an instruction is missing": _ptx_dropped,
    "registers exchanged": _ptx_registers,
    "another immediate": _ptx_number,
    "another modifier": _ptx_modifier,
}


def mutants(source: str, seed: int) -> Iterator[Mutant]:
    """Yield different errors at random, without an end."""
    text, rng, texts = KernelText(source), random.Random(seed), {source}
    while True:
        mutant = text.mutant(rng)
        if mutant is not None and mutant.source not in texts:
            texts.add(mutant.source)
            yield mutant


_SYNCHRONISES = re.compile(
    r"\s*(cpembed_\w*(wait|commit|fence|arrive|expect|barrier|mbarrier|registers|count|meet)\w*"
    r"|tvm_builtin_cuda_\w*sync\w*|__syncthreads|__syncwarp|__threadfence)\("
)


def synchronisation_mutants(source: str) -> Iterator[Mutant]:
    """Yield each error in a statement that orders others, and in the PTX that they call.

    Of the statements that loops were unrolled into, the first and the last have errors.
    """
    text = KernelText(source)
    for numbers in text.templates:
        for number in sorted({numbers[0], numbers[-1]}):
            line = text.lines[number]
            if not _SYNCHRONISES.match(line):
                continue
            edits = {
                "deleted call": ";",
                "doubled call": f"{line} {line.strip()}",
                "a call of the first lane": f"if (threadIdx.x % 32 == 0) {line.strip()}",
                "a call of the first warp": f"if (threadIdx.x < 32) {line.strip()}",
            }
            made = [text.made(kind, number, changed) for kind, changed in edits.items()]
            made += [text.moved(number), text.moved(number - 1)]
            yield from filter(None, made)
    for number in text.functions:
        line = text.lines[number]
        match = re.search(r'asm volatile\("((?:[^"\\]|\\.)*)"', line)
        if match is None:
            continue
        changes = {re.sub(*pair, match[1], count=1) for pair in _MODIFIERS}
        changes |= {
            match[1].replace(part, re.sub(r"^(\s*\{)?.*", r"\1", part), 1)
            for part in re.findall(r"[^;]*;", match[1])
            if ".reg" not in part
        }
        for changed in sorted(changes - {match[1]}):
            made_here = text.made(
                "ptx", number, line[: match.start(1)] + changed + line[match.end(1) :]
            )
            if made_here is not None:
                yield made_here
