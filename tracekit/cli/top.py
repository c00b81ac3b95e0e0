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
@options.rows_shown(_MANY)
@options.topology("ms/step adds", "the slowest counts")
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
    from tracekit.table import ledger_of, render

    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    tables = buckets(run, options.columns(by), where=where, sort=sort, arrangement=topology)
    run.require_records()
    coverage = ledger_of(run)
    options.deliver(render(tables, coverage, form, options.rows_limit(limit, form, _MANY)), target)
    options.say_if_empty(not tables)
    options.tell(coverage, ledger, strict=strict)
