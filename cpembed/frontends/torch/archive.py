"""What a file of ``torch.export.save`` holds besides tensors, before PyTorch reads it.

PyTorch unpickles objects, and evaluates expressions, that such an archive may hold. A network has
neither: its parameters are plain tensors and its sizes are numbers.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cpembed.errors import ModelError

_OBJECTS = ("custom_obj_", "opaque_obj_")
"""Beginnings of the names of files that hold objects which are no tensors."""


def check_archive(path: Path) -> None:
    """Raise :class:`ModelError` for an archive with objects that would have to be unpickled, or
    with sizes that are expressions; and as :mod:`zipfile` does for what is no archive."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len({*names}) < len(names):
            raise ModelError(f"{path}: two files of the archive have one name")
        for name in names:
            file = name.rsplit("/", 1)[-1]
            if file.startswith(_OBJECTS):
                raise ModelError(f"{path}: {name} is an object of Python: a network holds tensors")
            if file.endswith(".pt"):
                _check_tensors(path, name, archive.read(name))
            elif file.endswith(".json"):
                _check_description(path, name, json.loads(archive.read(name)))


def _check_tensors(path: Path, name: str, content: bytes) -> None:
    read: Any = torch.load
    try:
        read(io.BytesIO(content), weights_only=True)
    except Exception as error:
        # Whatever a damaged pickle makes PyTorch raise.
        raise ModelError(
            f"{path}: {name} holds more than tensors, which is not read: export the model with "
            "tensors as its inputs"
        ) from error


def _check_description(path: Path, name: str, content: Any) -> None:
    for key, value in _items(content):
        if key == "use_pickle" and value:
            raise ModelError(f"{path}: {name} names an object of Python: a network holds tensors")
        if key == "expr_str" and value:
            raise ModelError(
                f"{path}: {name}: the size {str(value)[:40]} is an expression: export the model "
                "without dynamic_shapes"
            )


def _items(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield from value.items()
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
