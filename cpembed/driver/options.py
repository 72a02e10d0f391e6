"""Options of the commands: one frozen dataclass for each.

The command line's options, the keywords of the library's functions and the JSON echo are all made
from these fields, so an option is written, documented and given its default once. A class inherits
the options that its command shares with others.

>>> RunOptions(relu=True, rank=2).named_candidate
True
>>> merged(RunOptions, None, {"rnak": 2})
Traceback (most recent call last):
    ...
TypeError: no option 'rnak'; did you mean 'rank'?
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from cpembed.codegen.epilogue_request import EpilogueRequest
    from cpembed.embedding.constraint_set import ConstraintSet, Weights

DEFAULT_CONSTRAINTS = "in_place_padded"
"""Narrow preset: any size fits, and no operand is copied beyond padding."""

WIDER = "fused"
"""Wider preset: an axis of the instruction may be fed from any axis, or from several fused into
one."""

BackendName = Literal["auto", "native", "generic"]
MethodName = Literal["auto", "implicit", "explicit", "winograd_2x2", "winograd_4x4"]
FormulationName = Literal["auto", "digits", "scalar", "portfolio"]
RankBy = Literal["overheads", "estimate"]
Objective = Literal["cycles", "bytes", "energy", "edp"]
ObjectiveName = Literal["total", "kernel"]

METHODS: tuple[MethodName, ...] = get_args(MethodName)
FORMULATIONS: tuple[FormulationName, ...] = get_args(FormulationName)

OUTPUTS = ("requantized", "int32", "int8", "uint8", "float32", "bfloat16", "float16")
"""Names of what is stored of the sums."""

LARGEST_SEED = 2**31 - 1
"""Largest seed that the solver takes: its seeds are signed 32-bit integers."""

LONGEST_TIMEOUT = 1e8
"""Longest time limit in seconds, three years; operating systems wait for no longer."""

REQUIRED = dataclasses.MISSING
"""Default of an option that a command has to be given."""

Options = TypeVar("Options", bound="DataclassInstance")


def option(
    default: Any,
    text: str,
    *,
    flag: str | None = None,
    metavar: str | None = None,
    choices: Sequence[str] | None = None,
    limits: tuple[float | None, float | None] | None = None,
    hidden: bool = False,
    **attributes: Any,
) -> Any:
    """Return a dataclass field that is also an option of the command line.

    Parameters
    ----------
    default : Any
        Value of the option where a command is not given it; :data:`REQUIRED` if it has to be.
    text : str
        Help text, a sentence or two; defaults that are not a plain value are named in it.
    flag : str, optional
        Name on the command line, such as ``--id`` or ``-o --directory``; by default the field's
        name.
    metavar : str, optional
        Placeholder for the value in the help text.
    choices : sequence of str, optional
        Admissible values.
    limits : tuple of float or None, optional
        Smallest and largest admissible number, both inclusive.
    hidden : bool
        True for an option of the library only.
    **attributes : Any
        Further attributes of the option on the command line, by click's names: ``multiple``, for
        instance.
    """
    metadata = {
        "text": text, "flag": flag, "metavar": metavar, "choices": choices, "limits": limits,
        "hidden": hidden, "attributes": attributes,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a search for embeddings."""

    constraints: str | ConstraintSet | None = option(
        None,
        "Constraint set: a shipped name or a TOML file.  [default: in_place_padded, and fused too "
        "where that uses the instruction badly]",
        metavar="NAME|FILE",
    )
    weights: Weights | None = option(
        None, "Weights of the MAC and the data overhead in the score.", metavar="MAC,DATA"
    )
    timeout: float | None = option(
        None,
        "Stop searching after S seconds and use what was found.",
        metavar="S",
        limits=(0, LONGEST_TIMEOUT),
    )
    seed: int | None = option(
        0,
        "Seed of the search and of random data; None takes fresh data.",
        metavar="N",
        limits=(0, LARGEST_SEED),
    )
    search: FormulationName = option(
        "auto",
        "The model to search: over digits, or over scalar operations in one order of axes, or in "
        "several at a time. The answer is the same.",
        choices=FORMULATIONS,
    )


@dataclass(frozen=True, kw_only=True)
class SolveOptions(SearchOptions):
    """Options of ``solve``."""

    top: int | None = option(
        5, "Return the best K candidates; None returns all.", metavar="K", limits=(1, None)
    )


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(SolveOptions):
    """Options of ``solve --estimate``."""

    machine: str | None = option(
        None,
        "The machine to estimate for.  [default: the first one of the target]",
        metavar="NAME",
    )
    rank_by: RankBy = option(
        "overheads",
        "What orders the candidates; with estimate those of the least time come first.",
        choices=get_args(RankBy),
    )
    objective: Objective = option(
        "cycles",
        "What the tiles are to have the least of; edp is the product of energy and cycles.",
        choices=get_args(Objective),
    )


