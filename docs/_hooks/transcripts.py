"""Commands that the pages show, with what they print.

A fenced block ``console`` is a transcript: ``$ cpembed …`` or ``$ python …`` and its output. A
block with ``title="FILE"`` is a file that later commands of the page read. As a script this file
executes the commands of the pages in their order and rewrites their outputs::

    python docs/_hooks/transcripts.py docs/tutorial.md

Times differ from call to call and are ignored in comparisons. Of a block with the class
``measured``, whose text depends on the machine, only the labels at the start of lines are compared.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\b\d[\d.,]* ?(?:ns|us|ms|s|GOPS|TOPS|cycles/s)\b")
CHANGING = re.compile(r"^(?:noisy|unexpected) .*\n", re.MULTILINE)

TIMEOUT = 300
"""Maximum number of seconds that one command may take."""


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A command of a page.

    Attributes
    ----------
    command : str
        The command line with its first word, ``cpembed`` or ``python``.
    documented : str
        What the page shows of its output.
    printed : str
        What the command prints now.
    measured : bool
        True if the output depends on the machine.
    """

    command: str
    documented: str
    printed: str
    measured: bool

    @property
    def is_current(self) -> bool:
        """True if the page shows what the command prints."""
        if self.measured:
            return labels(self.documented) == labels(self.printed)
        return comparable(self.documented) == comparable(self.printed)


def transcripts(page: str, folder: Path) -> Iterator[Transcript]:
    """Execute the commands of a page.

    Parameters
    ----------
    page : str
        Text of the page.
    folder : Path
        Empty working folder of the commands; files and tuning trials go there.

    Returns
    -------
    iterator of Transcript
        One for each command, in the order of the page.
    """
    for block in BLOCK.finditer(page):
        info, body = block["info"], block["body"]
        if title := re.search(r'title="([^"]+)"', info):
            (folder / title[1]).write_text(body, encoding="utf-8")
        elif "console" in info:
            for part in re.split(r"^(?=\$ (?:cpembed|python) )", body, flags=re.MULTILINE):
                if part.startswith("$ "):
                    # A command goes on where its line ends with a backslash.
                    match = re.match(r"\$ ((?:[^\n]*\\\n)*[^\n]*)\n", part)
                    assert match is not None, part
                    yield Transcript(
                        command=match[1],
                        documented=part[match.end() :],
                        printed=printed(match[1], folder),
                        measured="measured" in info,
                    )


def printed(command: str, folder: Path) -> str:
    """Return what a command prints, the messages of a failed one included."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] in ("cpembed", "python"), command
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CPEMBED_TUNE_DIR": str(folder / "trials"),
        "CPEMBED_CALIBRATION_DIR": str(folder / "calibration"),
    }
    process = subprocess.run(
        [sys.executable, *(["-m", "cpembed"] if words[0] == "cpembed" else []), *words[1:]],
        cwd=folder, env=environment, text=True, capture_output=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert process.returncode in (0, 3), (
        f"{command}: exit code {process.returncode}: {process.stderr}"
    )
    text = CHANGING.sub("", re.sub(r"(trials in )\S+", r"\1…", process.stdout))
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def comparable(text: str) -> str:
    """Return an output without what differs from call to call."""
    return TIME.sub("TIME", text).rstrip()


def labels(text: str) -> list[str]:
    """Return the labels at the start of an output's lines."""
    return [line.partition("  ")[0] for line in text.splitlines() if line[:1].strip()]


def updated(page: str, folder: Path) -> str:
    """Return a page with the outputs that its commands print now; those that are current stay."""
    for transcript in transcripts(page, folder):
        if not transcript.is_current:
            old = f"$ {transcript.command}\n{transcript.documented}"
            gap = "\n" if transcript.documented.endswith("\n\n") else ""
            new = f"$ {transcript.command}\n{transcript.printed}{gap}"
            assert page.count(old) == 1, f"documented twice: {transcript.command}"
            page = page.replace(old, new)
    return page


def main() -> None:
    """Rewrite the outputs on the pages that are named."""
    for name in sys.argv[1:]:
        path = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            text = updated(path.read_text(encoding="utf-8"), Path(folder))
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
