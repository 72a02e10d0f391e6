"""Libraries that hold a network for several processors, of which each process runs one.

A variant is a program with its runtime, under names of its own. The functions of the library's
interface call those of the variant that runs (``native/dispatch.c``). Variants share the file of
constants, in which equal ones are there once, such as weights that are packed alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from cpembed.errors import InvariantError, WorkloadError
from cpembed.export.layout import Blob, LibraryLayout, blob_of
from cpembed.export.library import (
    OPTIONS,
    SOURCES,
    Contents,
    Library,
    compile_c,
    digest_of_file,
    drafted,
    layout_of,
    texts_of,
)
from cpembed.export.program import CALLER_ROLES, Program
from cpembed.export.sized import SizedProgram
from cpembed.export.texts import NATIVE, header, quoted, tables

VARIANT_VARIABLE = "CPEMBED_VARIANT"
"""Environment variable by which a process forces a variant of the libraries that it loads."""

# Functions that kernels call by pointers, in the order of the runtime's table in ``dispatch.c``.
_POINTERS = (
    "__TVMBackendParallelLaunch",
    "__TVMBackendParallelBarrier",
    "__TVMBackendAllocWorkspace",
    "__TVMBackendFreeWorkspace",
    "__TVMFFIErrorSetRaisedFromCStr",
)
_FAIL_PARTS = "TVMFFIErrorSetRaisedFromCStrParts"

_DECLARATIONS = """\
/* The library holds variants for several processors. The first one in their order that the
   processor and the operating system support runs, or the one that the environment variable
   CPEMBED_VARIANT names. NAME_variant: the number of the one that runs, -1 where none does, which
   NAME_open and NAME_status_text explain; NAME_variant_name: NULL beyond the last. */
#define CPEMBED_NO_VARIANT 99
int NAME_variant(void);
int NAME_variant_count(void);
const char *NAME_variant_name(int number);

"""


@dataclass(frozen=True)
class Variant:
    """Program of a library for one processor, by the processor's name."""

    name: str
    program: Program | SizedProgram

    @property
    def sized(self) -> SizedProgram:
        """Programs of all sizes, one if these are fixed."""
        return SizedProgram.sized(self.program)


