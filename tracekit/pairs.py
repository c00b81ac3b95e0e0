"""The clean run of a pair: what the timed one is set against."""

from collections.abc import Sequence
from pathlib import Path

from tracekit.bench import decode_tok_s
from tracekit.captured import Captured
from tracekit.errors import TracekitError


def clean_tok_s(captures: Sequence[Captured]) -> tuple[float, Path] | None:
    """Return the tokens per second of decoding that the clean run of a pair printed, and in which log.

    None if these captures are not the timed run of one pair.

    Raises:
        UsageError: the clean run printed none, or several.
        TracekitError: it did not end well, or was timed all the same.
    """
    if len(captures) != 1 or (clean := captures[0].clean) is None:
        return None
    folder = captures[0].folder.parent / "clean"
    if not clean.complete:
        raise TracekitError(f"{folder}: this run did not end well")
    if lines := clean.timing_lines:
        raise TracekitError(f"{folder}: this run printed {lines:,} timing lines, so it is not clean")
    end = next(process for process in clean.processes if process.name == clean.end)
    log = folder / next(log.file for log in end.logs if log.stream == "stdout")
    return decode_tok_s(log), log
