"""Write a program to a folder: a shared library, its header, and examples of its use.

A C compiler links the library. Constant weights are packed when it is built, by its own kernels.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.host_cpu import architecture, host_architecture
from cpembed.errors import BackendUnavailable, CpembedError, LoweringError
from cpembed.export import loader
from cpembed.export.example import REPEATED, Reference, example, readme
from cpembed.export.layout import Blob, LibraryLayout, blob_of
from cpembed.export.program import Call, Program, Role
from cpembed.export.sized import SizedProgram
from cpembed.export.texts import NATIVE, about_json, header, tables
from cpembed.host import compiler_command
from cpembed.runtime import worker
from cpembed.steps import step

# Only functions that begin with the library's name are visible: several libraries, and their copies
# of the runtime, may be loaded into one process.
OPTIONS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-Wl,--version-script=exports.map", "-Wl,--no-undefined", "-Wl,-z,noexecstack"),
)
"""Options of the C compiler that links a library."""

# Environment variable with the compiler's command and options, and the commands that are looked
# for on the path without it.
_COMPILER_VARIABLE, _COMPILERS = "CC", ("cc", "gcc", "clang")

CROSS_COMPILER_VARIABLE = "CROSS_CC"
"""Environment variable with the command of the C compiler for another instruction set."""

# Sources of the runtime in :data:`~cpembed.export.texts.NATIVE`.
SOURCES = ("runtime.c", "processor.h", "sizes.h", "tables.h", "threads.h")

# Time limit of one call of the compiler.
_LIMIT_SECONDS = 300


def compiler() -> list[str]:
    """Return the command of the C compiler for the processor that kernels are built for.

    Raises :class:`BackendUnavailable` if there is none.
    """
    system = architecture()
    if system == host_architecture():
        purpose = "a library is linked by a C compiler"
        return compiler_command(_COMPILER_VARIABLE, _COMPILERS, purpose)
    names = [f"{system}-linux-gnu-{name}" for name in ("gcc", "clang")]
    purpose = f"a library for {system} is linked by a C compiler for it"
    return compiler_command(CROSS_COMPILER_VARIABLE, names, purpose)


def has_compiler() -> bool:
    """Return True if there is a C compiler for the processor that kernels are built for."""
    try:
        compiler()
    except BackendUnavailable:
        return False
    return True


def compile_c(arguments: Sequence[str], folder: Path) -> None:
    """Call the compiler in a folder; its first error becomes a :class:`LoweringError`."""
    command = compiler()
    try:
        process = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoweringError(f"{command[0]} cannot compile the library: {error}") from None
    if process.returncode != 0:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line or "undefined" in line]
        reason = (errors or lines or [f"exit code {process.returncode}"])[0]
        raise LoweringError(f"{command[0]} cannot link the library: {reason}")


def parts_of(layout: LibraryLayout) -> dict[str, bytes]:
    """Return the files that a library is linked from: tables, kernels, and the constants."""
    program, name = layout.program, layout.program.name
    kernels = (kernel.contents for kernel in program.kernels.values())
    constants = (
        {f"{name}.weights": layout.blob.file()}
        if layout.in_file
        else {"constants.bin": layout.blob.contents}
    )
    return {
        "program.h": tables(layout).encode(),
        f"{name}.h": header(program, in_file=layout.in_file).encode(),
        "exports.map": f"{{ global: {name}_*; local: *; }};\n".encode(),
        **{source: (NATIVE / source).read_bytes() for source in SOURCES},
        **dict(zip(_objects(program), kernels, strict=True)),
        **constants,
    }


def _objects(program: SizedProgram) -> list[str]:
    """Return the names of the kernels' object files."""
    return [f"kernel_{number}.o" for number in range(len(program.kernels))]


def _link_arguments(program: SizedProgram, options: Sequence[str] = ()) -> list[str]:
    """Return the compiler's arguments in a folder of :func:`parts_of`."""
    sources = ["-I.", "runtime.c", *_objects(program)]
    return [*OPTIONS, *options, *sources, "-o", f"lib{program.name}.so", "-lm", "-ldl"]


def _link(layout: LibraryLayout, folder: Path, options: Sequence[str] = ()) -> Path:
    """Write the parts of a library to a folder, and link the shared library there."""
    for file, contents in parts_of(layout).items():
        (folder / file).write_bytes(contents)
    compile_c(_link_arguments(layout.program, options), folder)
    return folder / f"lib{layout.program.name}.so"


