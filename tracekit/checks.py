"""What does not add up in a log: lost and repeated lines, summaries that disagree with their events, short ranks.

Each check takes whole columns and returns findings; nothing is repaired here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tracekit import rules

#: Opens what tracekit's instruments say of themselves.
NOTICE = "[tracekit-"

#: A total that is printed with six decimals of a millisecond is rounded to a nanosecond, and so is each event.
_ROUNDING_NS = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault (something is lost or disagrees) or a note, and how often; `line` is the first place, 0 if none."""

    severity: str
    code: str
    message: str
    count: int = 1
    line: int = 0


def ordinals(labels: pl.DataFrame) -> Iterator[Finding]:
    """Check the ordinals (``count=``) of each label.

    Args:
        labels: one row per process, label and run: ``label`` (for people), ``kind``, ``n``, ``first_call``,
            ``call`` (the highest), ``repeated`` (lines whose ordinal is not above the one before), ``line``.
    """
    events = labels.filter((pl.col("kind") == "event") & pl.col("call").is_not_null())
    lost = events.with_columns(missing=pl.col("call").cast(pl.Int64) - pl.col("n").cast(pl.Int64) + pl.col("repeated"))
    lost = lost.filter(pl.col("missing") > 0)
    if lost.height:
        row = lost.sort("missing", descending=True).row(0, named=True)
        message = (
            f"calls whose line is missing, by the ordinals printed; most of {row['label']}: "
            f"{row['n']} lines up to count={row['call']}"
        )
        yield Finding("fault", "lost-lines", message, int(lost["missing"].sum()), row["line"])
    again = labels.filter(pl.col("repeated") > 0)
    if again.height:
        row = again.sort("line").row(0, named=True)
        message = (
            f"lines whose ordinal was printed before (a repeated block, or two processes that print one rank); "
            f"first of {row['label']}"
        )
        yield Finding("fault", "repeated-lines", message, int(again["repeated"].sum()), row["line"])


def counted(rows: pl.DataFrame) -> Iterator[Finding]:
    """Check ordinals that count all records of a process: there must be at least so many lines as the highest.

    Args:
        rows: ``call`` (null: not printed), ``own_pid``, ``line``.
    """
    known = rows.filter(pl.col("call").is_not_null())
    seen = known.group_by("own_pid").agg(pl.len().alias("n"), pl.col("call", "line").max())
    short = seen.with_columns(pl.col("call", "n").cast(pl.Int64)).filter(pl.col("call") > pl.col("n")).sort("line")
    if short.height:
        missing = int((short["call"] - short["n"]).sum())
        row = short.row(0, named=True)
        message = f"calls whose line is missing, by the ordinals printed: {row['n']} lines up to count={row['call']}"
        yield Finding("fault", "lost-lines", message, missing, int(row["line"]))


def notices(said: pl.DataFrame) -> Iterator[Finding]:
    """Tell what instruments said of themselves, by ``rules/notices.toml``.

    Args:
        said: ``line`` and ``text`` of the lines with `NOTICE`, in printed order.
    """
    for rule in rules.notices():
        hits = said.filter(pl.col("text").str.contains(rule.pattern))
        if hits.is_empty():
            continue
        counted = re.compile(rule.pattern).groups > 0
        many = hits["text"].str.extract(rule.pattern, 1).cast(pl.Int64).sum() if counted else hits.height
        line, text = hits.select("line", "text").row(0)
        quoted = text[text.index(NOTICE) :][:_QUOTED]
        yield Finding(rule.severity, rule.code, f"{rule.meaning}; the first: {quoted}", int(many), int(line))


def announced(said: pl.DataFrame, records: int) -> Iterator[Finding]:
    """Compare the records of a log with the number that the shim says at the end of each process.

    A process that was killed says nothing at its end: then nothing is known.

    Args:
        said: as in `notices`.
        records: ggml's records in the log, refused ones included.
    """
    begun = said.filter(pl.col("text").str.contains(NOTICE + "shim] v=1 pid=", literal=True))
    ended = said.with_columns(pl.col("text").str.extract(_SHIM_END, 1).cast(pl.Int64).alias("n")).drop_nulls("n")
    told = int(ended["n"].sum())
    if 0 < ended.height == begun.height and told > records:
        message = f"records that the shim wrote and this log does not hold: it wrote {told}, here are {records}"
        yield Finding("fault", "lost-lines", message, told - records, int(ended["line"].to_list()[-1]))


_QUOTED = 200
_SHIM_END = r"\[tracekit-shim\] end: graphs=\d+ lines=(\d+) lost=\d+$"


def appended(labels: pl.DataFrame) -> Iterator[Finding]:
    """Tell of processes whose ordinals begin again: a run that was appended to the log of another.

    Args:
        labels: as in `ordinals`, with ``process`` and ``run``.
    """
    again = labels.filter(pl.col("run") > 0)
    if again.height:
        runs = max(again["run"].to_list()) + 1
        message = f"{runs} runs stand one after another in this log: ordinals begin again; tables add them (--by run)"
        yield Finding("fault", "appended-runs", message, runs, min(again["line"].to_list()))


