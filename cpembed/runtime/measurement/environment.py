"""What a measurement depends on besides the workload: machine, versions, the package's source."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.runtime import thread_count

_PACKAGE = Path(__file__).resolve().parents[1]
_REPORTED = ("cpembed", "ortools", "apache-tvm", "numpy")


def provenance() -> dict[str, Any]:
    """Where results come from: the part that every document of results has."""
    return {
        "machine": machine(),
        "versions": versions(),
        "git_commit": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def provenance_lines(document: Mapping[str, Any], run: str) -> list[str]:
    """:func:`provenance` as a list in Markdown; ``run`` says how, beside the machine."""
    here = document["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    return [
        f"- {here['cpu']}, {here['system']}; {run}",
        f"- {packages}",
        f"- commit {document['git_commit']}, {document['date']}",
    ]


def machine() -> dict[str, str | int]:
    """CPU model, its cores, and the threads that kernels run on."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "threads": thread_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


@cache
def versions() -> dict[str, str]:
    """Python's version and those of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in _REPORTED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def source_digest() -> str:
    """Hash of the package's code and tables: in a checkout both change under one version."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in (".py", ".csv", ".toml") and path.is_file():
            digest.update(path.relative_to(_PACKAGE).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def git_commit() -> str | None:
    """Commit of the checkout the package is read from, ``+`` appended where its tracked files
    differ from it; None for an installed package."""
    checkout = _PACKAGE.parent
    if not (checkout / ".git").exists():
        return None
    try:
        commit = _git(checkout, "rev-parse", "HEAD")
        changes = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changes else commit


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
