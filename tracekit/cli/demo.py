"""``tracekit demo``: the main job on a bundled log."""

from pathlib import Path

import click


@click.command("demo")
@click.option(
    "-o",
    "--output",
    "target",
    default="tracekit-demo.pftrace",
    show_default=True,
    metavar="FILE",
    help="Where the Perfetto trace goes.",
)
def command(target: str) -> None:
    """Show what tracekit does: a table and a trace from bundled logs, without a GPU.

    The logs are generated to published totals of one decode token of MiniMax-M2.7 on four Arc Pro B70s, one llama.cpp
    RPC worker each.

    \b
    Example:
      tracekit demo
    """
    import tracekit as tk
    from tracekit.table import counts_text, ledger_of, text

    run = tk.read(Path(__file__).parent.parent / "demo")
    click.echo("Four workers, one decode token (logs generated to published totals).\n")
    click.echo("$ tracekit top rpc-b70-*.log")
    for table in tk.buckets(run, by=["op"]):
        click.echo(text(table, 10, markdown=False))
    click.echo("$ tracekit top rpc-b70-*.log --by worker")
    for table in tk.buckets(run, by=["worker"], sort="group"):
        click.echo(text(table, None, markdown=False))
    click.echo(counts_text(ledger_of(run)))
    report = tk.write_trace(run, target)
    click.echo(f"{target}: {report.slices} slices; open it at https://ui.perfetto.dev or with `tracekit open {target}`")
