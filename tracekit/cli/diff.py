"""``tracekit diff``: what changed from one side to the other, and what of it is proven."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import options

if TYPE_CHECKING:
    from tracekit.diff.comparison import Repeat

_MANY = 25


@click.command("diff")
@click.argument("side", nargs=-1, metavar="[A B [C]...]")
@click.option("--a", "a", multiple=True, metavar="PATH", help="A run of side A. Once for each repeat.")
@click.option("--b", "b", multiple=True, metavar="PATH", help="A run of side B. Once for each repeat.")
@click.option(
    "--by",
    metavar="COLUMN[,COLUMN...]",
    help="Compare by op, name, category, layer, worker, rank, shape, device, dialect, phase, tokens "
    "(default: op; category where the engines differ).",
)
@click.option(
    "--min-effect",
    type=click.FloatRange(0, 100, max_open=True),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="The smallest change that matters: what is shown to lie within it is the same.",
)
@click.option(
    "--run-sd",
    type=click.FloatRange(0, 100),
    default=2.5,
    show_default=True,
    metavar="PERCENT",
    help="Standard deviation between runs of one configuration, assumed for a side that has one run.",
)
@click.option(
    "--center",
    type=click.Choice(["mean", "median"]),
    default="mean",
    show_default=True,
    help="What stands for a run: the mean over its steps, which adds up, or the median, which outliers do not move.",
)
@click.option(
    "--pair",
    "pairs",
    multiple=True,
    metavar="OLD[+OLD...]=NEW",
    help="What is OLD in A is NEW in B (renamed, or fused). Repeatable.",
)
@click.option("--no-renames", is_flag=True, help="Do not put fused operations together by rule (rules/renames.toml).")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="CONDITION",
    help="Exit with 5 if a row or the total has this verdict, as in slower:2% (by 2 % or more), unclear, only-in-b; "
    "total-slower:2% looks at the total alone. Repeatable.",
)
@options.topology("times add", "their mean is compared")
@options.rows_shown(_MANY, "rows")
@options.moe_layers
@click.option("--strict", is_flag=True, help="Exit with 4 if the coverage has faults (lost or refused lines).")
@options.filters
@options.selection
@options.output(("table", "markdown", "csv", "json", "jsonl"))
def command(
    side: Sequence[str],
    a: Sequence[str],
    b: Sequence[str],
    by: str | None,
    min_effect: float,
    run_sd: float,
    center: str,
    pairs: Sequence[str],
    no_renames: bool,  # noqa: FBT001
    fail_on: Sequence[str],
    topology: str | None,
    limit: int | None,
    strict: bool,  # noqa: FBT001
    where: Sequence[str],
    phase: str | None,
    chosen: str | None,
    skip: int,
    form: str,
    target: str | None,
    ledger: str,
) -> None:
    """Compare B (and C...) with A: per bucket the cost of a step, the ratio with its interval, a verdict.

    Each of A, B, --a and --b is one run: a log, a quoted glob of its workers' logs, or a directory (of a capture); a
    glob that matches directories is a repeat for each. Give repeats: runs of one configuration differ by a few percent,
    so one run a side proves large changes only.

    \b
    Example:
      tracekit diff before/ after/ --phase decode --skip-steps 1
      tracekit diff --a base-1.log --a base-2.log --a base-3.log --b 'new-*/' --by category
      tracekit diff before.log after.log --fail-on total-slower:2%
    """
    from tracekit.diff.comparison import Settings, diff
    from tracekit.diff.condition import Condition
    from tracekit.diff.pairing import Pair
    from tracekit.diff.render import render
    from tracekit.errors import ConditionError
    from tracekit.table import ledger_of

    settings = Settings(
        by=None if by is None else options.columns(by), where=where,
        center="median" if center == "median" else "mean", min_effect=min_effect / 100, run_sd=run_sd / 100,
        arrangement=topology, pairs=[Pair.parse(p) for p in pairs], renames=not no_renames,
    )  # fmt: skip
    conditions = [Condition.parse(text) for text in fail_on]
    sides = _sides(side, a, b)
    opened = [[_open(path, target, phase, chosen, skip) for path in paths] for paths in sides]
    runs = [repeat.run for repeats in opened for repeat in repeats]
    found = [one for other in opened[1:] for one in diff(opened[0], other, settings)]
    coverage = ledger_of(*runs)
    options.deliver(render(found, coverage, form, options.rows_limit(limit, form, _MANY)), target)
    options.tell(coverage, ledger, strict=strict)
    for condition in conditions:
        if met := condition.holds(found):
            raise ConditionError(f"--fail-on {condition.text} holds: {met}")


def _sides(side: Sequence[str], a: Sequence[str], b: Sequence[str]) -> list[list[str]]:
    """Return the paths of each side's repeats, A first.

    Raises:
        UsageError: there are not two sides, or they were given in both ways.
    """
    from tracekit.errors import UsageError

    if side and (a or b):
        raise UsageError("give the sides as A B, or with --a and --b, not both")
    if (a or b) and not (a and b):
        raise UsageError(f"side {'B' if a else 'A'} is missing: give --a and --b, once for each repeat")
    if not (a or b) and len(side) < 2:
        raise UsageError("two sides are needed: tracekit diff A B, or --a A1 --a A2 --b B1 --b B2 with repeats")
    groups = [a, b] if a else [[one] for one in side]
    return [[path for given in group for path in _repeats(given)] for group in groups]


def _repeats(given: str) -> list[str]:
    """Return one path for each run that was named.

    A glob names several if it matches directories, or logs of one name in several directories.
    """
    path = Path(given)
    if path.exists() or not any(c in given for c in "*?["):
        return [given]
    base = Path(path.anchor) if path.is_absolute() else Path()
    found = sorted(base.glob(str(path.relative_to(path.anchor))))
    folders = [str(f) for f in found if f.is_dir()]
    of_one_name = len(found) > 1 and len({f.name for f in found}) == 1
    return folders or ([str(f) for f in found] if of_one_name else [given])


def _open(path: str, target: str | None, phase: str | None, chosen: str | None, skip: int) -> "Repeat":
    """Open one run.

    Raises:
        UsageError: its logs are of several runs.
    """
    from tracekit.diff.comparison import Repeat
    from tracekit.errors import UsageError
    from tracekit.source import shared_names

    run = options.open_run([path], (), target, phase=phase, chosen=chosen, skip=skip)
    for name, paths in shared_names(run.streams).items():
        raise UsageError(
            f"{path}: {len(paths)} logs have one worker name, {name} ({paths[0]}, {paths[1]}): they are several runs; "
            "name each run's directory, with --a or --b once for each, or as a glob that matches directories"
        )
    return Repeat(path.rstrip("/") or path, run)