EMBEDDED_BYTES = 1 << 18
"""Maximum size in bytes of constants inside the library.

Larger ones are in a file next to it, which is mapped into memory.
"""


@dataclass(frozen=True)
class Library:
    """Library that was written to a folder.

    The digest of the shared library, which holds the weights or their checksum, distinguishes it
    from one that replaces it.
    """

    name: str
    folder: Path
    files: tuple[str, ...]
    digest: bytes | None = None

    @property
    def path(self) -> Path:
        """Path of the shared library."""
        return self.folder / f"lib{self.name}.so"

    @property
    def is_replaced(self) -> bool:
        """True if another library has the name now."""
        return (
            self.digest is not None
            and self.path.exists()
            and digest_of_file(self.path) != self.digest
        )


@dataclass(frozen=True)
class Contents:
    """Files in the folder of a library, besides its header and its description.

    Attributes
    ----------
    python, example, torch : bool
        True for a loader that needs numpy alone, an example in C, an operator of PyTorch.
    reference : Reference
        Definition with which the example compares.
    about : str
        Description of the computation in a sentence or two.
    details : mapping from str to object
        Additions to the description in JSON.
    further : mapping from str to str
        Texts of further files by name.
    """

    python: bool = True
    example: bool = True
    torch: bool = False
    reference: Reference = REPEATED
    about: str = ""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    further: Mapping[str, str] = field(default_factory=dict[str, str])


EVERYTHING = Contents()


def write_library(
    program: Program | SizedProgram,
    folder: Path,
    contents: Contents = EVERYTHING,
    *,
    check: Callable[[Path], None] | None = None,
    options: tuple[str, ...] = (),
) -> Library:
    """Write a program as a library, replacing files of the same names.

    Parameters
    ----------
    program : Program or SizedProgram
        Program of the library, or programs of several sizes; constant weights are packed now.
    folder : Path
        Folder of the library.
    contents : Contents
        Further files to write.
    check : callable, optional
        Called with the path of a draft before any file is replaced; if it raises, none is.
    options : tuple of str
        Further options of the C compiler.

    Raises
    ------
    BackendUnavailable
        If there is no C compiler.
    LoweringError
        If the compiler reports an error.
    CpembedError
        If the folder cannot be written.
    """
    layout = layout_of(packed_ahead(program) if isinstance(program, Program) else program)
    texts = texts_of(layout, contents)
    # Files are complete before they get their names.
    with drafted(folder) as draft:
        path = _link(layout, draft, options)
        digest = digest_of_file(path)
        if check is not None:
            check(path)
        for file, text in texts.items():
            (draft / file).write_text(text, encoding="utf-8")
        files = (path.name, *_weights_files(layout), *texts)
        for file in files:
            (draft / file).replace(folder / file)
    return Library(program.name, folder, files, digest)


def write_sources(
    program: Program | SizedProgram, folder: Path, contents: Contents = EVERYTHING
) -> Library:
    """Write the sources of a library for another machine, with a Makefile to link it there.

    Parameters
    ----------
    program, folder, contents
        See :func:`write_library`.

    Raises
    ------
    CpembedError
        If the folder cannot be written.
    """
    # Constant weights stay as they are: kernels that pack them may not run on this machine.
    layout = layout_of(program)
    makefile = _makefile(layout.program)
    texts = {**texts_of(layout, contents, linked=False), "Makefile": makefile}
    files = parts_of(layout) | {name: text.encode() for name, text in texts.items()}
    with drafted(folder) as draft:
        for file, data in files.items():
            (draft / file).write_bytes(data)
        for file in files:
            (draft / file).replace(folder / file)
    return Library(program.name, folder, tuple(files))


