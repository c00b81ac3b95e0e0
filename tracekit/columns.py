"""The columns that rows can be grouped and filtered by, and their natural order."""

import re
from collections.abc import Sequence
from fnmatch import translate

import polars as pl

from tracekit.errors import UsageError
from tracekit.frame import EVENTS

#: What a table can be grouped by.
GROUPS = (
    "op", "name", "category", "layer", "worker", "stream", "rank", "shape",
    "device", "dialect", "phase", "tokens", "step", "run",
)  # fmt: skip


def check_columns(by: Sequence[str]) -> None:
    """Raise UsageError for a column that no table can be grouped by."""
    for column in by:
        if column not in GROUPS:
            raise UsageError(f"no such column: {column!r}; choose from {', '.join(GROUPS)}")
    if not by:
        raise UsageError(f"nothing to group by; choose from {', '.join(GROUPS)}")


def condition(where: Sequence[str]) -> pl.Expr:
    """Return the filter that all ``COLUMN=VALUE[,VALUE...]`` items make together."""
    tests: list[pl.Expr] = [pl.lit(value=True)]
    for item in where:
        column, equals, values = item.partition("=")
        if not equals:
            raise UsageError(f"--where {item}: expected COLUMN=VALUE, as in --where worker=rpc-b70-1")
        check_columns([column])
        text = pl.col(column).cast(pl.String).fill_null("-")
        tests.append(pl.any_horizontal(text.str.contains(_pattern(v)) for v in values.split(",")))
    return pl.all_horizontal(tests)


def _pattern(value: str) -> str:
    """A shell pattern as a regular expression of polars, which knows no atomic groups (they change nothing here)."""
    plain = translate(value).replace("(?>", "(?:").removeprefix("(?s:")
    return "^(?s:" + plain.replace(r")\Z", ")$").replace(r")\z", ")$")


def natural_order(names: Sequence[str]) -> list[str]:
    """Sort names so that numbers in them count as numbers.

    >>> natural_order(["rank 10", "rank 2"])
    ['rank 2', 'rank 10']
    """

    def key(name: str) -> list[tuple[int, int, str]]:
        return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name) if p]

    return sorted(names, key=lambda n: (key(n), n))


def natural(column: str) -> pl.Expr:
    """Return a sort key that puts ``rank 2`` before ``rank 10``: digits are padded."""
    if not isinstance(EVENTS[column], pl.Categorical):
        return pl.col(column)
    text = pl.col(column).cast(pl.String)
    return text.str.replace_all(r"(\d+)", "00000000$1").str.replace_all(r"0*(\d{8})", "$1")