@dataclass(frozen=True, kw_only=True)
class CandidateOptions(SearchOptions):
    """Options that name the candidate that is shown or runs."""

    rank: int | None = option(
        None,
        "The candidate of this place in the ranking.  [default: what was tuned; else the fastest "
        "by the target's estimate of the best 8, where it compares them, or the best]",
        metavar="K",
        limits=(1, None),
    )
    identifier: str | None = option(
        None,
        "The candidate with this id, or the only one that begins so, wherever it was printed: by "
        "solve, run, explain, tune or bench.",
        flag="--id",
        metavar="ID",
    )
    untuned: bool = option(False, "Do not use what `cpembed tune` has found.")

    @property
    def named_candidate(self) -> bool:
        """True if a candidate is asked for: by its rank, its id, or weights of the ranking."""
        return not (self.rank is None and self.weights is None and self.identifier is None)


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(CandidateOptions):
    """Options of ``explain``: the candidate, or the method whose kernel ``run`` chooses."""

    rank: int | None = option(
        None, "Which candidate, 1 being the best.  [default: 1]", metavar="K", limits=(1, None)
    )
    method: MethodName = option(
        "auto", "How a convolution is computed, as for `run`.", choices=METHODS
    )


@dataclass(frozen=True, kw_only=True)
class KernelOptions(CandidateOptions):
    """Options of a kernel: its candidate and back end, and what it stores of the sums."""

    backend: BackendName = option(
        "auto",
        "native: the target's instruction, executed or simulated; generic: portable code; auto: "
        "what works here.",
        choices=get_args(BackendName),
    )
    machine: str | None = option(
        None,
        "The machine whose estimates choose the embedding and the schedule, of targets that have "
        "several (Tensor Cores).  [default: the first one of the target]",
        metavar="NAME",
    )
    output: str | None = option(
        None,
        "What is stored of the sums: this type, integers saturated.  [default: the sums]  Where "
        "the target itself converts: requantized is shifted and clipped to int8, int32 all bits, "
        "int8 the low eight.  [default: requantized; int8 where that is the output's type]",
        choices=OUTPUTS,
    )
    bias: bool = option(
        False,
        "Adds a vector, an element a channel: random, or given with a library's weights (not on a "
        "simulated target).",
    )
    scale: bool = option(
        False,
        "Multiplies by a float32 vector likewise, as requantization does (not on a simulated "
        "target).",
    )
    relu: bool = option(False, "Negative results are stored as 0 (not on a simulated target).")
    chain: str | None = option(
        None,
        "Expression of x, the float32 result of the options above, and of residual, a random "
        "tensor of the output's type and shape: gelu(x) + residual, for instance (not on a "
        "simulated target).",
        metavar="EXPR",
    )
    second: str | None = option(
        None,
        "Another output of the same sums: its type and an expression as for --chain, float16=x for "
        "instance (Tensor Cores only).",
        metavar="TYPE=EXPR",
    )
    shift: int | None = option(
        None,
        "Bits by which integer sums are shifted right before they are stored as int8.  [default: "
        "none; of requantized ones 7 and half the binary logarithm of the products in a sum]",
        metavar="N",
        limits=(0, 31),
    )

    @property
    def storing(self) -> EpilogueRequest:
        """Output of the kernel, before a target gives it a form of its own."""
        from cpembed.codegen.epilogue_request import EpilogueRequest
        from cpembed.driver.epilogue_language import parse_expression, parse_second

        return EpilogueRequest(
            self.output,
            self.shift,
            self.bias,
            self.scale,
            self.relu,
            None if self.chain is None else parse_expression(self.chain),
            None if self.second is None else parse_second(self.second),
        )

    @property
    def free_choice(self) -> bool:
        """True if an alternative target may run: no set, candidate or back end is named."""
        return self.constraints is None and self.backend == "auto" and not self.named_candidate


@dataclass(frozen=True, kw_only=True)
class RunOptions(KernelOptions):
    """Options of ``run``: which kernel, by which method, and the files that it writes."""

    method: MethodName = option(
        "auto",
        "How a convolution is computed.  implicit: its windows are walked by the kernel; explicit: "
        "im2col, then a product of matrices; winograd: transforms of tiles of so many outputs "
        "around a product; auto: the fastest by estimate of floats, implicit of integers.",
        choices=METHODS,
    )
    measure: bool = option(
        False,
        "Measure schedules first, as `tune` does, and run the fastest: on a GPU the first three by "
        "the estimate.",
    )
    trace: Path | None = option(
        None,
        "Write a timeline, of targets that have one, for ui.perfetto.dev or chrome://tracing.",
        metavar="FILE",
    )
    save: Path | None = option(
        None,
        "Save what ran: a folder with a kernel's assembly and layouts, or on Tensor Cores with "
        "kernels that check themselves; of a simulated target a program with its inputs, a "
        "directory, or a zip if the name ends in .zip.",
        metavar="PROGRAM",
    )


