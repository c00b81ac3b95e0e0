"""Events as files: Parquet, CSV or JSON lines, written as they are read."""

from collections.abc import Sequence
from typing import BinaryIO

import polars as pl

from tracekit.columns import condition
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
        run.events.filter(only).sink_parquet(file, compression="zstd", maintain_order=True)
        return
    first = True
    for batch in run.batches(list(EVENTS)):
        frame = batch.filter(only).with_columns(pl.col(pl.Categorical()).cast(pl.String))
        if form == "csv":
            frame.write_csv(file, include_header=first)
        else:
            frame.write_ndjson(file)
        first = False
