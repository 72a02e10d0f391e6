"""The page about ONNX lists what is read."""

import re
from pathlib import Path

from cpembed.frontends.onnx.operators import TRANSLATIONS

PAGE = Path(__file__).parents[4] / "docs" / "onnx.md"


def test_the_page_lists_every_operator_once() -> None:
    rows = re.findall(r"^\| ([\w.]+) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    listed: list[str] = []
    for group, text in rows:
        plain = re.sub(r"\[.*?\]", "", text)
        prefix = f"{group}." if "." in group else ""
        listed += [prefix + name for name in re.findall(r"\w+", plain) if name != "and"]
    assert sorted(set(listed) - {"operators"}) == sorted(TRANSLATIONS)
    assert len(listed) == len({*listed})
