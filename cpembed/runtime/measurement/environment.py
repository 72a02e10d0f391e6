"""Everything that a measurement depends on besides the workload: machine, versions, sources."""

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

_PACKAGE = Path(__file__).resolve().parents[2]
_REPORTED = ("cpembed", "ortools", "apache-tvm", "numpy")


def provenance() -> dict[str, Any]:
    """Return the origin of results, a part of every document of results."""
    return {
        "machine": machine(),
        "versions": versions(),
        "git_commit": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def provenance_lines(document: Mapping[str, Any], run: str) -> list[str]:
    """Return the :func:`provenance` in a document as a list in Markdown.

    ``run`` describes the run and follows the machine.
    """
    machine = document["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    return [
        f"- {machine['cpu']}, {machine['system']}; {run}",
        f"- {packages}",
        f"- commit {document['git_commit']}, {document['date']}",
    ]


def machine() -> dict[str, str | int]:
    """Return the CPU model, the number of its cores and of the threads that kernels run on."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "threads": thread_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    numbers = {"python": platform.python_version()}
    for name in _REPORTED:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            numbers[name] = "not installed"
    return numbers


@cache
def source_digest() -> str:
    """Return the SHA-256 of the package's code and tables."""
    # In a checkout these change while the version stays: it cannot tell results apart.
    digest = hashlib.sha256()
    # Sorted: folders list their files in another order on every machine.
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in (".py", ".csv", ".toml") and path.is_file():
            digest.update(path.relative_to(_PACKAGE).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def git_commit() -> str | None:
    """Return the checkout's commit, with ``+`` if files differ from it; None without a checkout."""
    checkout = _PACKAGE.parent
    if not (checkout / ".git").exists():
        return None
    try:
        commit = _git(checkout, "rev-parse", "HEAD")
        # Untracked files are notes and results more often than code.
        changes = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changes else commit


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return result.stdout.strip()
