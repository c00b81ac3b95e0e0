"""What a dialect is: a declaration of how one kind of timing line is printed.

A record opens with the dialect's marker and reads::

    <marker> <head><cut><number>[ <key>=<number>...][ <unknown key>=<value>...]

The *head* repeats (a decode log of two million lines has under a thousand distinct heads), the numbers behind
the *cut* do not. So a head is parsed once, by a regular expression with named groups, and only numbers are read
per line. Everything is declared; only torn text needs code (`recover`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

Unit = Literal["us", "ms", "ns", "count", "int"]
Kind = Literal["event", "summary", "step"]

#: How a number of each unit is printed. Six decimals stand in ``%.6f`` and nothing else can follow them.
_NUMBER: Mapping[Unit, str] = {
    "us": r"\d+",
    "ns": r"\d+",
    "count": r"\d+",
    "int": r"-?\d+",
    "ms": r"\d+(?:\.\d+)?(?:e[-+]?\d+)?",
}

#: Longest duration that a 64-bit float holds to the nanosecond (104 days).
MAX_NS = 2**53


@dataclass(frozen=True, slots=True)
class Field:
    """A number of the record: its key as printed, the column it becomes, its unit."""

    key: str
    column: str
    unit: Unit
    #: Exact pattern of the number, where it is narrower than the unit's.
    pattern: str = ""

    @property
    def regex(self) -> str:
        """The pattern of the number, without a group."""
        return self.pattern or _NUMBER[self.unit]

    def value(self, text: pl.Expr) -> pl.Expr:
        """Return the number as Int64 (durations in ns); null where it does not fit."""
        if self.unit in ("count", "int", "ns"):
            return text.cast(pl.Int64, strict=False)
        if self.unit == "us":
            us = text.cast(pl.Int64, strict=False)
            return pl.when(us <= MAX_NS // 1000).then(us * 1000)
        # Printed decimals of a millisecond: rounding the product gives the printed nanosecond exactly.
        ns = (text.cast(pl.Float64, strict=False) * 1e6).round()
        return pl.when(ns <= MAX_NS).then(ns.cast(pl.Int64, strict=False))


@dataclass(frozen=True, slots=True)
class Dialect:
    """The declaration of one kind of record."""

    name: str
    #: Dialects whose records describe the same thing: its events, summaries and steps.
    family: str
    kind: Kind
    #: Opens every record; unique over all dialects.
    marker: str
    #: What must follow the marker in a real record (regular expression); else it is prose or quoted source.
    opening: str
    #: Between the head and its numbers.
    cut: str
    #: The head behind the marker, whole, with named groups (regular expression).
    head: str
    #: The numbers in printed order: the first stands right behind the cut.
    fields: tuple[Field, ...]
    #: Numbers that some instruments append as ``key=value``.
    trailing: tuple[Field, ...] = ()
    #: Columns of the head from its named groups: op, name and, where printed, device, rank, shape, tokens, ...
    columns: Mapping[str, pl.Expr] = field(default_factory=dict)
    #: Literals that must appear in this order: tells what a refused record lacks.
    expects: tuple[str, ...] = ()
    #: Lines with the marker that carry no record (``begin``), as a regular expression behind the marker.
    structure: str = ""
    clock: str = "host-wait"
    #: What a printed duration is rounded to.
    resolution_ns: int = 1
    #: Whether records can only be understood together: regions that print after the regions inside them.
    whole_stream: bool = False
    #: Column of the head that tells the process (``process`` is the rank as printed); else the log's name does.
    process: Literal["", "process", "device"] = ""
    #: How model passes are found: by the layers of a graph, by the phases of a runner, by counting pairs of kernels, or
    #: not at all.
    passes: Literal["", "layers", "regions", "pairs"] = ""
    #: What switches the instrument on, and what the numbers mean, for people.
    switch: str = ""
    meaning: str = ""
    sample: str = ""
    #: Unpacks records whose body is JSON: a frame of records (line, sub, pid, text) to rows and steps.
    unpack: "Callable[[pl.DataFrame], Unpacked] | None" = None
    #: Rebuilds a torn stream's records from all its lines (line, text); None where it cannot.
    recover: "Callable[[pl.DataFrame], Recovered | None] | None" = None

    @property
    def plain_number(self) -> int:
        """What to multiply whole numbers with to get ns, if a record is a head, the cut and one of them; else 0."""
        first, *others = self.fields
        if others or first.unit not in ("us", "ns") or len(self.marker) < 8 or len(self.cut) > 8:
            return 0
        return 1000 if first.unit == "us" else 1

    @property
    def head_regex(self) -> str:
        """The whole head, marker included."""
        return "^" + re.escape(self.marker) + self.head + "$"

    @property
    def tail_regex(self) -> str:
        """What stands behind the cut: numbers, trailing pairs, and foreign text that cannot be part of them."""
        first, *others = self.fields
        numbers = f"(?P<{first.column}>{first.regex})"
        numbers += "".join(f" {re.escape(f.key)}=(?P<{f.column}>{f.regex})" for f in others)
        return numbers + r"(?P<pairs>(?: [A-Za-z_][\w.]*=\S+)*)(?P<rest>\s*(?:[^\s\d.eE+\-].*)?)$"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `recover` rebuilt of a torn stream.

    Attributes:
        events: line UInt32 (of the value), device Int16 (null: not decided), kernel String (null: not decided), dur_ns
            Int64, recovered Boolean (false: it stood intact).
        rejects: line UInt32, reason String, text String: values that could not be decided.
        opened: records that were begun.
    """

    events: pl.DataFrame
    rejects: pl.DataFrame
    opened: int


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What records with a JSON body hold.

    Attributes:
        rows: aggregates of a step: line, sub, pid, text (the head, in the form that `Dialect.head` reads), step,
            calls, total_ns, mean_ns, max_ns.
        steps: columns of `frame.STEPS` that are known, and ``process``.
        read: per record, whether its body could be read.
    """

    rows: pl.DataFrame
    steps: pl.DataFrame
    read: pl.Series
