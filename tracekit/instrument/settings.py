"""The environment variables that steer the timing of vLLM, read once per process."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tracekit.errors import UsageError
from tracekit.instrument.vllm_plugin import SWITCH


@dataclass(frozen=True)
class Settings:
    """What to time and what to print. The defaults hold where a variable is not set."""

    sync: bool = False
    """Wait for the device before and after every region (``_SYNC=1``): device time, and a slower run."""
    rank: str | None = None
    """Time this process only if it is of this rank (``_RANK``); the text must be equal."""
    print_every: int = 0
    """Print every Nth call of a label (``_PRINT_EVERY``); 1 prints all, 0 none."""
    skip_first: int = 0
    """Neither count nor print the first N calls of a label (``_SKIP_FIRST``)."""
    summary: bool = True
    """Print totals when the process ends (``_SUMMARY``; off with ``0``)."""
    step_summary: bool = False
    """Print one line per model pass (``_STEP_SUMMARY=1``)."""
    step_every: int = 1
    """Of these lines, print every Nth (``_STEP_EVERY``); 0 prints none."""
    step_skip_first: int = 0
    """Do not print the lines of the first N passes (``_STEP_SKIP_FIRST``)."""
    label_regex: re.Pattern[str] | None = None
    """Time only labels in which this is found (``_LABEL_REGEX``)."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the variables. Raises `UsageError` naming the variable, its value, and what it should be."""
        pattern = _text(environ, "LABEL_REGEX")
        return cls(
            sync=_text(environ, "SYNC") == "1",
            rank=_text(environ, "RANK"),
            print_every=_number(environ, "PRINT_EVERY", cls.print_every),
            skip_first=_number(environ, "SKIP_FIRST", cls.skip_first),
            summary=_text(environ, "SUMMARY") != "0",
            step_summary=_text(environ, "STEP_SUMMARY") == "1",
            step_every=_number(environ, "STEP_EVERY", cls.step_every),
            step_skip_first=_number(environ, "STEP_SKIP_FIRST", cls.step_skip_first),
            label_regex=_pattern(pattern) if pattern else None,
        )

    def wants_rank(self, rank: str) -> bool:
        """Say whether a process of this rank is timed."""
        return self.rank is None or self.rank == rank

    def wants_label(self, label: str) -> bool:
        """Say whether regions of this label are timed."""
        return self.label_regex is None or self.label_regex.search(label) is not None


def _text(environ: Mapping[str, str], name: str) -> str | None:
    """Return the value, or None if the variable is not set or empty."""
    return environ.get(f"{SWITCH}_{name}") or None


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = _text(environ, name)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]+", value.strip()):
        raise UsageError(f"{SWITCH}_{name}={value}: expected a whole number, 0 or more")
    return int(value)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{SWITCH}_LABEL_REGEX={text}: not a regular expression: {error}") from error
