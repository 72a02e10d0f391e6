"""Loads the script of an experiment as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def script(experiment: str) -> ModuleType:
    """The module of ``experiments/<experiment>/run.py``, read once."""
    name = f"experiment_{experiment}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(
        name, EXPERIMENTS / experiment / "run.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module
