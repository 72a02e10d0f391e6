"""Archives of ``torch.export.save``, and what somebody makes of them."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cpembed.errors import ModelError
from cpembed.frontends import load_model


class Small(nn.Module):
    """A parameter, a buffer that is saved, one that is not, a constant, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("scale", torch.arange(3.0) + 1)
        self.register_buffer("shift", torch.arange(3.0), persistent=False)
        self.table = torch.arange(2.0)

    def forward(self, x: Any) -> Any:
        first, second = (self.linear(x) * self.scale + self.shift).split(2, 1)
        masked = second.masked_fill(second > 0, float("-inf"))
        return first * self.table, masked.max(1)[0]


def saved(path: Path, model: nn.Module | None = None, x: Any = None) -> Path:
    """A program in a file."""
    torch.manual_seed(0)
    x = torch.randn(2, 5) if x is None else x
    torch.export.save(torch.export.export((model or Small()).eval(), (x,)), path)
    return path


class Touching:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def pickled(path: Path, *, by_torch: bool = False) -> bytes:
    """Bytes that make a file when they are unpickled."""
    if not by_torch:
        return pickle.dumps(Touching(path))
    buffer = io.BytesIO()
    torch.save({"weight": Touching(path)}, buffer)
    return buffer.getvalue()


def touching_code(path: Path) -> str:
    """An expression that makes a file when it is evaluated."""
    return f"__import__('os').close(__import__('os').open({os.fspath(path)!r}, 65))"


Members = dict[str, bytes]
"""By their names within the archive's folder."""


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: Members, folder: str = "model") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{folder}/{name}", content)


def changed(path: Path, change: Callable[[Members], Any]) -> None:
    """The archive with other members."""
    members = members_of(path)
    change(members)
    write(path, members)


def described(path: Path, name: str, change: Callable[[Any], Any]) -> None:
    """The archive with another description in one of its members of JSON."""

    def rewrite(members: Members) -> None:
        content = json.loads(members[name])
        change(content)
        members[name] = json.dumps(content).encode()

    changed(path, rewrite)


PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def refused(path: Path) -> str:
    """The message, of one line, with which an archive is refused."""
    with pytest.raises(ModelError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message
