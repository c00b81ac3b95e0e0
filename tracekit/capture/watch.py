"""Watching outputs as they pass: stall patterns, timing markers, the line that says a program is ready.

Literals only (a byte search runs at memory speed; a regular expression does not), except for readiness, which is
looked for only until it is found. Patterns are data: ``tracekit/rules/stalls.toml``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit import rules
from tracekit.errors import UsageError

#: Longest pattern: the end of each chunk is kept this long, to find what two reads cut in two.
PATTERN_BYTES = 256
_EVIDENCE_BYTES = 300


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that tells that a run goes nowhere."""

    #: Searched for as it stands, case-sensitive.
    text: str
    #: How often it must come before the run is stopped.
    times: int = 1
    #: How long the program then gets to end by itself, for the sake of its own last words.
    wait_s: float = 5.0
    meaning: str = ""


def patterns(extra: Sequence[str] = ()) -> tuple[Pattern, ...]:
    """Return the shipped stall patterns and, before them, those given as ``TEXT`` or ``TEXT:N`` (N times).

    Raises:
        UsageError: the file is not as its schema says, or a text is empty or too long.
    """
    found = [*map(_given, extra), *rules.load(Pattern, "stalls.toml", "pattern")]
    for pattern in found:
        if not 0 < len(pattern.text.encode()) <= PATTERN_BYTES or pattern.times < 1:
            raise UsageError(
                f"stall pattern {pattern.text!r}: needs 1 to {PATTERN_BYTES} bytes of text and a count above 0"
            )
    return tuple(found)


def _given(text: str) -> Pattern:
    """Read ``TEXT`` or ``TEXT:N``.

    >>> _given("device hung:3").text, _given("device hung:3").times, _given("error: x").text
    ('device hung', 3, 'error: x')
    """
    match = re.fullmatch(r"(.+):(\d+)", text, re.DOTALL)
    if match:
        return Pattern(match[1], int(match[2]), 1.0, "given on the command line")
    return Pattern(text, 1, 1.0, "given on the command line")


@dataclass(frozen=True, slots=True)
class Hit:
    """A stall pattern that has now come often enough; the line, and where it stands."""

    pattern: Pattern
    line: str
    stream: str
    byte_offset: int


@dataclass(slots=True)
class StallWatch:
    """Counts stall patterns over all streams of a run."""

    patterns: tuple[Pattern, ...]
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, pattern: Pattern, count: int) -> bool:
        """Add occurrences; True when this makes the pattern complete for the first time."""
        before = self.counts.get(pattern.text, 0)
        self.counts[pattern.text] = before + count
        return before < pattern.times <= before + count


@dataclass(slots=True)
class Watch:
    """What is looked for in one stream."""

    stream: str
    stalls: StallWatch
    markers: tuple[bytes, ...] = ()
    ready: re.Pattern[bytes] | None = None
    #: Occurrences of each of `markers`.
    marked: dict[bytes, int] = field(default_factory=dict)
    is_ready: bool = False
    #: The end of what has passed: for patterns across two reads, and as evidence.
    tail: bytes = b""
    _literals: tuple[tuple[Pattern, bytes], ...] = ()
    _line: bytes = b""

    def __post_init__(self) -> None:
        self._literals = tuple((p, p.text.encode()) for p in self.stalls.patterns)

    def feed(self, data: bytes, byte_offset: int) -> list[Hit]:
        """Look at the next bytes, which stand at this offset; return patterns that are complete now."""
        hits = []
        for pattern, text in self._literals:
            count, place = self._count(data, text)
            if count and self.stalls.add(pattern, count):
                hits.append(Hit(pattern, self._around(data, place), self.stream, max(0, byte_offset + place)))
        for marker in self.markers:
            self.marked[marker] = self.marked.get(marker, 0) + self._count(data, marker)[0]
        if self.ready is not None and not self.is_ready:
            self._look_for_ready(data)
        self.tail = (self.tail + data)[-4096:] if len(data) < 4096 else data[-4096:]
        return hits

    def _count(self, data: bytes, text: bytes) -> tuple[int, int]:
        """Return how often a text comes in what is new, and where first (before 0: it began in an earlier read)."""
        count, place = data.count(text), 0
        if count:
            place = data.find(text)
        reach = len(text) - 1
        if self.tail and reach:
            seam = self.tail[-reach:]
            if across := (seam + data[:reach]).count(text):
                count += across
                place = (seam + data[:reach]).find(text) - len(seam)
        return count, place

    def _around(self, data: bytes, place: int) -> str:
        """Return the line in which a text was found, as far as it has come."""
        whole = self.tail + data
        place += len(self.tail)
        start = max(whole.rfind(b"\n", 0, place), whole.rfind(b"\r", 0, place)) + 1
        end = whole.find(b"\n", place)
        line = whole[start : end if end >= 0 else len(whole)]
        return line[:_EVIDENCE_BYTES].decode("utf-8", "replace").strip()

    def _look_for_ready(self, data: bytes) -> None:
        assert self.ready is not None
        text = self._line + data
        self.is_ready = self.ready.search(text) is not None
        self._line = text[text.rfind(b"\n") + 1 :][-65536:]

    def last_line(self) -> str:
        """Return the last line with any text in it, for evidence."""
        lines = [line.strip() for line in re.split(rb"[\r\n]", self.tail)]
        last = next((line for line in reversed(lines) if line), b"")
        return last[:_EVIDENCE_BYTES].decode("utf-8", "replace")
