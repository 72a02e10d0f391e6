"""A network as one HTML file: nothing is loaded from elsewhere, and without scripts it is read all
the same."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from cpembed.files import write_whole
from cpembed.report.network_page import sections
from cpembed.report.network_page.document import Network, read
from cpembed.report.network_page.picture import picture
from cpembed.report.network_page.text import html
from cpembed.wording import plural

_DETAILS = (
    '<aside id="details" role="status" aria-label="The chosen operator">'
    '<button type="button" class="close">Close</button><div class="body"></div></aside>'
)
"""Filled by the script with what is known of an operator."""


def write_page(document: Mapping[str, Any], path: Path) -> None:
    """Write the page of a document of ``cpembed network --json``.

    Raises :class:`~cpembed.errors.InvariantError` for what is no such document, and as
    :func:`~cpembed.files.write_whole` does.
    """
    write_whole(path, page(document))


def page(document: Mapping[str, Any]) -> str:
    """The page of a document of ``cpembed network --json``."""
    network = read(document)
    style, script = _file("page.css"), _file("page.js")
    title = html(f"{network.network} on {network.target}")
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            _policy(script),
            '<link rel="icon" href="data:,">',
            f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            '<a class="skip" href="#layers-title">To the table of layers</a>',
            _header(network, title),
            '<main>\n<section aria-label="Totals">',
            sections.totals(network),
            "</section>",
            *_picture(network),
            *_assignment(network),
            '<section>\n<h2 id="layers-title">Layers</h2>',
            sections.layers(network),
            '<p id="said" class="skip" role="status"></p>\n</section>',
            *_machine(network),
            '<section class="cards" aria-labelledby="cards-title">',
            '<h2 id="cards-title">Operators</h2>',
            *sections.cards(network),
            "</section>\n</main>",
            _DETAILS,
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _policy(script: str) -> str:
    """The page's own script runs, and no other, whatever a model's names hold."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    styles = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    rules = f"{styles}; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _header(network: Network, title: str) -> str:
    threads = "" if network.threads is None else f", {plural(network.threads, 'thread')}"
    operators = plural(len(network.operators), "operator")
    about = html(f"{operators}; times are {network.provenance}{threads}")
    return (
        f"<header><div><h1>{title}</h1><p>{about}</p></div>"
        '<button type="button" id="theme" class="script">Dark</button></header>'
    )


def _picture(network: Network) -> list[str]:
    tools = [
        ("fit", "Fit to width"),
        ("larger", "Larger"),
        ("smaller", "Smaller"),
        ("slowest", "Slowest operator"),
    ]
    buttons = "".join(
        f'<button type="button" class="script" id="{name}">{words}</button>'
        for name, words in tools
    )
    return [
        '<section>\n<h2 id="network-title">Network</h2>',
        sections.legend(network),
        f'<div class="tools">{buttons}</div>',
        '<div class="scroll" role="region" aria-labelledby="network-title" tabindex="0">',
        picture(network),
        "</div>\n</section>",
    ]


def _assignment(network: Network) -> list[str]:
    if network.assignment is None:
        return []
    return [
        "<section>\n<h2>Choice of layouts</h2>",
        sections.assignment(network.assignment),
        "</section>",
    ]


def _machine(network: Network) -> list[str]:
    if not network.machine:
        return []
    return ["<section>\n<h2>Machine</h2>", sections.machine(network), "</section>"]


def _file(name: str) -> str:
    return files(__package__ or __name__).joinpath(name).read_text(encoding="utf-8")
