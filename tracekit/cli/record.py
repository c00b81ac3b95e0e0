"""``tracekit record``: the JSON that a lab book keeps."""

import json
from collections.abc import Sequence

import click

from tracekit.cli import options


@click.command("record")
@options.logs
@click.option("--label", metavar="TEXT", help="What was probed.")
@click.option("--interpretation", metavar="TEXT", help="What it means.")
@click.option(
    "--outcome", metavar="TEXT", help="The judgement: kept, slower, neutral, blocked ... (default: how it ended)."
)
@click.option("--warning", metavar="TEXT", help="Why the times are no throughput (default: what their clock means).")
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Call the probe timingProbeNAME instead of timingProbe, as in KqvOffloadOn.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=6, show_default=True, metavar="N", help="How many buckets to name."
)
@click.option(
    "--timed-bench",
    metavar="FILE",
    help="Benchmark of the timed run itself (default: the client's output in the capture, where that is one).",
)
@click.option(
    "--bench",
    "benches",
    multiple=True,
    metavar="FILE",
    help="Benchmark of a run without timing: llama-bench -o json|jsonl or vllm bench (its JSON file). Repeatable; the "
    "clean run of a pair is taken by itself.",
)
@click.option("--collectives", metavar="FILE", help="A probe of all-reduces: JSON records of label, bytes, avgMs.")
@options.topology("their times add", "the slowest counts")
@options.filters
@options.selection
@click.option("-o", "--output", "target", metavar="FILE", help="Write to FILE instead of standard output.")
def command(
    log: Sequence[str],
    workers: Sequence[str],
    strict: bool,  # noqa: FBT001
    label: str | None,
    interpretation: str | None,
    outcome: str | None,
    warning: str | None,
    name: str,
    top: int,
    timed_bench: str | None,
    benches: Sequence[str],
    collectives: str | None,
    topology: str | None,
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    target: str | None,
) -> None:
    """Write the record of a probe: what ran, what it took, how it ended, from which files.

    LOG is a capture directory of `tracekit run`, or logs. docs/record.md tells the keys. Words that a person chooses
    come from options; numbers come from the logs and the benchmarks' files.

    \b
    Example:
      tracekit record pair-of-runs --outcome kept -o record.json
      tracekit record rpc-b70-*.log --timed-bench bench.jsonl --label "p0/n1 with -nkvo 0" --name KqvOffloadOn
    """
    from tracekit.errors import UsageError
    from tracekit.record import Asked, record

    if name and not name.isidentifier():
        raise UsageError(f"--name {name}: expected letters and digits, as in KqvOffloadOn")
    asked = Asked(name, label, warning, interpretation, outcome, top, timed_bench, benches, collectives)
    beside = [timed_bench, *benches, collectives]
    run = options.open_run(log, workers, target, phase=phase, chosen=chosen, skip=skip, beside=beside)
    found = record(run, asked, where=where, arrangement=topology)
    options.deliver(json.dumps(found, indent=1, ensure_ascii=False) + "\n", target)
    options.say_if_empty(found["timingProbe" + name] is None and found["trace"] is None)
    options.tell_ledger(run, "text", strict=strict)
