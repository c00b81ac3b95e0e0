"""``tracekit top``: where the time goes."""

from collections.abc import Sequence

import click

from tracekit.cli import options

_MANY = 25


@click.command("top")
@options.logs
@click.option(
    "--by",
    default="op",
    show_default=True,
    metavar="COLUMN[,COLUMN...]",
    help="Group by op, name, category, layer, worker, stream, rank, shape, device, dialect, phase, tokens, step, run.",
)
@click.option(
    "--sort",
    default="self",
    show_default=True,
    metavar="NUMBER",
    help="Order rows by self, total, calls, mean, p50, p95 or max (largest first), or by group.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Show N rows a table, 0 for all (default: {_MANY} in tables for people, all in the other formats).",
)
@click.option(
    "--topology",
    type=click.Choice(["pipeline", "parallel"]),
    help="How workers share a step: pipeline (ms/step adds; default for ggml) or parallel (the slowest counts). "
    "A capture says it by itself.",
)
@options.filters
@options.selection
@options.output(("table", "markdown", "csv", "json", "jsonl", "parquet"))
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    by: str,
    sort: str,
    limit: int | None,
    topology: str | None,
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    form: str,
    target: str | None,
    ledger: str,
) -> None:
    """Print the top operations, kernels or regions of LOGs: calls, totals, shares, percentiles.

    LOG is a file, a quoted glob, a directory or - for standard input; .gz and .zst are unpacked. There is one table
    per engine and clock, since numbers of unlike meaning are never added. Shares are of self time.

    \b
    Example:
      tracekit top rpc-b70-*.log
      tracekit top rpc-b70-*.log --by worker,op --where category=attention
      tracekit top decode.log --format json --limit 0 > top.json
    """
    from tracekit.bucketing import buckets
    from tracekit.table import ledger_json, render

    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    columns = [c.strip() for c in by.split(",") if c.strip()]
    tables = buckets(run, columns, where=where, sort=sort, arrangement=topology)
    run.require_records()
    if limit is None and form in ("table", "markdown"):
        limit = _MANY
    coverage = ledger_json(run.coverage.collect(), run.findings.collect())
    options.deliver(render(tables, coverage, form, limit or None), target)
    options.say_if_empty(not tables)
    options.tell_ledger(run, ledger, strict=strict)
