"""Model passes of vLLM's workers, by the runner's phases and the batch that labels tell.

A pass ends with the region around the model's forward; what the runner does after it (logits, sampling, bookkeeping)
belongs to it too, until it prepares the next. So a step begins with ``preprocess``, or where no such label is printed,
with the first region of the model after the runner's. Counts follow the scheduler's steps, not tokens; a last
``preprocess`` may have no forward, and regions of the warm-up stand before the first one: they belong to no step.

The batch is told by shapes in labels only (``all_reduce:(32, 256):...``, ``...:M4``): where none are printed (one rank)
tokens and phase are not known.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.checks import Finding
from tracekit.enrich import region_names

#: So many of the steps must have one width for it to be a batch of decodes rather than a prompt.
_REPEATED_PART = 0.3

#: With fewer forwards, one more is no sign of anything.
_MANY_FORWARDS = 4

#: Labels that tell a shape run where that shape comes: their counts tell nothing of the number of passes.
SHAPED = r":M\d+$|^all_|^reduce_scatter"

_PREPARES = r"(^|\.)preprocess$"
_RUNNER = ("runner", "postprocess", "logits", "logits-head", "allgather")


def steps(rows: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
    """Add ``step``, ``tokens`` and ``phase`` to rows of one stream.

    Args:
        rows: columns head, process, run, kind, in printed order.
        heads: columns name, rank, tokens by ``head``.
    """
    labels = heads["name"].cast(pl.String)
    regions = region_names(labels)
    marks = pl.DataFrame(
        {
            "forward": regions == "forward",
            "runner": regions.is_in(_RUNNER),
            "prepares": labels.str.contains(_PREPARES),
            "ranked": heads["rank"].is_not_null(),
            "width": heads["tokens"],
        }
    )
    rows = rows.with_columns(marks[c].gather(rows["head"]).alias(c) for c in marks.columns)
    numbered = [_number(part) for _, part in rows.with_row_index("at").group_by("process", "run", maintain_order=True)]
    found = pl.concat(numbered).sort("at")
    return found.drop("at", *marks.columns)


def _number(rows: pl.DataFrame) -> pl.DataFrame:
    """Number the steps of one process and run."""
    forward = rows["forward"].to_numpy()
    if not rows["ranked"].any() or not forward.any() or (rows["kind"] != "event").any():
        blank = (pl.lit(None, dtype=t).alias(c) for c, t in (("step", pl.Int32), ("tokens", pl.Int32)))
        return rows.with_columns(*blank, pl.lit(None, dtype=pl.String).alias("phase"))
    prepares = rows["prepares"].to_numpy()
    begins = prepares if prepares.any() else _model_after_runner(rows["runner"].to_numpy(), forward)
    step = np.cumsum(begins) - 1
    whole = np.unique(step[forward])
    # Regions before the first preparation, and a preparation without a forward, belong to no step.
    order = np.full(int(step.max()) + 2, -1)
    order[whole[whole >= 0]] = np.arange((whole >= 0).sum())
    number = order[step]
    rows = rows.with_columns(pl.Series("step", number, dtype=pl.Int32).set(pl.Series(number < 0), None))
    width = pl.col("width").drop_nulls().mode().max().over("step")
    rows = rows.with_columns(pl.when(pl.col("step").is_not_null()).then(width).cast(pl.Int32).alias("tokens"))
    return rows.with_columns(_phase(rows))


def uneven(labels: pl.DataFrame) -> Iterator[Finding]:
    """Tell of labels that ran once more than the model's forward: prepared without a forward, or warmed up.

    Args:
        labels: one row per process, run and label: ``process``, ``run``, ``name``, ``call`` (the highest ordinal, or
            the summary's count), ``line``. Labels that tell a shape are left out: they run where that shape comes.
    """
    is_forward = (region_names(labels["name"]) == "forward").alias("forward")
    shaped = pl.col("name").cast(pl.String).str.contains(SHAPED)
    both = labels.with_columns(is_forward, pl.col("call").cast(pl.Int64))
    forwards = both.filter("forward").group_by("process", "run").agg(pl.col("call").max().alias("forwards"))
    both = both.join(forwards, on=["process", "run"]).filter(~shaped, pl.col("forwards") >= _MANY_FORWARDS)
    more = pl.col("forwards") + 1
    odd = both.filter(pl.col("call") % pl.col("forwards") != 0, pl.col("call") % more == 0).sort("call", "name")
    if odd.height:
        times = pl.col("call") // more * pl.col("forwards")
        named = odd.select("name", "call", times.alias("expected")).unique(maintain_order=True)
        what = "; ".join(f"{name}: {call} against {expected}" for name, call, expected in named.head(3).iter_rows())
        message = f"labels with one pass more than there are forwards (prepared only, or warm-up): {what}"
        yield Finding("note", "one-pass-more", message, odd.height, int(odd["line"].to_list()[0] or 0))


def unplaced(labels: pl.DataFrame) -> Iterator[Finding]:
    """Tell of labels that no class of ``rules/regions.toml`` takes, in processes that run a model.

    They are taken for regions that hold nothing. One that holds others makes its holder's self time too short.

    Args:
        labels: as in `uneven`.
    """
    regions = region_names(labels["name"])
    marks = labels.with_columns((regions == "forward").alias("forward"), regions.is_in(["", "unplaced"]).alias("odd"))
    odd = marks.filter(pl.col("odd") & pl.col("forward").any().over("process")).sort("line")
    found = odd["name"].cast(pl.String).unique(maintain_order=True).to_list()
    if found:
        message = (
            f"regions whose place in the model is not known (rules/regions.toml): taken for parts that hold nothing, "
            f"so self times around them may be wrong: {', '.join(found[:3])}"
        )
        yield Finding("note", "unplaced-regions", message, len(found), int(odd["line"].to_list()[0] or 0))


def _model_after_runner(runner: npt.NDArray[np.bool_], forward: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return where regions of the model begin again after a forward and what the runner did behind it."""
    behind = np.zeros(len(runner), np.bool_)
    ended = np.maximum.accumulate(np.where(forward | runner, np.arange(len(runner)), -1))
    behind[1:] = (ended[:-1] == np.arange(len(runner) - 1)) & ~runner[1:] & ~forward[1:]
    behind[0] = True
    return behind


def _phase(rows: pl.DataFrame) -> pl.Series:
    """Tell decode from prefill by the width: one row is decode, so is a width that repeats below the largest."""
    widths = rows.select("step", "tokens").drop_nulls().unique()["tokens"]
    if widths.is_empty():
        return pl.repeat(None, rows.height, dtype=pl.String, eager=True).alias("phase")
    counts = widths.value_counts()
    repeated = counts.filter(pl.col("count") >= max(3, _REPEATED_PART * len(widths)))["tokens"]
    largest = widths.max()
    decode = (pl.col("tokens") == 1) | (pl.col("tokens").is_in(repeated.implode()) & (pl.col("tokens") < largest))
    prefill = (pl.col("tokens") > 1) & ~pl.col("tokens").is_in(repeated.implode())
    phase = pl.when(decode).then(pl.lit("decode")).when(prefill).then(pl.lit("prefill"))
    return rows.select(phase.alias("phase")).to_series()
