"""Constraints, operators, targets and data files of other distributions, by entry points.

Looking through the installed distributions takes tens of milliseconds and loading runs their code,
so both happen only for a name that does not ship, or to list all names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from cpembed.errors import SpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group = Literal[
    "cpembed.constraints",
    "cpembed.operators",
    "cpembed.targets",
    "cpembed.families",
    "cpembed.hw_specs",
    "cpembed.accelerators",
    "cpembed.constraint_sets",
]
"""Groups of entry points. The first four name objects; the others name packages, or paths of
folders, with TOML files."""


@dataclass(frozen=True)
class Plugin:
    """The object of an entry point, and its origin in words."""

    name: str
    value: Any
    source: str

    def error(self, problem: str) -> SpecError:
        """Return an error that begins with the origin."""
        return SpecError(f"{self.source} {problem}")


def plugin_names(group: Group) -> tuple[str, ...]:
    """Return the names in a group, sorted; nothing is loaded."""
    return tuple(sorted({entry.name for entry in _entries(group)}))


def load_plugin(group: Group, name: str) -> Plugin | None:
    """Return the plug-in of a name; None if no distribution adds it.

    Raises :class:`SpecError` if it cannot be loaded, or several distributions add the name.
    """
    entries = [entry for entry in _entries(group) if entry.name == name]
    if not entries:
        return None
    _check_unique(group, name, [_distribution(entry) for entry in entries])
    return _load(group, entries[0])


def load_plugins(group: Group, shipped: Collection[str]) -> list[Plugin]:
    """Return all plug-ins of a group by name; raise :class:`SpecError` for the first fault."""
    _check_shipped(group, {e.name: _distribution(e) for e in _entries(group)}, shipped)
    plugins = (load_plugin(group, name) for name in plugin_names(group))
    return [plugin for plugin in plugins if plugin is not None]


def plugin_file(group: Group, name: str) -> Path | None:
    """Return the file of a name (without ``.toml``) in a group's folders, or None.

    Raises :class:`SpecError` if several distributions have such a file, or a folder is missing.
    """
    files = _files(group).get(name, [])
    _check_unique(group, name, [source for source, _ in files])
    return files[0][1] if files else None


def plugin_files(group: Group, shipped: Collection[str]) -> dict[str, Path]:
    """Return all files of a group by name; raise :class:`SpecError` for the first fault."""
    by_name = _files(group)
    for name, files in by_name.items():
        _check_unique(group, name, [source for source, _ in files])
    _check_shipped(group, {name: files[0][0] for name, files in by_name.items()}, shipped)
    return {name: files[0][1] for name, files in sorted(by_name.items())}


def _entries(group: Group) -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group=group))


def _distribution(entry: EntryPoint) -> str:
    return "an unknown distribution" if entry.dist is None else entry.dist.name


def _load(group: Group, entry: EntryPoint) -> Plugin:
    source = f"{_distribution(entry)}: entry point {entry.name} = {entry.value} of {group}"
    try:
        value = entry.load()
    except Exception as error:
        # Anything: loading runs the distribution's own code.
        raise SpecError(
            f"{source} cannot be loaded ({type(error).__name__}: {error}); "
            "repair or uninstall the distribution"
        ) from error
    return Plugin(entry.name, value, source)


def _files(group: Group) -> dict[str, list[tuple[str, Path]]]:
    """Return, by name, the distributions that have such a file, with its path."""
    files: dict[str, list[tuple[str, Path]]] = {}
    for entry in _entries(group):
        for folder in _folders(_load(group, entry)):
            # Sorted: folders list their files in another order on every machine.
            for path in sorted(folder.glob("*.toml")):
                files.setdefault(path.stem, []).append((_distribution(entry), path))
    return files


def _folders(plugin: Plugin) -> list[Path]:
    """Return the folders of a package, or the one that a path names."""
    value = plugin.value
    if isinstance(value, str | Path):
        folders = [Path(value)]
    else:
        # A namespace package has a folder in each distribution.
        folders = [Path(part) for part in cast("Sequence[str]", getattr(value, "__path__", ()))]
    if not folders:
        raise plugin.error("is neither a package nor the path of a folder")
    for folder in folders:
        if not folder.is_dir():
            raise plugin.error(f"names {folder}, which is not a folder")
    return folders


def _check_unique(group: Group, name: str, distributions: Sequence[str]) -> None:
    if len(distributions) > 1:
        raise SpecError(
            f"{' and '.join(sorted(distributions))} both add {name!r} to {group}; "
            "uninstall one or have one renamed"
        )


def _check_shipped(group: Group, distributions: dict[str, str], shipped: Collection[str]) -> None:
    for name, distribution in distributions.items():
        # A name means the same on every machine, whatever is installed.
        if name in shipped:
            raise SpecError(
                f"{distribution} adds {name!r} to {group}, a name that cpembed itself has and "
                "keeps; have it renamed"
            )
