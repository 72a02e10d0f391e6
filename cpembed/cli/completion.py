"""What a shell offers for workloads, suites, targets and constraint sets; click asks.

Nothing here loads the compiler or the solver: a completion has to be there at once.
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
    """Names of targets; files where none begins so."""
    from cpembed.resources import hardware_spec_files

    return _names_or_files("cpembed.hw_specs", list(hardware_spec_files()), incomplete)


def constraint_sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of constraint sets; files where none begins so."""
    from cpembed.resources import constraint_files

    return _names_or_files("cpembed.constraint_sets", list(constraint_files()), incomplete)


def suites(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of suites; files where none begins so."""
    from cpembed.workloads.suites import SUITES

    return _beginning(SUITES, incomplete) or [CompletionItem(incomplete, type="file")]


def workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Operators and layers; after an operator its sizes and options that are not given yet."""
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
    """Indices of layers, where the shell takes the colon of ``deepbench:11`` for a word, as bash
    does; None where it does not."""
    from cpembed.workloads.suites import SUITES, suite

    if incomplete == ":" and len(words) == 1 and words[0] in SUITES:
        incomplete = ""
    elif not (len(words) == 2 and words[0] in SUITES and words[1] == ":"):
        return None
    else:
        words = words[:1]
    return _beginning([str(layer.index) for layer in suite(words[0])], incomplete)


def _suite_layers(incomplete: str) -> Items:
    """The layers of the one suite that is begun, else the suites."""
    from cpembed.workloads.suites import SUITES, suite

    begun = [name for name in SUITES if f"{name}:".startswith(incomplete.partition(":")[0])]
    named, colon, _ = incomplete.partition(":")
    if colon:
        begun = [name for name in begun if name == named]
    if len(begun) > 1:
        return _beginning([f"{name}:" for name in begun], incomplete)
    layers = [layer for name in begun for layer in suite(name)]
    return _beginning([f"{layer.suite}:{layer.index}" for layer in layers], incomplete)


def _settings(words: tuple[str, ...]) -> list[str]:
    """``n=``, or ``layout=NHWC``, of the operator that is named; the choices alone after an equals
    sign that the shell takes for a word, as bash does."""
    from cpembed.workloads.operators import OPERATORS

    family = OPERATORS.get(words[0])
    if family is None:
        return []
    last = [word for word in words[1:] if word != "="][-1:]
    for parameter in family.parameters:
        if [parameter.name] == last:
            return list(parameter.choices)
    given = {word.partition("=")[0] for word in words[1:]}
    return [
        f"{parameter.name}={choice}"
        for parameter in family.parameters
        if parameter.name not in given
        for choice in parameter.choices or ("",)
    ]


def _beginning(names: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _names_or_files(group: Group, names: list[str], incomplete: str) -> Items:
    """The names and those that distributions add to a group."""
    with suppress(CpembedError):
        names += plugin_files(group, names)
    return _beginning(names, incomplete) or [CompletionItem(incomplete, type="file")]
