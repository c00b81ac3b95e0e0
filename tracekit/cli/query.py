"""``tracekit query``: SQL over a trace."""

import click

from tracekit.cli import options


@click.command("query")
@click.argument("trace", metavar="[TRACE]", required=False)
@click.argument("sql", metavar="[SQL|NAME]", required=False)
@click.option("--list", "listing", is_flag=True, help="Print the queries that have a name, with what they tell.")
@click.option(
    "--trace-processor",
    "binary",
    metavar="PATH",
    help="The trace_processor_shell binary (default: the one on PATH, or that of an earlier --download).",
)
@click.option("--download", is_flag=True, help="Let the perfetto package fetch the binary that it pins (internet).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How the rows are written.",
)
@click.option("-o", "--output", "target", metavar="FILE", help="Write to FILE instead of standard output.")
def command(
    trace: str | None,
    sql: str | None,
    listing: bool,  # noqa: FBT001
    binary: str | None,
    download: bool,  # noqa: FBT001
    form: str,
    target: str | None,
) -> None:
    """Run SQL, or a query with a NAME, on TRACE.

    This needs Perfetto's trace_processor_shell, which is not part of tracekit and never fetched unless --download asks
    for it. See docs/traces.md for what stands in which table.

    \b
    Example:
      tracekit query --list
      tracekit query decode.pftrace top-ops
      tracekit query decode.pftrace "SELECT name, SUM(dur) FROM slice GROUP BY name" --format csv
    """
    from tracekit.trace.query import checked, named_queries, query, trace_processor

    if listing:
        for one in named_queries().values():
            click.echo(f"{one.name:12}{one.meaning}")
        return
    if trace is None or sql is None:
        raise click.UsageError("give a TRACE and SQL (or the NAME of a query: see --list)")
    checked(trace, sql)
    rows = query(trace, sql, trace_processor(binary, download=download))
    if form == "csv":
        text = rows.write_csv()
    elif form == "json":
        text = rows.write_json() + "\n"
    else:
        from tabulate import tabulate

        text = tabulate(rows.rows(), headers=rows.columns, tablefmt="simple") + "\n"
    options.deliver(text, target)
