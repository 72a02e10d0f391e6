"""Proof that one program of an accelerator computes its specification (translation validation).

Whatever made the program is not trusted, and neither are its claims: ``contents`` and ``meaning``
of each instruction of the text only say what to look for. Trusted are the description of the
machine, the specification, the loader (which fills buffers as
:class:`~cpembed.accelerator.program.MainTensor` says), isl, numpy and this package.

**Values.** An element of a tensor that statements write in turn has a *level*: the number of points
of these statements, in their order, that its value includes. A *complete* element includes those of
all statements that precede the reader. What lies outside of a tensor's shape is the fill of its
margins, or a value of which nothing is claimed. Numbers are values too.

**Theorem.** If the obligations below hold, every element of every output, in the end, is what
:meth:`~cpembed.accelerator.specification.Specification.evaluate` defines, inputs and constants are
unchanged, margins of outputs hold their fill but for those that the result lists, and no execution
reads what was never written. Sums of floats are those of the specification but for the order and
rounding of their additions (the result's ``assumptions`` say so); all else is equal bit for bit.

**Obligations.**

1. *places*: every operand lies inside of its memory, sizes are ones that the instruction takes,
   operands that must be in different banks are, elements of an output are at different places, and
   an output overlaps an input only where the instruction allows it, element on element.
2. *registers*: each read of a register, as an operand or as a stride, has a last write, whose
   number it is. This comes first, since strides decide where everything else lies.
3. *dataflow*: each read of an element has a last write in the order of the text, and what that
   write is claimed to have left there is what the reader claims to find; both hold it in the same
   type. In main memory the loader's write comes first: the element that the layout names, or the
   fill.
4. *meaning*: at each point of an instruction that is a point of the statement, the elements that it
   reads and writes are those that the statement reads and writes there, inputs are complete, and
   the two expressions have one normal form (:mod:`~cpembed.accelerator.proof.terms`). Where the
   statement reads outside of a tensor, the program reads zero. At a point that is none of the
   statement's, the instruction writes an element outside of the tensor, or adds a number that
   changes nothing, such as a product with a margin's zero.
5. *sums*: of each element of a reduction, executions form a chain: it begins once (anew, from a
   neutral number, or from what the statement before it left, complete), each other execution goes
   on from the partial result of its predecessor, and every point of the statement is combined in it
   once (a maximum or minimum: at least once).
6. *outputs*: in the end every element of every output lies in its place, complete.
7. *order*: conflicting accesses are executed in the order of the text. Machines that execute in
   order, or whose hardware interlocks conflicting accesses, guarantee it; with channels it is shown
   that signals order each pair (:mod:`~cpembed.accelerator.proof.enumerated`).

**Why they imply the theorem.** By 7, each read yields what the last write before it, in the order
of the text, has left, whatever else the machine may reorder. By induction over that order every
place holds the value that its last write claims. The loader establishes it. A move copies an
element together with its level, in a type that holds every value of it. An execution that computes
reads, by the induction hypothesis and 3, the elements that it claims; by 4 these are the
statement's, and equal expressions of equal values are equal. So an element of a statement without
reduction is right. Of a reduction, by 5, a partial result is the combination of the different
points of its chain so far: these operations are associative and commutative (exactly, modulo 2^n
for sums of integers; a saturating sum counts only if no partial sum can leave its type, which is
shown by bounds), so that at the level of all points it is the statement's result. Readers of a
complete element find that level. 6 then says that outputs are complete, and 1 that no write touched
anything that is not accounted for.

**Mechanisms.** Obligations 1 to 6 are decided by isl for all executions at once
(:mod:`~cpembed.accelerator.proof.dataflow`). There, 3 is isl's dataflow analysis, and the chain of
5 is shown without following it, for each element: (a) it begins once, (b) no partial result is gone
on from twice, (c) the map from executions to points is injective and reaches all points, and (d) a
reader reads what nobody goes on from. By well-foundedness every execution of a chain leads back to
a beginning; with (a) and (b) the executions of an element are one path, by (c) with all points, and
the only partial result that nobody goes on from is the path's end.

isl may leave a question open: it ran out of its budget, or a check is stricter than it has to be
(values in margins, spilled partial sums, sizes in strides, types of different widths in one memory,
channels). Then the program is enumerated (:mod:`~cpembed.accelerator.proof.enumerated`): it is
executed in the order of its text on tags in place of numbers, each the name and level of a value.
That decides the same obligations one execution at a time, exactly, for the program's sizes, and
names the execution that is wrong. A result says which mechanism decided. Programs too large for it
(:data:`~cpembed.accelerator.proof.instances.LARGEST_TRACE` executions) are refused where isl leaves
them open.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from cpembed.accelerator.program import Program
from cpembed.accelerator.proof.dataflow import decide
from cpembed.accelerator.proof.enumerated import Enumeration
from cpembed.accelerator.proof.result import (
    Obligation,
    ObligationError,
    ProgramProof,
    UndecidedError,
)
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.errors import InvariantError
from cpembed.hw.isa import Synchronization
from cpembed.time_limit import OutOfTime, check_time, within

__all__ = ["Obligation", "ProgramProof", "prove", "require"]

_VALUES = ("places", "registers", "dataflow", "meaning", "sums", "outputs")
"""Obligations that one mechanism decides in one pass."""


def prove(
    program: Program,
    *,
    spoiled_margins: Collection[str] = (),
    isl_seconds: float = 20.0,
) -> ProgramProof:
    """Decide whether a program computes its specification.

    Parameters
    ----------
    program : Program
        The program, with its specification and claims.
    spoiled_margins : collection of str
        Inputs whose margins may hold anything, as the proof of the program that wrote them says
        (:attr:`ProgramProof.spoiled_margins`). Margins of all others hold their fill.
    isl_seconds : float
        Seconds of the processor that isl may take before the program is enumerated; 0 to enumerate
        at once.

    Returns
    -------
    ProgramProof
        The obligations that hold, or a refusal in one line: a wrong program is a result, no error.
    """
    try:
        tensors = Tensors.from_program(program, frozenset(spoiled_margins))
        return _proof(tensors, isl_seconds)
    except ObligationError as error:
        return ProgramProof(program.name, (), str(error))


def require(program: Program, *, spoiled_margins: Collection[str] = ()) -> ProgramProof:
    """Return the proof of a program; ``spoiled_margins`` as in :func:`prove`.

    Raises
    ------
    InvariantError
        If the program is not proven.
    """
    proof = prove(program, spoiled_margins=spoiled_margins)
    if not proof.holds:
        raise InvariantError(
            f"the program {program.name} is not proven: {proof.refusal}; please report this"
        )
    return proof


def _proof(tensors: Tensors, isl_seconds: float) -> ProgramProof:
    started, reason = time.perf_counter(), ""
    if isl_seconds > 0:
        try:
            spoiled = within(isl_seconds, lambda: decide(tensors), is_processor_time=True)
            return _result(tensors, "isl", started, spoiled)
        except UndecidedError as error:
            reason = str(error)
        except OutOfTime:
            # A surrounding limit is nobody's but the caller's.
            check_time()
            reason = f"isl took more than {isl_seconds:g} s of the processor"
    try:
        enumeration = Enumeration(tensors)
        enumeration.run()
    except UndecidedError as error:
        unproven = f"not proven: {reason}; " if reason else ""
        raise ObligationError(f"{unproven}{error}, too large to be enumerated") from error
    return _result(tensors, "enumeration", started, enumeration.spoiled_margins)


def _result(
    tensors: Tensors, mechanism: str, started: float, spoiled_margins: Sequence[str]
) -> ProgramProof:
    program, seconds = tensors.program, time.perf_counter() - started
    is_traced = program.machine.synchronization is Synchronization.CHANNELS
    order = Obligation("order", "trace" if is_traced else "machine", seconds if is_traced else 0.0)
    return ProgramProof(
        program.name,
        (*(Obligation(name, mechanism, seconds) for name in _VALUES), order),
        "",
        tensors.assumptions,
        tuple(dict.fromkeys(spoiled_margins)),
    )
