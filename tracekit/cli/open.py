"""``tracekit open``: a trace in Perfetto's page."""

import click


@click.command("open")
@click.argument("trace", metavar="TRACE")
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening the browser.")
@click.option(
    "--ui",
    default="https://ui.perfetto.dev",
    show_default=True,
    metavar="URL",
    help="The page that shows the trace, as for a copy of it on your own network. No other origin gets the trace.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9001,
    show_default=True,
    help="The port on this machine. https://ui.perfetto.dev may ask port 9001 only; 0 takes any that is free.",
)
def command(trace: str, no_browser: bool, ui: str, port: int) -> None:  # noqa: FBT001
    """Open TRACE in Perfetto: it is served from this machine to the page, and goes nowhere else.

    The server answers on 127.0.0.1 only, for this one file and the page's origin, and stops once the file was fetched
    (or on Ctrl-C). With the browser on another machine, forward the port first:
    ssh -L 9001:127.0.0.1:9001 HOST

    \b
    Example:
      tracekit open decode.pftrace
      tracekit open decode.pftrace --no-browser
    """
    import webbrowser

    from tracekit.trace.serve import TraceServer

    server = TraceServer(trace, ui=ui, port=port)
    if no_browser or not webbrowser.open(server.link):
        click.echo(server.link)
    click.echo("serving the trace until it was fetched; Ctrl-C stops", err=True)
    server.serve()
    click.echo("fetched", err=True)
