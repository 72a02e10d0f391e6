"""Workloads named in words, as the command line and scripts write them.

Three forms: an operator with its sizes (``conv2d n=1 c=64 ... dtype=int8``), an expression with
its extents (``"C[x,y] += A[x,z] * B[z,y]" x=4 y=4 z=8``), and a layer of a suite (``deepbench:3``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import resolve_dtypes
from cpembed.ir.grammar import parse_body
from cpembed.ir.parser import parse_computation
from cpembed.workloads.family import Dtypes, OperatorFamily
from cpembed.workloads.operators import find_operator, operator_names
from cpembed.workloads.suites import DEFAULT_LAYOUT, SUITES, layer

_SETTING = re.compile(r"([A-Za-z_]\w*)=([^=\s]\S*)", re.ASCII)
# `max=` and `min=` in front of a value are assignments of the expression.
_FIRST_SETTING = re.compile(rf"(?:^|(?<=\s))(?!max=|min=){_SETTING.pattern}(?!\S)", re.ASCII)


def parse_workload(
    words: Sequence[str], default_dtypes: tuple[str, ...] | None = None
) -> Computation:
    """Parse the name of a workload.

    >>> str(parse_workload(["gemm", "m=4", "n=4", "k=8"]))
    'C[m, n] += (A[m, k] * B[k, n])'
    >>> parse_workload(["deepbench:3", "layout=NHWC"]).operand("I").shape
    (1, 79, 341, 32)

    Parameters
    ----------
    words : sequence of str
        An operator, an expression or a layer, then settings ``NAME=VALUE``.
    default_dtypes : tuple of str, optional
        Element types of a target's instruction, the inputs in order and then the output. They
        apply if the words set no ``dtype=`` and the workload has as many operands.

    Raises
    ------
    WorkloadError
        In one line: what is wrong, where, and the remedy.
    """
    # An unquoted expression arrives as several words, so the name ends at the first setting.
    text = " ".join(words)
    first = _FIRST_SETTING.search(text)
    name = (text[: first.start()] if first else text).rstrip()
    settings = _settings(text[first.start() :].split() if first else ())
    if "[" in name:
        return _expression(name, settings, default_dtypes)
    name = name.lstrip()
    if not name:
        raise WorkloadError(f"no workload named: {_forms()}")
    if ":" in name:
        return _layer(name, settings, default_dtypes)
    operator = find_operator(name)
    if operator is None:
        raise WorkloadError(f"unknown workload {name!r}: {_forms()}")
    if "dtype" not in settings and _fits(operator, default_dtypes):
        return operator.workload({**settings, "dtype": default_dtypes})
    return operator.workload(settings)


def _forms() -> str:
    """Describe the forms of a workload, for messages."""
    return (
        f"name an operator ({' '.join(operator_names())}), an expression such as "
        f'"C[x,y] += A[x,z] * B[z,y]", or a layer such as {next(iter(SUITES))}:0'
    )


def _fits(operator: OperatorFamily, dtypes: tuple[str, ...] | None) -> bool:
    """True if there is one type per operand: the inputs and the output."""
    return dtypes is not None and len(dtypes) == operator.inputs + 1


def _settings(words: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for word in words:
        match = _SETTING.fullmatch(word)
        if match is None:
            raise WorkloadError(f"word {word!r} is not a setting: write NAME=VALUE")
        key, value = match.groups()
        if key in settings:
            raise WorkloadError(f"{key} is set twice, to {settings[key]} and {value}: keep one")
        settings[key] = value
    return settings


def _expression(
    text: str, settings: dict[str, str], default_dtypes: tuple[str, ...] | None
) -> Computation:
    dtype = settings.pop("dtype", None)
    extents: dict[str, int] = {}
    for axis, value in settings.items():
        try:
            extents[axis] = int(value)
        except ValueError:
            raise WorkloadError(f"expression: {axis}={value} is not an integer extent") from None
    body = parse_body(text)
    inputs, operands = body.inputs, body.operands
    if dtype is not None:
        dtypes = resolve_dtypes(dtype, len(inputs))
        # A single type of the output holds for every output.
        dtypes = (*dtypes, *dtypes[-1:] * (len(body.outputs) - 1))
        # Without the output's own type the statement decides: a maximum need not widen.
        types = dict(zip(operands, dtypes, strict=True))
        if dtype.count(",") + 1 <= len(inputs):
            for output in body.outputs:
                del types[output]
    elif default_dtypes is not None and len(default_dtypes) == len(operands):
        types = dict(zip(operands, default_dtypes, strict=True))
    else:
        types = {}
    return parse_computation(text, extents, dtypes=types)


def _layer(
    name: str, settings: dict[str, str], default_dtypes: tuple[str, ...] | None
) -> Computation:
    suite_name, _, text = name.partition(":")
    # int() rejects texts of thousands of digits with an error of its own.
    if not text.isdecimal() or len(text) > 9:
        raise WorkloadError(f"{name}: {text!r} is not the index of a layer; write {suite_name}:0")
    suite_layer = layer(suite_name, int(text))
    unknown = [key for key in settings if key not in ("dtype", "layout")]
    if unknown:
        raise WorkloadError(f"{name}: unknown setting {unknown[0]!r}; a layer takes dtype layout")
    dtypes: Dtypes = settings.get("dtype")
    if dtypes is None and _fits(suite_layer.operator, default_dtypes):
        dtypes = default_dtypes
    return suite_layer.workload(dtypes, settings.get("layout", DEFAULT_LAYOUT))
