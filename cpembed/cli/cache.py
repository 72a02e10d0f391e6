"""The subcommand ``cache``: choices of kernels for other machines, and theirs."""

from __future__ import annotations

from pathlib import Path

import click

from cpembed.cli import output


@click.group("cache", context_settings={"help_option_names": ["-h", "--help"]})
def cache_command() -> None:
    """Take kernels that were chosen for networks to other machines.

    The cache holds the kernel that each search for a network chose. An exported file has targets,
    embeddings and schedules, and no machine code. What is imported is derived, proven and compiled
    anew where a network needs it.
    """


@cache_command.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def export_command(file: Path) -> None:
    """Write the choices of this user's cache to FILE, in JSON lines."""
    from cpembed.network.kernel_cache import Cache, default_folder
    from cpembed.network.shared_choices import export_choices

    count = export_choices(Cache(default_folder()), file)
    output.print_text(f"{file}: {count} choices of kernels")


@cache_command.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def import_command(file: Path) -> None:
    """Add the choices in FILE to this user's cache."""
    from cpembed.network.kernel_cache import Cache, default_folder
    from cpembed.network.shared_choices import import_choices

    cache = Cache(default_folder())
    output.print_text(f"{cache.folder}: {import_choices(cache, file)} choices of kernels added")
