"""No tracked file is large: measurements are compact, and what can be made again is not kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LARGEST = 300 * 1024
"""Maximum size in bytes of a tracked file."""


def tracked_files() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listing = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        pytest.skip("needs git and a checkout")
    return [ROOT / name for name in listing.decode().split("\0") if name]


def test_no_tracked_file_is_large() -> None:
    sizes = {path: path.stat().st_size for path in tracked_files() if path.is_file()}
    large = {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > LARGEST}
    assert not large
