"""The rooms of the house: what belongs to one machine is said in ``cpembed/targets`` only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cpembed
from cpembed.resources import hardware_spec_files
from cpembed.targets.known import BUILT_IN

PACKAGE = Path(cpembed.__file__).parent

OPERATIONS = {"axpy", "dot", "gemv", "requantize"}
"""Virtual accelerators that are called what they compute, and what others call so too."""

TARGETS = frozenset(hardware_spec_files()) - OPERATIONS
"""Names of machines: stems of specifications."""

OPEN = {
    "base", "capabilities", "chains", "choice", "commands", "family", "known", "methods", "outputs",
    "portable", "processors", "registry", "tuner", "units", "verification",
}  # fmt: skip
"""Modules of ``cpembed.targets`` for those above it; its folders are machines."""

COMMON = {"scratchpad", "template"}
"""Targets that are called what many things are."""

PREFIXES = (
    "amx", "avx", "vnni", "vta", "neon", "sdot", "udot", "smmla", "wmma", "tdp", "vpdp", "vdpbf16",
    "vpmadd", "zmm", "ymm", "xmm", "sse4", "x86", "aarch64",
)  # fmt: skip
"""Words, or their beginnings, of instructions, features, registers and libraries of one machine."""

CLASSES = re.compile(r"(Vta|Cpu|X86|Arm|Amx|Avx|Cuda)[A-Z]\w*")
"""Classes of one target, or of one kind of target."""

_HOST = "what the processor that runs this reports is asked in its architecture's words"
_RELAX = "functions that compiled modules of relax look up by name"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("cli/__init__.py", "cpembed.targets.TARGET_COMMANDS"): "the table of targets' own commands",
    ("codegen/runtime.py", "is_x86"): _HOST,
    ("codegen/runtime.py", "aarch64"): _HOST,
    ("integrations/tvm/emission.py", "cpembed.targets.vta.host"): _RELAX,
}
"""(Module, word) -> why it may be there."""

EXCEPTED = {"codegen/host_cpu.py": _HOST}
"""Whole modules: the features of processors and their names in a library."""

_WORD = re.compile(r"[a-z][a-z0-9]*|[A-Z]+(?![a-z])[0-9]*|[A-Z][a-z0-9]*", re.ASCII)


def modules() -> list[Path]:
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if "targets" not in path.relative_to(PACKAGE).parts[:1]
    ]


def offences(source: str) -> Iterator[tuple[int, str]]:
    """Lines and words of a module that belong to one machine; docstrings, examples in help texts
    and comments may."""
    tree = ast.parse(source)
    docstrings = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if id(node) not in docstrings:
            for text in _said(node):
                yield from ((getattr(node, "lineno", 0), word) for word in _of_one_machine(text))


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Strings that stand alone: of modules, classes and functions, and below what they explain."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _said(node: ast.AST) -> Iterator[str]:
    """Names and texts of a node itself."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name, asname=other):
            yield name
            yield other or ""
        case ast.ImportFrom(module=str(name), names=names):
            yield name
            yield from (f"{name}.{alias.name}" for alias in names if name == "cpembed.targets")
        case _:
            pass


def _of_one_machine(text: str) -> Iterator[str]:
    """Words of a text or a dotted name."""
    room = re.match(r"cpembed\.targets\.(\w+)", text)
    if room and room[1] not in OPEN:
        yield text
        return
    if text in BUILT_IN and text not in COMMON:
        yield text
        return
    for name in re.findall(r"[A-Za-z0-9_.+-]+", text):
        if name.strip(".") in TARGETS:
            yield name.strip(".")
        elif CLASSES.fullmatch(name):
            yield name
        else:
            words = [word.lower() for word in _WORD.findall(name)]
            if any(word.startswith(prefix) for word in words for prefix in PREFIXES):
                yield name


@pytest.mark.quick(67)
@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_belongs_to_one_machine_is_in_its_folder(path: Path) -> None:
    module = path.relative_to(PACKAGE).as_posix()
    found = [
        f"{module}:{line}: {word}"
        for line, word in offences(path.read_text(encoding="utf-8"))
        if (module, word) not in EXCEPTIONS and module not in EXCEPTED
    ]
    assert not found


def test_every_exception_is_needed() -> None:
    for (module, word), reason in EXCEPTIONS.items():
        words = [word for _, word in offences((PACKAGE / module).read_text(encoding="utf-8"))]
        assert word in words, f"{word} is not in {module} any more"
        assert reason
    for module in EXCEPTED:
        assert list(offences((PACKAGE / module).read_text(encoding="utf-8"))), module


@pytest.mark.parametrize(
    "source, found",
    [
        ('if spec.name == "amx_int8": pass', ["amx_int8"]),
        (
            "from cpembed.targets.vta.target import VtaTarget",
            ["VtaTarget", "cpembed.targets.vta.target"],
        ),
        ("isinstance(result, CpuTrial)", ["CpuTrial"]),
        ('f"{kind} of x86.amx"', ["x86.amx"]),
        ("def uses_vnni(): pass", ["uses_vnni"]),
        ("call(avx2=True)", ["avx2"]),
        ('x = "vpdpbusd"', ["vpdpbusd"]),
        ("from cpembed.targets.cpu.lowering import build", ["cpembed.targets.cpu.lowering"]),
        ("from cpembed.targets.choice import compared", []),
        ("from cpembed.targets import cpu", ["cpembed.targets.cpu"]),
        ('if spec.backend == "arm": pass', ["arm"]),
        ('"""As on amx_int8."""\nx = 1\n"""Of a VTA."""', []),
        ("# as on amx_int8\nx = 'available, private, advances'", []),
    ],
)
def test_what_is_found(source: str, found: list[str]) -> None:
    assert sorted(word for _, word in offences(source)) == sorted(found)


def test_folders_that_the_makefile_names_exist() -> None:
    root = PACKAGE.parent
    makefile = root / "Makefile"
    if not makefile.exists():
        pytest.skip("no checkout")
    folders = set(re.findall(r"\btests/[\w/]+", makefile.read_text()))
    assert folders
    assert not [folder for folder in folders if not (root / folder).is_dir()]
