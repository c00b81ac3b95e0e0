"""``tracekit convert``: a trace to look at."""

from collections.abc import Sequence

import click

from tracekit.cli import options


@click.command("convert")
@options.logs
@click.option("-o", "--output", "target", required=True, metavar="FILE", help="Where the trace goes.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "perfetto", "chrome-json", "speedscope", "folded"]),
    default="auto",
    show_default=True,
    help="perfetto and chrome-json are timelines; speedscope and folded are flame graphs of self time. auto goes by "
    "the name: .json, .speedscope.json, .folded, else perfetto.",
)
@click.option(
    "--layout",
    type=click.Choice(["auto", "sequential", "pipeline", "ranks", "arrival", "start"]),
    default="auto",
    show_default=True,
    help="Where a timeline's slices stand: see docs/traces.md. auto takes the best that the data allows and says why.",
)
@click.option("--compress", is_flag=True, help="Deflate the packets (perfetto only): a third of the size.")
@click.option(
    "--min-dur",
    type=click.FloatRange(min=0, max=1e12),
    default=0.0,
    metavar="US",
    help="Hide slices shorter than US microseconds.",
)
@options.filters
@options.selection
@options.ledger
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    target: str,
    form: str,
    layout: str,
    compress: bool,  # noqa: FBT001
    min_dur: float,
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    ledger: str,
) -> None:
    """Write LOGs as a trace for https://ui.perfetto.dev, one process per worker.

    Operations stand in printed order, inside steps and layers; regions nest. Where the log tells no times the timeline
    is packed, and its tracks say so. A slice's duration is always the printed one.

    \b
    Example:
      tracekit convert rpc-b70-*.log -o decode.pftrace
      tracekit convert decode.log -o step.pftrace --steps 100:120 --compress
      tracekit convert decode.log -o decode.folded
    """
    from tracekit import write_trace
    from tracekit.columns import condition
    from tracekit.errors import UsageError

    if min_dur != min_dur:
        raise UsageError("--min-dur nan: expected microseconds")
    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    report = write_trace(
        run,
        target,
        layout=layout,
        format=form,
        compress=compress,
        where=condition(where) if where else None,
        min_dur_ns=round(min_dur * 1000),
        progress=options.bar("writing"),
        surveyed=run.require_records,
    )
    placed = f", layout {report.layout}: {report.reason}" if report.layout else ""
    aggregates = f" and {report.aggregates} aggregate slices" if report.aggregates else ""
    click.echo(f"{report.path}: {report.slices} slices{aggregates} on {report.tracks} tracks{placed}", err=True)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    options.say_if_empty(not report.slices and not report.aggregates)
    options.tell_ledger(run, ledger, strict=strict)
