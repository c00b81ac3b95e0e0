"""``tracekit events``: the uniform frame itself."""

import sys
from collections.abc import Sequence

import click

from tracekit.cli import options


@click.command("events")
@options.logs
@options.filters
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv", "jsonl"]),
    help="How the rows are written (default: by the ending of FILE, else parquet).",
)
@click.option(
    "-o", "--output", "target", required=True, metavar="FILE", help="Where the rows go; - is standard output."
)
@options.ledger
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    where: Sequence[str],
    form: str | None,
    target: str,
    ledger: str,
) -> None:
    """Write the events of LOGs as one uniform frame: a row per timed occurrence.

    Every command takes such a Parquet file back as input. The columns are described in docs/frames.md.

    \b
    Example:
      tracekit events rpc-b70-*.log -o events.parquet
      tracekit top events.parquet --by layer
      tracekit events decode.log --where op=ROPE --format csv -o - | head
    """
    from tracekit.export import write_events
    from tracekit.writing import whole_file

    run = options.open_run(log, workers, target)
    chosen = form or next((f for f in ("csv", "jsonl") if target.endswith(f".{f}")), "parquet")
    if target == "-":
        write_events(run, sys.stdout.buffer, chosen, where)
    else:
        with whole_file(target) as path, path.open("wb") as file:
            write_events(run, file, chosen, where)
            run.require_records()
    options.tell_ledger(run, ledger, strict=strict)
