"""The error of a capture that tracekit itself could not make."""

from tracekit.errors import TracekitError


class CaptureError(TracekitError):
    """`tracekit run` failed, not the program that it was to run (exit code 125)."""

    exit_code = 125
