"""Events as files: Parquet, CSV or JSON lines, written as they are read."""

import shutil
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

import polars as pl

from tracekit.columns import condition
from tracekit.errors import OutputError
from tracekit.frame import EVENTS
from tracekit.reading import Run


def write_events(run: Run, file: BinaryIO, form: str, where: Sequence[str] = ()) -> None:
    """Write the events to an open file; memory stays that of a block for what is read in blocks.

    Args:
        run: what `tracekit.read` returned.
        file: open for writing bytes.
        form: parquet, csv or jsonl.
        where: filters as in `bucketing.buckets`.
    """
    only = condition(where)
    if form == "parquet":
        # polars hides what went wrong with a file of ours: it writes to a file of its own, and we copy that.
        with tempfile.TemporaryFile() as own:
            try:
                run.events.filter(only).sink_parquet(own, compression="zstd", maintain_order=True)
            except (OSError, pl.exceptions.ComputeError) as error:
                raise OutputError(f"the rows cannot be written ({error}); check the space") from error
            own.seek(0)
            shutil.copyfileobj(own, file)
        return
    first = True
    for batch in run.batches(list(EVENTS)):
        frame = batch.filter(only).with_columns(pl.col(pl.Categorical()).cast(pl.String))
        text = frame.write_csv(include_header=first) if form == "csv" else frame.write_ndjson()
        file.write(text.encode("utf-8", "replace"))
        first = False
