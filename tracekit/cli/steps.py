"""``tracekit steps``: the model passes."""

from collections.abc import Sequence

import click

from tracekit.cli import options

_MANY = 40


@click.command("steps")
@options.logs
@options.rows_shown(_MANY, "steps")
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
    from tracekit.table import ledger_of, render_steps

    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    found = steps(run, where=where)
    run.require_records()
    coverage = ledger_of(run)
    options.deliver(render_steps(found, coverage, form, options.rows_limit(limit, form, _MANY)), target)
    options.say_if_empty(found.is_empty() and bool(where or phase or chosen or skip))
    options.tell(coverage, ledger, strict=strict)
