"""Texts of a page: escaped, shortened, numbers with their units."""

from __future__ import annotations

from html import escape

from cpembed.wording import amount, count

UNKNOWN = "-"


def html(text: object) -> str:
    """A text as HTML shows it, in an element or an attribute: names come from models, and may hold
    anything. What has no character of its own is shown as such.

    >>> html("<b>'x'\\x00")
    '&lt;b&gt;&#x27;x&#x27;\\ufffd'
    """
    printable = "".join(c if c.isprintable() else "\ufffd" for c in str(text))
    return escape(printable)


def short(text: str, length: int) -> str:
    """At most so many characters, the last ones: names of a model differ at their ends.

    >>> short("/layer1/layer1.0/conv1/Conv", 15)
    '…1.0/conv1/Conv'
    """
    return text if len(text) <= length else f"…{text[1 - length :]}"


def time(value: float | None, unit: str = "us") -> str:
    return UNKNOWN if value is None else amount(value, unit).replace("us", "µs")


def share(part: float | None, whole: float | None = 1.0) -> str:
    return UNKNOWN if part is None or not whole else f"{part / whole:.1%}"


def macs(number: int | None) -> str:
    return count(number) if number else UNKNOWN


def yes(value: bool | None) -> str:
    return UNKNOWN if value is None else "yes" if value else "NO"
