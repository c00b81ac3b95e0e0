"""Group rows by columns of whole numbers: the columns become one number, and sorting or adding up does the rest.

On the batches of a log this takes a quarter of the time of a general group-by. Other columns, or numbers too far apart
for one word, are left to polars.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.int64]

#: Keys below this fit a word.
_WORD = 1 << 62

#: Groups for each row up to which sums are added in a table of all that there could be.
_SPARSE = 4


def counted_by(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the groups of `rows`: the columns `by`, and ``n``, how many rows each has (UInt64)."""
    keys = _keys(rows, by)
    if keys is None:
        return rows.group_by(by).agg(pl.len().cast(pl.UInt64).alias("n"))
    order = np.sort(keys.packed)
    last = np.flatnonzero(np.append(order[1:] != order[:-1], values=True))
    return keys.unpacked(order[last]).with_columns(pl.Series("n", np.diff(last, prepend=-1).astype(np.uint64)))


def summed_by(rows: pl.DataFrame, by: Sequence[str], value: str) -> pl.DataFrame:
    """Return the groups of `rows`: the columns `by`, and the sum of `value` (Int64) of each."""
    keys = _keys(rows, by)
    if keys is None or keys.size > _SPARSE * rows.height or rows[value].null_count():
        return rows.group_by(by).agg(pl.col(value).sum())
    sums, there = np.zeros(keys.size, np.int64), np.zeros(keys.size, np.bool_)
    np.add.at(sums, keys.packed, rows[value].to_numpy())
    there[keys.packed] = True
    found = np.flatnonzero(there)
    return keys.unpacked(found).with_columns(pl.Series(value, sums[found]))


@dataclass(frozen=True, slots=True)
class _Keys:
    """Rows' keys as one number each, and per column, from the last: its name, type, lowest value and span.

    A column's 0 stands for null, so its values begin with 1.
    """

    packed: Numbers
    columns: Sequence[tuple[str, pl.DataType, int, int]]
    size: int

    def unpacked(self, packed: Numbers) -> pl.DataFrame:
        """Return the columns of some keys."""
        found = []
        for name, dtype, low, span in self.columns:
            packed, code = np.divmod(packed, span)
            column = pl.Series(name, code + (low - 1))
            found.append((column if code.all() else column.set(pl.Series(code == 0), None)).cast(dtype))
        return pl.DataFrame(found[::-1])


def _keys(rows: pl.DataFrame, by: Sequence[str]) -> _Keys | None:
    """Return the keys of the rows as one number each; None if they do not fit."""
    if not rows.height or not all(rows.schema[c].is_integer() for c in by):
        return None
    packed, size, columns = np.zeros(1, np.int64), 1, []
    for name in by:
        column = rows[name]
        present = column.drop_nulls().to_numpy()
        low, high = (int(present.min()), int(present.max())) if len(present) else (0, 0)
        span = high - low + 2
        size *= span
        if size >= _WORD or high >= _WORD or low <= -_WORD:
            return None
        if len(present) == rows.height:
            codes = present.astype(np.int64) - (low - 1)
        else:
            codes = (column.cast(pl.Int64) - (low - 1)).fill_null(0).to_numpy()
        packed = packed * span + codes
        columns.append((name, rows.schema[name], low, span))
    return _Keys(packed, columns[::-1], size)
