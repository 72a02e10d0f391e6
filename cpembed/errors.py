"""Errors that the package raises on purpose: one line with the problem, its place and the remedy.

Results are not errors: a workload that cannot be embedded, a search stopped by a limit and a
measurement that failed are values that the library returns.
"""

from __future__ import annotations

from signal import Signals

# Maximum numbers of characters, beyond any path or list of choices: longer text is an echo.
_LONGEST_WORD, _LONGEST_MESSAGE = 200, 600


def readable(message: str) -> str:
    r"""Return a message as one readable line, whatever input it quotes.

    Words that are too long, and then the line, lose their middle; characters that cannot be printed
    are escaped.

    >>> readable("k=" + "1" * 5000 + "\n is no size")
    'k=111111111111111111 … (5,002 characters) … 11111111111111111111 is no size'
    """
    words = " ".join(_cut(word, _LONGEST_WORD, 20, 20) for word in message.split())
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
    return _cut(printable, _LONGEST_MESSAGE, 320, 200)


def _cut(text: str, longest: int, head: int, tail: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:head]} … ({len(text):,} characters) … {text[-tail:]}"


class CpembedError(Exception):
    """Base of all errors; ``str(error)`` is one line for the person at the terminal."""

    exit_code = 2

    def __str__(self) -> str:
        return readable(super().__str__())


class SpecError(CpembedError):
    """A hardware specification or a constraint set is wrong (file, key, allowed values)."""


class WorkloadError(CpembedError):
    """A workload's expression, sizes or dtypes are wrong."""


class ModelError(CpembedError):
    """A model's file is wrong, or has something unsupported (file, operator, remedy)."""


class ProgramError(CpembedError):
    """An accelerator's program is wrong: its text, its bytes, or its behaviour."""


class ExecutionFault(CpembedError):
    """A kernel's behaviour is undefined on its machine: a data race, an access out of bounds."""

    exit_code = 1


class TransformError(CpembedError):
    """A rewrite does not apply."""


class LoweringError(CpembedError):
    """A back end cannot express a proven program."""

    exit_code = 5


class BackendUnavailable(CpembedError):
    """The machine lacks the device or the CPU feature that a back end needs."""

    exit_code = 5


class MeasurementError(CpembedError):
    """A measurement gave no usable number before its limit."""

    exit_code = 4


class DamagedStore(UserWarning):
    """A stored file, or rows of it, cannot be read: they are left out, and nothing fails."""


class InvariantError(CpembedError):
    """A result failed one of the package's own checks: always a bug in the package."""

    exit_code = 1


class CrashError(CpembedError):
    """Compiling or running generated code ended its process, or had to be ended with it.

    ``doing`` is the step in words; None before any step. ``killed`` is True for SIGKILL, which
    somebody else may have sent.
    """

    exit_code = 1
    doing: str | None = None
    killed: bool = False

    @classmethod
    def from_exit(cls, doing: str | None, code: int | None, reason: str) -> CrashError:
        """Return the error of a process that ended by itself.

        Parameters
        ----------
        doing
            The step in words.
        code
            The exit code as in ``Popen.returncode``.
        reason
            The last line of its output; empty if there is none.
        """
        name = f"exit code {code}"
        if code is not None and code < 0:
            # `Popen` reports a signal as its negative number.
            name = {signal.value: signal.name for signal in Signals}.get(-code, f"signal {-code}")
        explanation = {
            "SIGILL": "the processor lacks an instruction; `cpembed targets` prints what it is "
            "taken for",
            "SIGKILL": "out of memory, or killed by somebody",
        }.get(name, "a bug of the compiler, the kernel or the target")
        error = cls._while(doing, f"ended in {name}: {reason or explanation}")
        if name == "SIGILL":
            # The kernel is for another processor: no bug of the package.
            error.exit_code = BackendUnavailable.exit_code
        # Perhaps only for lack of memory at that moment: a second attempt may succeed.
        error.killed = name == "SIGKILL"
        return error

    @classmethod
    def too_long(cls, doing: str | None, variable: str) -> CrashError:
        """Return the error of a step that was ended; an environment ``variable`` sets its limit."""
        text = f"took too long and was ended; {variable}=SECONDS in the environment allows more"
        return cls._while(doing, text)

    @classmethod
    def no_memory(cls, doing: str | None) -> CrashError:
        """Return the error of a step that ran out of memory."""
        return cls._while(doing, "ran out of memory; take a smaller workload")

    @classmethod
    def _while(cls, doing: str | None, event: str) -> CrashError:
        error = cls(f"{doing or 'working on a kernel'} {event}")
        error.doing = doing
        return error
