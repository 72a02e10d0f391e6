"""Parts that HTML pages share: a head that loads nothing, the only script, escaped texts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files


def html(text: object) -> str:
    r"""Return a text escaped for an element or an attribute: names of a model may contain anything.

    Characters that cannot be printed become replacement characters.

    >>> html("<b>'x'\x00")
    '&lt;b&gt;&#x27;x&#x27;\ufffd'
    """
    printable = "".join(c if c.isprintable() else "\ufffd" for c in str(text))
    return escape(printable)


def page_head(title: str, script: str, style: str = "") -> str:
    """Return the beginning of a page, up to its body.

    Parameters
    ----------
    title
        Title, escaped.
    script
        The only script that the browser runs, whatever names contain.
    style
        Rules besides those of all pages.
    """
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            _policy(script),
            '<link rel="icon" href="data:,">',
            f"<title>{title}</title>\n<style>\n{_file('page.css')}{style}</style>\n</head>\n<body>",
        ]
    )


def script_text(path: str) -> str:
    """Return the script of a page, by its path in this folder, with what all pages do."""
    return _file("page.js") + _file(path)


def style_text(path: str) -> str:
    """Return the rules of a page, by the path of its file in this folder."""
    return _file(path)


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list of names with their values."""
    inner = "".join(
        f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in rows
    )
    return f'<dl class="facts">{inner}</dl>'


def _policy(script: str) -> str:
    """Return the policy by which only the page's own script runs, whatever names contain."""
    # The browser runs a script of this digest alone: a name with markup stays text.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    styles = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    rules = f"{styles}; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _file(path: str) -> str:
    return files("cpembed.report").joinpath(path).read_text(encoding="utf-8")
