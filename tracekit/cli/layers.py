"""``tracekit layers``: what each layer costs."""

from collections.abc import Sequence

import click

from tracekit.cli import options


@click.command("layers")
@options.logs
@click.option(
    "--by",
    default="category",
    show_default=True,
    type=click.Choice(["category", "op", "name", "worker"]),
    help="What stands across.",
)
@options.filters
@options.selection
@options.output(("table", "markdown", "csv", "json", "jsonl", "parquet"))
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    by: str,
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    form: str,
    target: str | None,
    ledger: str,
) -> None:
    """Print self time per layer (down) and category (across), and mark the layers that stand out.

    A layer is marked with * when it differs from the median of its four neighbours by more than 10 % and by more
    than four robust standard deviations. The last row holds what belongs to no layer.

    \b
    Example:
      tracekit layers rpc-b70-*.log
      tracekit layers decode.log --by op --format csv -o layers.csv
    """
    from tracekit.layering import layers
    from tracekit.table import ledger_of, render_layers

    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    tables = layers(run, by, where=where)
    run.require_records()
    coverage = ledger_of(run)
    options.deliver(render_layers(tables, coverage, form), target)
    options.say_if_empty(not tables)
    options.tell(coverage, ledger, strict=strict)
