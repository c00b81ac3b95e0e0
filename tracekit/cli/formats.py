"""``tracekit formats``: the dialects that can be read."""

import json

import click


@click.command("formats")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--grammar", is_flag=True, help="Also print each dialect's whole grammar.")
def command(as_json: bool, grammar: bool) -> None:  # noqa: FBT001
    """List the log formats: what switches each on, what its numbers mean, a sample line.

    \b
    Example:
      tracekit formats
      tracekit formats --grammar
      tracekit formats --json
    """
    from tracekit import rules
    from tracekit.formats import describe, describe_text

    described = describe()
    if as_json:
        others = [{"marker": m.text, "meaning": m.meaning} for m in rules.markers()]
        click.echo(json.dumps({"schema": 1, "dialects": described, "not_read_yet": others}))
        return
    click.echo(describe_text(described, grammar=grammar), nl=False)
