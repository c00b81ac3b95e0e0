"""Conditions on which a comparison fails: ``slower:2%``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracekit.diff.comparison import Comparison, name
from tracekit.diff.evidence import VERDICTS
from tracekit.errors import UsageError

_FORM = re.compile(r"^(total-)?([a-z-]+?)(?::([0-9.]+)%)?$")
_WORDS = {v.lower().replace(" ", "-"): v for v in VERDICTS}


@dataclass(frozen=True, slots=True)
class Condition:
    """A verdict, and the smallest change in percent for it to matter; of the total alone, or of any row.

    >>> Condition.parse("slower:2%")
    Condition(text='slower:2%', verdict='slower', least=0.02, total=False)
    """

    text: str
    verdict: str
    least: float
    total: bool

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read ``[total-]VERDICT[:PERCENT%]``.

        Raises:
            UsageError: it is not of that form.
        """
        form = _FORM.match(text.strip())
        word = form[2] if form else ""
        try:
            least = float(form[3] or 0) / 100 if form else 0.0
        except ValueError:
            word, least = "", 0.0
        if form is None or word not in _WORDS:
            raise UsageError(
                f"--fail-on {text}: expected a verdict ({', '.join(_WORDS)}), as in slower:2%, or total-slower:2% "
                "for the whole step alone"
            )
        return cls(text, _WORDS[word], least, bool(form[1]))

    def holds(self, found: Sequence[Comparison]) -> str | None:
        """Return what meets the condition, in words; None if nothing does."""
        met = []
        for one in found:
            tables = [(one.total, ("all",))] if self.total else [(one.total, ("all",)), (one.rows, one.by)]
            for frame, by in tables:
                rows = frame.filter(pl.col("verdict") == self.verdict)
                for row in rows.iter_rows(named=True):
                    if row["ratio"] is None or abs(row["ratio"] - 1) >= self.least:
                        ratio = "" if row["ratio"] is None else f" ({100 * (row['ratio'] - 1):+.1f} %)"
                        met.append(f"{name(row, by)}{ratio}")
        more = f" and {len(met) - 5} more" if len(met) > 5 else ""
        return f"{', '.join(met[:5])}{more}" if met else None
