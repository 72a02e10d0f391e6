"""Every error the package raises on purpose: what is wrong, where, and the remedy, in one line.

Results are not errors: a workload that cannot be embedded, a search stopped by a limit and a
measurement that failed are values that the library returns.
"""


class CpembedError(Exception):
    """Base of all errors; ``str(error)`` is one line for the person at the terminal."""

    exit_code = 2


class SpecError(CpembedError):
    """A hardware specification or a constraint set is wrong (file, key, allowed values)."""


class WorkloadError(CpembedError):
    """A workload's expression, sizes or dtypes are wrong."""


class ProgramError(CpembedError):
    """An accelerator's program is wrong: its text, its bytes, or what it would do."""


class TransformError(CpembedError):
    """A rewrite was asked for where it does not apply."""


class LoweringError(CpembedError):
    """A proven program cannot be expressed by the back end that was asked for."""

    exit_code = 5


class BackendUnavailable(CpembedError):
    """The machine lacks the device or the CPU feature that a back end needs."""

    exit_code = 5


class MeasurementError(CpembedError):
    """A measurement gave no usable figure before its limit."""

    exit_code = 4


class InvariantError(CpembedError):
    """A result failed one of the package's own checks: always a bug in the package."""

    exit_code = 1