def skip_first(labels: pl.DataFrame) -> Iterator[Finding]:
    """Solve how many first calls of every label were left out (SKIP_FIRST), from labels of different multiplicity.

    A label that is called ``m`` times a pass has ``m x passes - skip`` calls. The region around the forward has
    ``passes - skip``, so a skip is possible if with it every other label is a whole multiple of a number of passes.
    One layer count must hold for most labels; several skips may fit, and are then all named.

    Args:
        labels: ``name``, ``calls`` (the highest ordinal, or the summary's count), ``forward`` (whether it is the
            region around the forward), ``shaped`` (whether it tells a shape, and so is called in some passes only:
            evidence of which skip it is, but not of that there is one).
    """
    forward = labels.filter("forward")["calls"].to_list()
    counts = labels.filter(~pl.col("forward"))["calls"].to_list()
    if not forward or len({c for c in counts if c > max(forward)}) < _EVIDENCE:
        return
    passes = max(forward)
    every_pass = labels.filter(~pl.col("forward") & ~pl.col("shaped"))["calls"].to_list()
    if _fits(passes, every_pass or counts, 0):
        return
    fits = [skip for skip in range(1, _MOST_SKIPPED + 1) if _fits(passes, counts, skip)]
    if len(fits) == 1:
        message = f"the counts fit SKIP_FIRST={fits[0]}: the first {fits[0]} calls of each label are missing"
        yield Finding("note", "skip-first", message)
    elif fits:
        several = ", ".join(map(str, fits[:5]))
        yield Finding("note", "skip-first", f"the counts fit SKIP_FIRST, but not one alone: {several}")


#: Larger skips are not tried.
_MOST_SKIPPED = 256
#: Different counts that are needed: one alone fits many skips.
_EVIDENCE = 2


def _fits(passes: int, counts: Sequence[int], skip: int) -> bool:
    """Whether with this skip the commonest count is a number of layers for each pass, and all others fit to them.

    Others are whole multiples of the layers, or of a number of passes that such a label shows (what runs in decode
    passes only), or one call a pass.
    """
    commonest = max(counts, key=lambda c: (counts.count(c), c)) + skip
    layers, rest = divmod(commonest, passes + skip)
    if rest or layers < 2:
        return False
    whole = {c + skip for c in counts}
    some = {c // layers for c in whole if c % layers == 0} - {1}
    near = {passes + skip + d for d in (-1, 0, 1)}
    return all(c % layers == 0 or c in near or any(c % passed == 0 for passed in some) for c in whole)


def steps_agree(passes: Mapping[str, Sequence[int]]) -> Iterator[Finding]:
    """Compare workers of one pipeline: each takes part in every step.

    Args:
        passes: the batch of each pass, by the worker's log.
    """
    lengths = {log: len(widths) for log, widths in passes.items()}
    if len(set(lengths.values())) > 1:
        least, most = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        message = (
            f"workers have different numbers of steps: {lengths[least]} in {least}, {lengths[most]} in {most}: "
            "lines are missing, or these logs are of different runs"
        )
        yield Finding("fault", "steps-disagree", message, lengths[most] - lengths[least])


def summaries(labels: pl.DataFrame, sums: pl.DataFrame) -> Iterator[Finding]:
    """Compare what the engine summed with the events of the same process and label.

    Args:
        labels: as in `ordinals`, with ``process``, ``run``, ``name``, ``total_ns``.
        sums: ``process``, ``run``, ``name``, ``calls``, ``total_ns``, ``line``.
    """
    both = labels.join(sums, on=["process", "run", "name"], suffix="_sum")
    events = both.filter(pl.col("kind") == "event")
    calls = events.filter(pl.col("calls") != pl.col("call"))
    if calls.height:
        row = calls.sort("line_sum").row(0, named=True)
        message = (
            f"labels whose summary counts other calls than were printed: {row['label']}: "
            f"{row['calls']} in the summary, {row['call']} printed"
        )
        yield Finding("fault", "summary-calls-disagree", message, calls.height, row["line_sum"])
    off = (pl.col("total_ns") - pl.col("total_ns_sum")).abs()
    whole = events.filter((pl.col("calls") == pl.col("n")) & (off > pl.col("n") * _ROUNDING_NS + 1))
    if whole.height:
        row = whole.sort("line_sum").row(0, named=True)
        message = (
            f"labels whose summary has another total than their events: {row['label']}: "
            f"{row['total_ns_sum'] / 1e6:.6f} ms in the summary, {row['total_ns'] / 1e6:.6f} ms printed"
        )
        yield Finding("fault", "summary-time-disagrees", message, whole.height, row["line_sum"])
    sampled = both.filter((pl.col("kind") == "sample") & (pl.col("calls") < pl.col("call")))
    if sampled.height:
        row = sampled.row(0, named=True)
        message = (
            f"labels whose summary counts fewer calls than a sample's ordinal: {row['label']}: "
            f"{row['calls']} in the summary, count={row['call']} printed"
        )
        yield Finding("fault", "summary-calls-disagree", message, sampled.height, row["line_sum"])


def peers(labels: pl.DataFrame) -> Iterator[Finding]:
    """Compare ranks: what several print, all should have printed equally often.

    Args:
        labels: as in `ordinals`, with ``rank`` (null for processes that print none), ``name``, ``call``.
    """
    ranks = labels.filter(pl.col("rank").is_not_null() & pl.col("call").is_not_null())
    spread = ranks.group_by("name").agg(
        pl.col("call").min().alias("least"),
        pl.col("call").max().alias("most"),
        pl.col("rank").sort_by("call").first(),
        pl.col("line").min(),
    )
    short = spread.filter(pl.col("least") < pl.col("most"))
    if short.height:
        row = short.sort("line").row(0, named=True)
        message = (
            f"labels that a rank printed less often than its peers: {row['name']}: rank {row['rank']} has "
            f"{row['least']} calls, another has {row['most']}"
        )
        yield Finding("fault", "rank-falls-short", message, short.height, row["line"])
