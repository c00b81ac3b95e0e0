"""Errors that tracekit raises: one root, and the exit code that the command line turns each into.

Every message says where (``file:line`` where there is one) and what to do.
"""


class TracekitError(Exception):
    """Root of all errors of tracekit: something failed while running (exit code 1)."""

    exit_code = 1


class UsageError(TracekitError):
    """The caller asked for something that does not exist: a file, a column, a layout (exit code 2)."""

    exit_code = 2


class NothingRecognisedError(TracekitError):
    """The input was read, and no dialect found a record in it (exit code 3)."""

    exit_code = 3


class CoverageError(TracekitError):
    """``--strict`` was given and the coverage ledger has faults (exit code 4)."""

    exit_code = 4


class ConditionError(TracekitError):
    """A ``--fail-on`` condition holds (exit code 5)."""

    exit_code = 5


class OutputError(TracekitError):
    """An output could not be written (exit code 1)."""
