"""``tracekit budget``: what a step's time is made of, against a throughput."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tracekit.cli import options

if TYPE_CHECKING:
    pass


@click.command("budget")
@options.logs
@click.option(
    "--tok-s",
    type=float,
    metavar="X",
    help="Tokens per second of a run of the same work: of all steps that were selected (--phase decode for decoding).",
)
@click.option(
    "--bench",
    metavar="FILE",
    help="Take the tokens per second of decoding, so decode steps only, from what llama-bench or vllm bench wrote.",
)
@click.option(
    "--topology",
    type=click.Choice(["pipeline", "parallel"]),
    help="How workers share a step: pipeline (their times add; default for ggml) or parallel (the slowest counts). "
    "A capture says it by itself.",
)
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
    from tracekit.errors import TracekitError, UsageError
    from tracekit.table import ledger_json, render_budgets
    from tracekit.writing import refuse_input

    if bench is not None and phase not in (None, "decode"):
        raise UsageError(f"--bench takes a throughput of decoding, which --phase {phase} has none of; give --tok-s")
    speed = options.throughput(tok_s, bench)
    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip)
    refuse_input(target, [bench] if bench else [])
    if speed is None and phase in (None, "decode"):
        speed = options.clean_speed(run.captures)
    # A benchmark's throughput is of decoding: other steps are not to be set against it.
    decoding = speed is not None and tok_s is None and phase is None
    found = budgets(run, where=where, arrangement=topology, tok_s=speed, decoding=decoding)
    run.require_records()
    if not found:
        raise TracekitError("no step was found in what was selected, so none has a budget; see `tracekit steps`")
    coverage = ledger_json(run.coverage.collect(), run.findings.collect())
    options.deliver(render_budgets(found, coverage, form), target)
    options.tell_ledger(run, ledger, strict=strict)
