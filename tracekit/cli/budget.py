"""``tracekit budget``: what a step's time is made of, against a throughput."""

from collections.abc import Sequence

import click

from tracekit.cli import options


@click.command("budget")
@options.logs
@options.speed
@options.topology("their times add", "the slowest counts")
@options.filters
@options.selection
@options.output(("table", "markdown", "json"))
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
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
    """Set the timed milliseconds of a step against what a throughput implies.

    Rows are categories by worker; the remainder is what no timed operation holds: client, network, host. Against a
    clean run of the same work, where timed costs exceed the clean step, the inflation is stated instead. Of a pair
    (`tracekit run --pair`), the clean run's throughput is taken by itself.

    \b
    Example:
      tracekit budget rpc-b70-*.log --tok-s 3.802188
      tracekit budget rpc-b70-*.log --bench bench.json --skip-steps 1
      tracekit budget pair-of-runs
    """
    from tracekit.budget import budgets
    from tracekit.errors import TracekitError
    from tracekit.table import ledger_of, render_budgets

    speed = options.throughput(tok_s, bench, phase)
    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip, beside=[bench])
    if speed is None:
        speed = options.clean_speed(run.captures, phase)
    # A benchmark's throughput is of decoding: other steps are not to be set against it.
    decoding = speed is not None and tok_s is None and phase is None
    found = budgets(run, where=where, arrangement=topology, tok_s=speed, decoding=decoding)
    run.require_records()
    if not found:
        raise TracekitError("no step was found in what was selected, so none has a budget; see `tracekit steps`")
    coverage = ledger_of(run)
    options.deliver(render_budgets(found, coverage, form), target)
    options.tell(coverage, ledger, strict=strict)