def digest_of_file(path: Path) -> bytes:
    """Return the digest that tells a shared library from one that replaces it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def layout_of(program: Program | SizedProgram, blob: Blob | None = None) -> LibraryLayout:
    """Return programs with the places of their buffers.

    Parameters
    ----------
    program : Program or SizedProgram
    blob : Blob, optional
        Constants in a file next to the library, which other programs may share; by default its own,
        in a file if they are large.
    """
    sized = SizedProgram.sized(program)
    if blob is not None:
        return LibraryLayout(sized, blob, in_file=True)
    blob = blob_of(*sized.programs)
    return LibraryLayout(sized, blob, in_file=len(blob.contents) > EMBEDDED_BYTES)


def _weights_files(layout: LibraryLayout) -> list[str]:
    return [f"{layout.program.name}.weights"] if layout.in_file else []


@contextmanager
def drafted(folder: Path) -> Generator[Path]:
    """Provide a temporary folder in a folder, which is created if it does not exist.

    Raises :class:`~cpembed.errors.CpembedError` if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft.", dir=folder) as draft:
            yield Path(draft)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CpembedError(f"{folder} cannot be written: {reason}; name another folder") from None


def _makefile(program: SizedProgram) -> str:
    """Return the Makefile that links a library and builds its example."""
    name = program.name
    arguments = " ".join(map(shlex.quote, _link_arguments(program)))
    example = f"$(CC) -O2 example.c -o example -L. -l{name} -Wl,-rpath,'$$ORIGIN' -lm"
    return (
        f"example: lib{name}.so example.c\n\t{example}\n\n"
        f"lib{name}.so: runtime.c program.h\n\t$(CC) {arguments}\n"
    )


def texts_of(layout: LibraryLayout, contents: Contents, *, linked: bool = True) -> dict[str, str]:
    """Return the text files of a library by name.

    Parameters
    ----------
    layout : LibraryLayout
        Programs with the places of their buffers.
    contents : Contents
        Files to write.
    linked : bool, default True
        True if the folder holds the library rather than its sources.
    """
    program = layout.program
    name = program.name
    texts = {
        f"{name}.h": header(program, in_file=layout.in_file),
        f"{name}.json": about_json(layout, contents.details),
    }
    if contents.example:
        texts["example.c"] = example(program, contents.reference)
    if contents.python or contents.torch:
        # The loader of this package is copied, so it imports nothing of cpembed.
        loader_text = Path(loader.__file__).read_text(encoding="utf-8")
        texts[f"{name}.py"] = loader_text.replace('NAME = ""', f'NAME = "{name}"', 1)
    if contents.torch:
        operator = (NATIVE / "torch_operator.py.txt").read_text(encoding="utf-8")
        texts[f"{name}_torch.py"] = operator.replace("NAME", name)
    texts |= contents.further
    binaries = [f"lib{name}.so"] if linked else ["Makefile", "runtime.c"]
    files = (*binaries, *_weights_files(layout), *texts)
    return texts | {"README.md": readme(program, files, contents.about, linked=linked)}


# -- packing --------------------------------------------------------------------------------------


def packed_ahead(program: Program) -> Program:
    """Execute the calls of ``prepare`` that pack constants, whose results become constants.

    This processor needs the features of their kernels.
    """
    constants = {buffer.name for buffer in program.with_role(Role.CONSTANT)}
    ahead: list[Call] = []
    for call in program.prepare:
        # A call of ``prepare`` writes its last argument.
        *read, written = call.arguments
        if constants.issuperset(read) and program.by_name[written].role is Role.PACKED:
            ahead.append(call)
            constants.add(written)
    if not ahead:
        return program
    arrays = _executed(program, ahead)
    buffers = tuple(
        replace(buffer, role=Role.CONSTANT, data=arrays[buffer.name])
        if buffer.name in arrays
        else buffer
        for buffer in program.buffers
    )
    rest = tuple(call for call in program.prepare if call not in ahead)
    return replace(program, buffers=buffers, prepare=rest)


def _executed(program: Program, calls: Sequence[Call]) -> dict[str, NDArray[Any]]:
    """Execute calls and return the buffers that they write, by name."""
    names = {name for call in calls for name in call.arguments}
    packing = Program(
        name="packing",
        buffers=tuple(buffer for buffer in program.buffers if buffer.name in names),
        kernels={call.kernel: program.kernels[call.kernel] for call in calls},
        prepare=(),
        run=tuple(calls),
    )
    layout = layout_of(packing, blob_of(packing))
    with tempfile.TemporaryDirectory() as folder:
        path = _link(layout, Path(folder))
        # In the worker, which a crash of a kernel ends in place of this process.
        return worker.call(_packed, path, [call.arguments[-1] for call in calls])


def _packed(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Run a library in the worker and return some of its buffers."""
    with step("packing the weights of a library"), loader.Library(path, "packing") as library:
        library.run()
        return {name: library.tensor(name) for name in names}
