"""Completions that a shell offers for workloads, suites, targets and constraint sets.

Nothing here loads the compiler or the solver: a completion must appear at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from cpembed.errors import CpembedError
from cpembed.plugins import Group, plugin_files

Items = list[CompletionItem]


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return the names of targets that begin so, or files if there are none."""
    from cpembed.resources import hardware_spec_files

    return _names_or_files("cpembed.hw_specs", ["native", *hardware_spec_files()], incomplete)


def constraint_sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return the names of constraint sets that begin so, or files if there are none."""
    from cpembed.resources import constraint_files

    return _names_or_files("cpembed.constraint_sets", list(constraint_files()), incomplete)


def suites(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return the names of suites that begin so, or files if there are none."""
    from cpembed.workloads.suites import SUITES

    return _beginning(SUITES, incomplete) or [CompletionItem(incomplete, type="file")]


def workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return operators and layers; after an operator, its missing sizes and options."""
    words: tuple[str, ...] = ctx.params.get(param.name or "") or ()
    layers = _layers_after_colon(words, incomplete)
    if layers is not None:
        return layers
    if not words:
        return [*_suite_layers(incomplete), *_beginning(_operators(), incomplete)]
    return _beginning(_settings(words), incomplete)


def _operators() -> list[str]:
    from cpembed.plugins import plugin_names
    from cpembed.workloads.operators import OPERATORS

    return [*OPERATORS, *plugin_names("cpembed.operators")]


def _layers_after_colon(words: tuple[str, ...], incomplete: str) -> Items | None:
    """Return the indices of layers if the shell makes the colon of ``deepbench:11`` a word, as bash
    does; None otherwise.
    """
    from cpembed.workloads.suites import SUITES, suite

    if incomplete == ":" and len(words) == 1 and words[0] in SUITES:
        incomplete = ""
    elif not (len(words) == 2 and words[0] in SUITES and words[1] == ":"):
        return None
    else:
        words = words[:1]
    return _beginning([str(layer.index) for layer in suite(words[0])], incomplete)


def _suite_layers(incomplete: str) -> Items:
    """Return the layers of the suite if only one matches, else the suites."""
    from cpembed.workloads.suites import SUITES, suite

    matching = [name for name in SUITES if f"{name}:".startswith(incomplete.partition(":")[0])]
    name, colon, _ = incomplete.partition(":")
    if colon:
        matching = [each for each in matching if each == name]
    if len(matching) > 1:
        return _beginning([f"{name}:" for name in matching], incomplete)
    layers = [layer for name in matching for layer in suite(name)]
    return _beginning([f"{layer.suite}:{layer.index}" for layer in layers], incomplete)


def _settings(words: tuple[str, ...]) -> list[str]:
    """Return ``n=``, or ``layout=NHWC``, of an operator; only the choices after an equals sign that
    the shell makes a word, as bash does.
    """
    from cpembed.workloads.operators import OPERATORS

    family = OPERATORS.get(words[0])
    if family is None:
        return []
    last = [word for word in words[1:] if word != "="][-1:]
    for parameter in family.parameters:
        if [parameter.name] == last:
            return list(parameter.choices)
    present = {word.partition("=")[0] for word in words[1:]}
    return [
        f"{parameter.name}={choice}"
        for parameter in family.parameters
        if parameter.name not in present
        for choice in parameter.choices or ("",)
    ]


def _beginning(names: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _names_or_files(group: Group, names: list[str], incomplete: str) -> Items:
    """Return the matching names, plug-ins included, or files if there are none."""
    with suppress(CpembedError):
        names += plugin_files(group, names)
    return _beginning(names, incomplete) or [CompletionItem(incomplete, type="file")]
