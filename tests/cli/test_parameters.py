"""Commands whose arguments and options are the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from cpembed.cli.parameters import argument, on_command_line, options_of, subcommand
from cpembed.driver.options import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class Part:
    count: int = option(3, "Count.", metavar="N", limits=(1, 9))
    left_out: int = option(5, "Left out.")
    library_only: int = option(7, "Of the library.", hidden=True)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    words: tuple[str, ...] = argument(nargs=-1)
    part: Part = options_of(
        Part, leave_out=["left_out"], changes={"count": {"help": "Changed.", "default": 4}}
    )
    name: str = option(REQUIRED, "Name.", flag="-n --name")
    names: tuple[str, ...] = option((), "Names.", flag="--also", multiple=True)
    loud: bool = option(False, "Loud.")


@subcommand("show", Arguments)
def show(arguments: Arguments) -> int:
    """Show what is passed."""
    click.echo((arguments, sorted(on_command_line())))
    return 0


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(show, list(words))
    return result.exit_code, result.output


def test_fields_have_the_values_of_the_command_line() -> None:
    part = Part(count=9)
    expected = Arguments(words=("a", "b"), part=part, name="c", names=("d", "e"), loud=True)
    written = [("count", "--count"), ("loud", "--loud"), ("name", "-n"), ("names", "--also")]
    words = ("a", "b", "--count", "9", "-n", "c", "--also", "d", "--also", "e", "--loud")
    assert call(*words) == (0, f"{(expected, written)}\n")


def test_what_is_not_written_has_its_default() -> None:
    expected = Arguments(words=(), part=Part(count=4), name="c", names=(), loud=False)
    assert call("--name", "c") == (0, f"{(expected, [('name', '-n')])}\n")


def test_the_help_lists_options_in_the_order_of_the_fields() -> None:
    _, text = call("--help")
    places = [text.index(word) for word in ("--count N", "-n, --name", "--also", "--loud")]
    assert places == sorted(places)
    assert "Changed." in text
    assert "[default: 4;" in text
    assert "left-out" not in text
    assert "library-only" not in text


@pytest.mark.parametrize(
    "words, problem",
    [
        ((), "Missing option '-n'"),
        (("-n", "c", "--count", "10"), "10 is not in the range"),
        (("-n", "c", "-n", "d"), "-n is given more than once"),
    ],
)
def test_wrong_values_are_refused(words: tuple[str, ...], problem: str) -> None:
    code, text = call(*words)
    assert code == 2
    assert problem in text
