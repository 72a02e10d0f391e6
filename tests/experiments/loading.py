"""Loads the script of an experiment as a module, and its committed results."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.documents import read_document

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def script(experiment: str) -> ModuleType:
    """Return the module ``run`` of an experiment, such as ``rieber2021/figure6``."""
    return importlib.import_module(f"experiments.{experiment.replace('/', '.')}.run")


def committed(experiment: str) -> dict[str, Any]:
    """Return the committed ``results.json`` of an experiment."""
    return read_document(EXPERIMENTS / experiment / "results.json")
