"""Reports of ``cpembed network`` and ``build`` where sizes are ranges, from their document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpembed.blocks import Block, Header, Table
from cpembed.wording import data_size, duration, plural

_MODES = {
    "split": "rows are divided between instances",
    "padded": "smaller sizes are computed in larger ones, masked",
    "exact": "each size has kernels of its own",
}


def report(document: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a row for each size with kernels of its own, and the totals."""
    yield Table(
        ("sizes", "runs", "operators>", "embedded>", "predicted>", "measured>", "verified"),
        (_row(instance) for instance in document["instances"]),
    )
    yield ""
    yield Header(_totals(document))


def _row(instance: Mapping[str, Any]) -> tuple[str, ...]:
    network = instance["network"]
    totals = network["totals"]
    measured = totals["measured_us"]
    return (
        sizes_text(instance["sizes"]),
        ", ".join(f"{name} {low} to {high}" for name, (low, high) in instance["covers"].items()),
        str(totals["operators"]),
        f"{totals['embedded']} of {totals['products']}",
        duration(totals["predicted_us"]),
        "" if measured is None else duration(measured),
        _verified(network),
    )


def _verified(network: Mapping[str, Any]) -> str:
    states = [
        operator[key]
        for operator in network["operators"]
        for key in ("verified", "verified_with_special_values")
    ]
    if not any(state is not None for state in states):
        return "no"
    return "WRONG" if False in states else "yes"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes in words.

    >>> sizes_text({"batch": 4, "sequence": 128})
    'batch=4, sequence=128'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _totals(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, (low, high) in document["ranges"].items():
        mode = document["modes"][name]
        reason = document["reasons"].get(name)
        text = _MODES[mode] + (f": {reason}" if reason and mode == "exact" else "")
        yield name, f"{low} to {high}; {text}"
    yield "loss", loss_text(document)
    if document["bytes_constants"]:
        yield "constants", data_size(document["bytes_constants"])
    yield "compared", checks_text(document)


def loss_text(document: Mapping[str, Any]) -> str:
    """Return the predicted loss compared with libraries for single sizes."""
    loss = document["loss"]
    largest = f"{loss['largest']:.2f} ({sizes_text(loss['at'])})"
    return f"{loss['mean']:.2f} times a library for the size on average, at most {largest}"


def checks_text(document: Mapping[str, Any]) -> str:
    """Return how the library's outputs compare with the model's."""
    checks = document["checks"]
    if not checks:
        return "no"
    wrong = [check for check in checks if not check["verified"]]
    if wrong:
        return f"WRONG at {'; '.join(sizes_text(check['sizes']) for check in wrong)}"
    error = max(check["max_error"] for check in checks)
    size = f"largest error {error:.1e} of the largest magnitude"
    sizes = [check["sizes"] for check in checks]
    ends = [{name: ends[k] for name, ends in document["ranges"].items()} for k in (0, 1)]
    included = ", both ends included" if all(end in sizes for end in ends) else ""
    return f"equal to the model at {plural(len(checks), 'size')}{included} ({size})"


def library_lines(document: Mapping[str, Any], title: str) -> list[str]:
    """Return the lines about a library that was written, or about one of its variants."""
    ranges = ", ".join(f"{name}={low}..{high}" for name, (low, high) in document["ranges"].items())
    sizes = plural(len(document["instances"]), "size")
    constants = data_size(document["bytes_constants"])
    return [
        f"{title}: {ranges}, kernels for {sizes}, {constants} of constants",
        f"predicted: {loss_text(document)}",
        f"verified: {_execution_text(document, document.get('cpu'))}",
    ]


def _execution_text(document: Mapping[str, Any], cpu: Mapping[str, Any] | None) -> str:
    """Return what was verified, and how a library for another processor was executed."""
    if cpu is not None and cpu["executed"] is None:
        return f"not executed here: {cpu['reason']}"
    operators = [o for i in document["instances"] for o in i["network"]["operators"]]
    is_right = all(o["verified"] is not False for o in operators)
    text = "every operator equal to its definition" if is_right else "WRONG operators"
    text += f", {checks_text(document)}"
    if cpu is None or cpu["executed"] == "here":
        return text
    lacking = [
        f"{phrase} {'; '.join(map(sizes_text, cpu[key]))}"
        for key, phrase in (("left_out", "kernels for"), ("unchecked", "outputs at"))
        if cpu[key]
    ]
    rest = f", but for what takes the emulator too long: {', '.join(lacking)}" if lacking else ""
    return f"{text}; emulated{rest}"
