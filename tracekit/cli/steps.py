"""``tracekit steps``: the model passes."""

from collections.abc import Sequence

import click

from tracekit.cli import options

_MANY = 40


@click.command("steps")
@options.logs
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Show N steps, 0 for all (default: {_MANY} in tables for people, all in the other formats).",
)
@options.filters
@options.selection
@options.output(("table", "markdown", "csv", "json", "jsonl", "parquet"))
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    limit: int | None,
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    form: str,
    target: str | None,
    ledger: str,
) -> None:
    """List the model passes (steps) of each worker: time, phase, tokens, where the time went.

    Steps are found without any marker, by the sequence of operations or regions. A step that takes unusually long or
    short for its phase is marked with *. Leading steps that look like warm-up are suggested for --skip-steps, and never
    dropped.

    \b
    Example:
      tracekit steps rpc-b70-*.log
      tracekit steps decode.log --phase decode --format csv -o steps.csv
    """
    from tracekit.stepping import steps
    from tracekit.table import ledger_json, render_steps

    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    found = steps(run, where=where)
    run.require_records()
    if limit is None and form in ("table", "markdown"):
        limit = _MANY
    coverage = ledger_json(run.coverage.collect(), run.findings.collect())
    options.deliver(render_steps(found, coverage, form, limit or None), target)
    options.say_if_empty(found.is_empty() and bool(where or phase or chosen or skip))
    options.tell_ledger(run, ledger, strict=strict)
