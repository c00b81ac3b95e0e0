"""``tracekit report``: a run on one page."""

from collections.abc import Sequence

import click

from tracekit.cli import options


@click.command("report")
@options.logs
@click.option("--title", metavar="TEXT", help="Title of the page (default: the logs).")
@options.speed
@options.topology("their times add", "the slowest counts")
@options.filters
@options.selection
@options.output(("html", "markdown"))
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    title: str | None,
    tok_s: float | None,
    bench: str | None,
    topology: str | None,
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    form: str,
    target: str | None,
    ledger: str,
) -> None:
    """Write one page on a run: what ran, budget, top table, layers, steps, distributions, balance, what was lost.

    LOG is a capture directory of `tracekit run`, or logs. The page is a single file that asks the network for nothing;
    its charts need the extra tracekit[report]. Markdown holds the same tables, for a note or a pull request.

    \b
    Example:
      tracekit report pair-of-runs -o report.html
      tracekit report rpc-b70-*.log --phase decode --format markdown
    """
    from tracekit.report import gather, html, markdown

    speed = options.throughput(tok_s, bench, phase)
    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip, beside=[bench])
    if speed is None:
        speed = options.clean_speed(run.captures, phase)
    found = gather(run, log, title=title, tok_s=speed, where=where, arrangement=topology, decoding=tok_s is None)
    options.deliver(html(found) if form == "html" else markdown(found), target)
    options.say_if_empty(found.empty)
    options.tell_ledger(run, ledger, strict=strict)
