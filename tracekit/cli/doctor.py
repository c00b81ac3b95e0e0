"""``tracekit doctor``: what this machine has for timing runs, and what is missing."""

import json

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(as_json: bool) -> None:  # noqa: FBT001
    """Tell what this machine has for timing runs: GPUs, drivers, groups, oneAPI, engines, and what is missing.

    For each dialect it says whether it could be captured here. Nothing is run and no device is touched.
    Exits with 0 whatever is missing: scripts read `verdicts` of the JSON.

    \b
    Example:
      tracekit doctor
      tracekit doctor --json
    """
    from tracekit.doctor import examination_json, examine
    from tracekit.doctor_text import examination_text

    found = examine()
    if as_json:
        click.echo(json.dumps(examination_json(found)))
    else:
        click.echo(examination_text(found), nl=False)