def ordered(features: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return processors in the order in which a library tries them, the baseline last.

    One with more features comes first, so that the variant that runs has all features of any other
    that could.

    >>> ordered({"small": {"avx2"}, "large": {"avx2", "avx512f"}})
    ('large', 'small')

    Parameters
    ----------
    features : mapping from str to collection of str
        Features that each variant needs, by the name of its processor.

    Raises
    ------
    WorkloadError
        If none is a baseline, whose features all of them have, or two need the same features.
    """
    names = tuple(sorted(features, key=lambda name: -len(features[name])))
    baseline = names[-1]
    for name in names[:-1]:
        lacking = set(features[baseline]) - set(features[name])
        if lacking:
            raise WorkloadError(
                f"{', '.join(features)}: none is a baseline for the others ({name} lacks "
                f"{', '.join(sorted(lacking))} of {baseline}): add a processor whose features all "
                "of them have"
            )
    for first, second in pairwise(names):
        if set(features[first]) == set(features[second]):
            raise WorkloadError(
                f"{first} and {second} have the same features, so that a library cannot tell them "
                "apart: leave one out"
            )
    return names


def write_variants(
    name: str,
    variants: Sequence[Variant],
    folder: Path,
    contents: Contents,
    *,
    check: Callable[[Path], None] | None = None,
    linked: bool = True,
) -> Library:
    """Write one library that holds several variants, replacing files of the same names.

    Parameters
    ----------
    name : str
        Name of the library.
    variants : sequence of Variant
        Variants in the order of :func:`ordered`.
    folder : Path
        Folder of the library.
    contents : Contents
        Further files to write.
    check : callable, optional
        Called with the path of a draft before any file is replaced; if it raises, none is.
    linked : bool, default True
        Link the library; otherwise write its sources with a Makefile.

    Raises
    ------
    BackendUnavailable, LoweringError, CpembedError
        As :func:`~cpembed.export.library.write_library` does.
    """
    _require_one_interface(variants)
    blob = blob_of(*(program for variant in variants for program in variant.sized.programs))
    baseline = layout_of(replace(variants[-1].sized, name=name), blob)
    parts = _parts(name, variants, blob, baseline)
    details = {"variants": [_described(variant) for variant in variants], **contents.details}
    texts = texts_of(baseline, replace(contents, details=details), linked=linked)
    texts[f"{name}.h"] = _header(baseline)
    library, weights = f"lib{name}.so", f"{name}.weights"
    with drafted(folder) as draft:
        for file, data in parts.items():
            (draft / file).write_bytes(data)
        digest = None
        if linked:
            compile_c(_link_arguments(name, parts), draft)
            digest = digest_of_file(draft / library)
            if check is not None:
                check(draft / library)
                # Another file: a process that has loaded the draft would get that one again, which
                # looks for its weights where the draft was.
                copy = (draft / library).read_bytes()
                (draft / library).unlink()
                (draft / library).write_bytes(copy)
                (draft / library).chmod(0o755)
            files = (library, weights, *texts)
        else:
            texts["Makefile"] = _makefile(name, parts)
            files = tuple(dict.fromkeys((*parts, *texts)))
        for file, text in texts.items():
            (draft / file).write_text(text, encoding="utf-8")
        for file in files:
            (draft / file).replace(folder / file)
    return Library(name, folder, files, digest)


def _require_one_interface(variants: Sequence[Variant]) -> None:
    """Raise :class:`InvariantError` if variants take or return different tensors."""
    interfaces = {
        (
            v.sized.symbols,
            tuple(
                (b.name, b.dtype, b.shape, v.sized.shape(role, number))
                for role in CALLER_ROLES
                for number, b in enumerate(v.sized.with_role(role))
            ),
        )
        for v in variants
    }
    if len(interfaces) != 1:
        raise InvariantError("variants of a library have different inputs or outputs")


def _described(variant: Variant) -> dict[str, object]:
    """Return a variant for the description of the library."""
    program = variant.sized
    return {
        "name": variant.name,
        "cpu_features": list(program.features),
        "steps": list(program.steps),
        "constant_bytes": len(blob_of(*program.programs).contents),
    }


def _parts(
    name: str, variants: Sequence[Variant], blob: Blob, baseline: LibraryLayout
) -> dict[str, bytes]:
    """Return the files that the library is linked from, with its constants."""
    parts: dict[str, bytes] = {source: (NATIVE / source).read_bytes() for source in SOURCES}
    selection: list[str] = []
    objects: dict[str, bytes] = {}
    for number, variant in enumerate(variants):
        prefixed = f"v{number}_{name}"
        layout = layout_of(replace(variant.sized, name=prefixed), blob)
        text = tables(layout).replace(quoted(f"{prefixed}.weights"), quoted(f"{name}.weights"))
        parts[f"{prefixed}.h"] = header(layout.program, in_file=True).encode()
        parts[f"program_{number}.h"] = text.encode()
        parts[f"variant_{number}.c"] = _variant_source(number).encode()
        condition = "#elif" if number else "#if"
        selection.append(f'{condition} VARIANT == {number}\n#include "program_{number}.h"\n')
        objects |= {symbol: code.contents for symbol, code in variant.program.kernels.items()}
    parts["program.h"] = ("".join(selection) + "#endif\n").encode()
    parts["dispatch.c"] = _dispatch(name, variants, baseline).encode()
    parts[f"{name}.h"] = _header(baseline).encode()
    parts["exports.map"] = f"{{ global: {name}_*; local: *; }};\n".encode()
    numbered = enumerate(objects.values())
    parts |= {f"kernel_{number}.o": code for number, code in numbered}
    return parts | {f"{name}.weights": blob.file()}


def _variant_source(number: int) -> str:
    """Return the source of a variant: the runtime, whose global names get its number."""
    names = {name.removeprefix("__") for name in _POINTERS} | {*_POINTERS, _FAIL_PARTS}
    renamed = "".join(f"#define {name} v{number}_{name}\n" for name in sorted(names))
    return f'#define VARIANT {number}\n{renamed}#include "runtime.c"\n'


def _link_arguments(name: str, parts: Sequence[str] | dict[str, bytes]) -> list[str]:
    sources = [file for file in parts if file.endswith(".o") or file.startswith("variant_")]
    return [*OPTIONS, "-I.", "dispatch.c", *sources, "-o", f"lib{name}.so", "-lm", "-ldl"]


def _makefile(name: str, parts: dict[str, bytes]) -> str:
    arguments = " ".join(_link_arguments(name, parts))
    example = f"$(CC) -O2 example.c -o example -L. -l{name} -Wl,-rpath,'$$ORIGIN' -lm"
    return (
        f"example: lib{name}.so example.c\n\t{example}\n\n"
        f"lib{name}.so: dispatch.c runtime.c\n\t$(CC) {arguments}\n"
    )


def _header(baseline: LibraryLayout) -> str:
    """Return ``NAME.h`` with the functions that ask for variants."""
    text = header(baseline.program, in_file=True)
    end = text.rindex("#ifdef __cplusplus")
    return text[:end] + _DECLARATIONS.replace("NAME", baseline.program.name) + text[end:]


# -- dispatch -------------------------------------------------------------------------------------

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PARAMETER = re.compile(r"(?:\(\*(\w+)\)\(.*\)|(\w+)(?:\[\])?)$", re.DOTALL)


@dataclass(frozen=True)
class _Function:
    """Function of the interface: its result, its name without the library's, its parameters."""

    result: str
    name: str
    parameters: str

    @property
    def arguments(self) -> Iterator[str]:
        """Arguments that pass the parameters on; handles are of another type in each variant."""
        depth, start = 0, 0
        text = f"{self.parameters},"
        for place, letter in enumerate(text):
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                parameter, start = text[start:place].strip(), place + 1
                name = _PARAMETER.search(parameter)
                if parameter != "void" and name is not None:
                    cast = "(void *)" if "_handle" in parameter else ""
                    yield cast + (name[1] or name[2])

    def definition(self, name: str, variants: int) -> str:
        """Return the function that calls that of the variant that runs."""
        lines = [f"\nAPI {self.result} {name}_{self.name}({self.parameters}) {{"]
        lines += ["  switch (active()) {", *self.cases(name, variants), "  }", "}"]
        return "\n".join(lines)

    def cases(self, name: str, variants: int) -> list[str]:
        """Return the cases of a switch, the baseline as its default."""
        arguments = ", ".join(self.arguments)
        returns = "" if self.result == "void" else "return "
        lines: list[str] = []
        for number in range(variants):
            label = f"case {number}" if number + 1 < variants else "default"
            end = " return;" if not returns else ""
            lines.append(f"    {label}: {returns}v{number}_{name}_{self.name}({arguments});{end}")
        return lines


def interface(name: str, text: str) -> dict[str, _Function]:
    """Return the functions that a header declares, by their names without the library's.

    >>> functions = interface("net", "int net_run(net_handle *handle, void *const out[]);")
    >>> functions["run"].parameters, list(functions["run"].arguments)
    ('net_handle *handle, void *const out[]', ['(void *)handle', 'out'])
    """
    pattern = re.compile(rf"^([\w ]+?[ *]+){name}_(\w+)\(([^;]*)\);", re.MULTILINE)
    functions = (
        _Function(match[1].strip(), match[2], " ".join(match[3].split()))
        for match in pattern.finditer(_COMMENT.sub("", text))
    )
    return {function.name: function for function in functions}


def _dispatch(name: str, variants: Sequence[Variant], baseline: LibraryLayout) -> str:
    """Return ``dispatch.c``."""
    count = len(variants)
    functions = interface(name, header(baseline.program, in_file=True))
    rest = [f for f in functions.values() if f.name not in ("open", "status_text")]
    values = {
        "HEADERS": "\n".join(f'#include "v{number}_{name}.h"' for number in range(count)),
        "COUNT": str(count),
        "VARIANTS": "\n".join(_variant_tables(variants)),
        "STATUS_TEXTS": "\n".join(functions["status_text"].cases(name, count)),
        "OPENS": "\n".join(functions["open"].cases(name, count)),
        "FORWARDS": "\n".join(function.definition(name, count) for function in rest),
        "NAME": name,
    }
    text = (NATIVE / "dispatch.c").read_text(encoding="utf-8")
    # Whole words: names of the C code contain some of them.
    pattern = rf"(?<![A-Za-z_])({'|'.join(values)})(?![A-Z])"
    return re.sub(pattern, lambda match: values[match[1]], text)


def _variant_tables(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield the lines that declare the variants."""
    rows: list[str] = []
    for number, variant in enumerate(variants):
        pointers = [f"v{number}_{pointer}" for pointer in _POINTERS]
        yield f"extern void *{', *'.join(pointers)};"
        yield f"void v{number}_{_FAIL_PARTS}(const char *, const char **, int32_t);"
        features = ", ".join(map(quoted, variant.program.features)) or "NULL"
        yield f"static const char *const features_{number}[] = {{{features}}};"
        runtime = ", ".join(f"&{pointer}" for pointer in pointers)
        rows.append(
            f"  {{{quoted(variant.name)}, features_{number}, {len(variant.program.features)}, "
            f"{{{runtime}}}, v{number}_{_FAIL_PARTS}}},"
        )
    yield "static const Variant variants[] = {"
    yield from rows
    yield "};"
