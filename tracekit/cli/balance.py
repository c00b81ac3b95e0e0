"""``tracekit balance``: workers or ranks side by side."""

from collections.abc import Sequence

import click

from tracekit.cli import options

_MANY = 25


@click.command("balance")
@options.logs
@click.option(
    "--by",
    default="op",
    show_default=True,
    metavar="COLUMN[,COLUMN...]",
    help="What labels are made of: op, name, category, layer, shape, dialect, phase, tokens.",
)
@options.topology("in turn", "the slowest sets the pace")
@options.rows_shown(_MANY)
@options.filters
@options.selection
@options.output(("table", "markdown", "csv", "json", "jsonl"))
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    by: str,
    topology: str | None,
    limit: int | None,
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    form: str,
    target: str | None,
    ledger: str,
) -> None:
    """Set the workers or ranks in LOGs side by side, step by step: spread, slowest, wait, missing calls.

    For ranks that run side by side (tensor parallel): the slowest sets the pace, and the table tells what the others
    would wait for it per label. Workers of a pipeline run in turn, where unlike times mean something else: it says so.

    \b
    Example:
      tracekit balance vllm.log --phase decode --skip-steps 1
      tracekit balance rank*.log --by category --format json
    """
    from tracekit.balance import balance, render
    from tracekit.table import ledger_of

    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    found = balance(run, options.columns(by), where=where, arrangement=topology)
    run.require_records()
    coverage = ledger_of(run)
    options.deliver(render(found, coverage, form, options.rows_limit(limit, form, _MANY)), target)
    options.tell(coverage, ledger, strict=strict)
