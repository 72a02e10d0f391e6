"""Completions that a shell offers for workloads, suites, targets and constraint sets.

Nothing here loads the compiler or the solver: a completion must appear at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from cpembed.errors import CpembedError
from cpembed.plugins import Group, plugin_files
from cpembed.resources import accelerator_files, constraint_files, hardware_spec_files

Items = list[CompletionItem]


Completion = Callable[[click.Context, click.Parameter, str], Items]


def _completion(names: Callable[[], Iterable[str]]) -> Completion:
    """Return a completion by names, or by files if none begins like the word."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
        return _beginning(names(), incomplete) or [CompletionItem(incomplete, type="file")]

    return complete


def _with_plugins(group: Group, shipped: Iterable[str]) -> list[str]:
    names = list(shipped)
    # A faulty distribution must not keep the shell from completing the other names.
    with suppress(CpembedError):
        names += plugin_files(group, names)
    return names


def _suites() -> Iterable[str]:
    from cpembed.workloads.suites import SUITES

    return SUITES


targets = _completion(lambda: _with_plugins("cpembed.hw_specs", ["native", *hardware_spec_files()]))
constraint_sets = _completion(lambda: _with_plugins("cpembed.constraint_sets", constraint_files()))
accelerators = _completion(lambda: _with_plugins("cpembed.accelerators", accelerator_files()))
suites = _completion(_suites)


def workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return operators and layers; after an operator, its missing sizes and options.

    Parameters
    ----------
    ctx
        Context of click with the words before.
    param
        Argument that is completed.
    incomplete
        Beginning of the word.
    """
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
    """Return the indices of layers if the colon of ``deepbench:11`` is a word; None otherwise."""
    from cpembed.workloads.suites import SUITES, suite

    # bash makes the colon a word of its own; other shells do not.
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
    """Return ``n=``, or ``layout=NHWC``, of an operator, or only choices after an equals sign."""
    from cpembed.workloads.operators import OPERATORS

    family = OPERATORS.get(words[0])
    if family is None:
        return []
    # bash makes the equals sign a word of its own too.
    last = [word for word in words[1:] if word != "="][-1:]
    for parameter in family.parameters:
        if [parameter.name] == last:
            return list(parameter.choices)
    # A size that is on the line already is not offered again.
    present = {word.partition("=")[0] for word in words[1:]}
    return [
        f"{parameter.name}={choice}"
        for parameter in family.parameters
        if parameter.name not in present
        for choice in parameter.choices or ("",)
    ]


def _beginning(names: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