@dataclass(frozen=True, kw_only=True)
class BuildOptions(KernelOptions):
    """Options of ``build`` for a workload."""

    name: str = option("kernel", "Name of the library, with which its functions begin.")
    method: MethodName = option(
        "implicit",
        "How a convolution is computed, as for `run`; the library then transforms the weights. For "
        "a model: as for `network`, by default auto.",
        choices=METHODS,
    )
    threads: int = option(
        0,
        "Threads of the library where whoever opens it does not say; 0: the cores of the process.",
    )
    torch: bool = option(False, "With an operator of PyTorch.")


@dataclass(frozen=True, kw_only=True)
class TuneOptions(SearchOptions):
    """Options of ``tune``: what it tries, how often, and where it is kept."""

    constraints: str | ConstraintSet | None = option(
        None,
        "Constraint set of the embeddings.  [default: complete, and the best of in_place_padded]",
        metavar="NAME|FILE",
    )
    trials: int | None = option(
        None,
        "Schedules to measure, those that are kept from earlier calls included.  [default: 64; on "
        "a GPU 3]",
        metavar="N",
        limits=(1, None),
    )
    timeout: float | None = option(
        None,
        "Stop after S seconds, the search for embeddings included, and use what was found.",
        metavar="S",
        limits=(0, LONGEST_TIMEOUT),
    )
    candidates: int = option(
        32, "How many of the best embeddings take part.", metavar="K", limits=(1, None)
    )
    output: str | None = option(
        None,
        "Where times depend on it: what is stored of the sums, as for `run`; each is tuned by "
        "itself.  [default: requantized; int8 where that is the output's type; on a GPU the sums]",
        choices=OUTPUTS,
    )
    machine: str | None = option(
        None,
        "The described machine whose estimates propose the schedules, and for which they are kept, "
        "of targets that have several (Tensor Cores).  [default: the one that the GPU here is]",
        metavar="NAME",
    )
    objective: ObjectiveName | None = option(
        None,
        "CPU: what is to be short: latency, packing and unpacking together, or latency alone.  "
        "[default: total]",
        choices=get_args(ObjectiveName),
    )
    database: Path | None = option(
        None,
        "Folder that keeps what is measured; `run` and `bench` look in the default one.  "
        "[default: $CPEMBED_TUNE_DIR, else a folder of the user's data]",
        metavar="DIR",
    )


@dataclass(frozen=True, kw_only=True)
class BenchOptions(KernelOptions):
    """Options of ``bench``: the layers of a suite, their kernels, and where rows are kept."""

    constraints: str | ConstraintSet | None = option(
        None,
        "Constraint set of the best candidate, beside `strict`, which is always tried.  [default: "
        "in_place_padded]",
        metavar="NAME|FILE",
    )
    timeout: float | None = option(
        None, "Stop each search after S seconds.", metavar="S", limits=(0, LONGEST_TIMEOUT)
    )
    output: str | None = option(
        None,
        "What is stored of the sums: this type, integers saturated (not on a simulated target).  "
        "[default: the sums; beside a library what its fastest form stores, and to be said with "
        "the steps below]",
        choices=("int32", "int8", "uint8", "float32", "bfloat16", "float16"),
    )
    layers: str | None = option(None, "Only these layers of the suite.", metavar="0,3,10-20")
    shapes: Mapping[str, Sequence[int]] | None = option(
        None, "Sizes of a model's inputs that it leaves open.", hidden=True
    )
    execute: bool = option(True, "False to solve only.", hidden=True)
    layout: str = option(
        "NCHW",
        "Channels before or after the image (NDHWC in 3-D, NWC in 1-D), or in blocks of any "
        "number; not every operator has layouts.",
        metavar="NCHW|NHWC|NCHW16c",
    )
    method: MethodName = option(
        "implicit", "How convolutions are computed, as for `run`.", choices=METHODS
    )
    baselines: Sequence[str] = option((), "Libraries to run beside each kernel.", hidden=True)
    fresh: bool = option(False, "Start over; without it, completed rows are kept.")
    results: Path | None = option(
        None, "Folder that keeps completed rows.  [default: the user's cache folder]", metavar="DIR"
    )


def merged(kind: type[Options], options: Options | None, keywords: Mapping[str, Any]) -> Options:
    """Return the options of a call that is given an options object, keywords, or both.

    Parameters
    ----------
    kind : type
        Class of the options.
    options : SearchOptions, optional
        Options of the call; the defaults where it is None.
    keywords : mapping of str to Any
        Options by name, which take precedence.

    Raises
    ------
    TypeError
        If a keyword is no option.
    """
    names = [field.name for field in dataclasses.fields(kind)]
    for name in keywords:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f": options are {', '.join(names)}"
            raise TypeError(f"no option {name!r}{hint}")
    return dataclasses.replace(options or kind(), **keywords)


def shared(options: SearchOptions, kind: type[SearchOptions]) -> dict[str, Any]:
    """Return the values of those options that a class has, for options of another command."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}
