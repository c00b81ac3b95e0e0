"""Power, frequency and temperature that ``tracekit run --sample`` took: ``counters.csv`` of a capture.

Columns: ``mono_ns`` (the clock of the arrival stamps), ``device`` (PCI address), ``quantity``, ``unit``, ``value``.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

FILE = "counters.csv"
COLUMNS = ("mono_ns", "device", "quantity", "unit", "value")


def no_counters() -> "pl.DataFrame":
    """Return the frame of a run without samples: the columns of `read_counters`."""
    import polars as pl

    return pl.DataFrame(schema=dict(zip(COLUMNS, (pl.Int64, pl.String, pl.String, pl.String, pl.Float64), strict=True)))


def read_counters(folder: str | Path) -> "pl.DataFrame":
    """Return the samples of a capture directory in the order taken (an empty frame if it has none).

    Columns: ``mono_ns`` Int64, ``device`` String, ``quantity`` String, ``unit`` String, ``value`` Float64.

    A last line that a killed capture cut off is left out.

    Raises:
        UsageError: the file is damaged.
    """
    import polars as pl

    path = Path(folder) / FILE
    nothing = no_counters()
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return nothing
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    whole = text[: text.rfind(b"\n") + 1]
    if not whole:
        return nothing
    try:
        return pl.read_csv(whole, schema=nothing.schema)
    except pl.exceptions.ComputeError as error:
        raise UsageError(f"{path}: is no table of samples ({error})") from error
