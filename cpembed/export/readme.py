"""The README of a library's folder."""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.export.program import Program, Role
from cpembed.export.tables import documents

_TEXT = """\
# lib{name}

{about}

```
{documents}
```

Tensors are dense and row-major. Memory that begins at a multiple of 64 bytes is used where it is;
other memory is copied. A handle runs one call at a time; several handles, and several libraries,
are independent.{features}

{files}
{uses}"""

_EXAMPLE = """
## In C

```
cc -O2 example.c -o example -L. -l{name} -Wl,-rpath,'$ORIGIN' -lm && ./example
```
"""

_MAKE = """
## Linking it

`make` on the machine that it is for links the library and builds the example.
"""

_PYTHON = """
## In Python

`{name}.py` needs numpy alone.

```python
from {name} import Library

with Library(threads=2) as library:
{pack}    ({outputs},) = library.run({inputs})
```
"""

_TORCH = """
## In PyTorch

```python
from {name}_torch import {name}

layer = {name}({weights})
result = layer({inputs})
```
"""

_WORDS = {
    ".so": "the shared library, which needs the C library alone",
    ".h": "its interface, explained",
    ".json": "what it takes and returns, for programs",
    ".weights": "the packed weights, mapped into memory; it stays beside the library",
    "_torch.py": "an operator of PyTorch",
    ".py": "the library from Python",
    "example.c": "an example",
    "Makefile": "links the library",
    "runtime.c": "the library's own code, with `threads.h`, `processor.h` and `program.h`",
    ".s": "the machine code of the contraction, to be read",
}


def readme(program: Program, files: Sequence[str], about: str, *, linked: bool = True) -> str:
    """``README.md``; ``about`` says what the library computes; ``linked``: it is in the folder,
    else what it is made of."""
    name = program.name
    given = {role: [b.name for b in program.of(role)] for role in Role}
    weights = ", ".join(given[Role.WEIGHTS])
    values = {
        "name": name,
        "inputs": ", ".join(given[Role.INPUT]),
        "outputs": ", ".join(given[Role.OUTPUT]),
        "weights": weights,
        "pack": f"    library.pack({weights})\n" if weights else "",
    }
    uses = "" if linked else _MAKE
    uses += _EXAMPLE if "example.c" in files else ""
    uses += _PYTHON if f"{name}.py" in files else ""
    uses += _TORCH if f"{name}_torch.py" in files else ""
    features = ""
    if program.features:
        features = (
            f" The processor needs\n{', '.join(program.features)}; on another one, opening the "
            "library says what is missing."
        )
    return _TEXT.format(
        name=name,
        about=about,
        documents=documents(program),
        features=features,
        files="\n".join(f"- `{file}`: {_said(file)}" for file in files if _said(file)),
        uses=uses.format(**values),
    )


def _said(file: str) -> str:
    return next((text for end, text in _WORDS.items() if file.endswith(end)), "")
