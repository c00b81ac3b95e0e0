"""``tracekit patch``: instrumentation for the engines."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracekit.patching import Patch, Report

_TREE = click.Path(path_type=Path)


@click.group("patch")
def command() -> None:
    """Make an engine print timing lines: build the preload shim, or patch a source tree.

    \b
    Example:
      tracekit patch list
      tracekit patch build ggml-shim -o shim.so
      tracekit patch apply ~/src/llama.cpp
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def list_(as_json: bool) -> None:  # noqa: FBT001
    """List the instruments: what each times, for which version, how far it was tested.

    \b
    Example:
      tracekit patch list
      tracekit patch list --json
    """
    from tracekit.patching import patches

    if as_json:
        click.echo(json.dumps({"schema": 1, "patches": [_described(patch) for patch in patches()]}))
        return
    click.echo("\n\n".join(_facts(patch) for patch in patches()))


@command.command()
@click.argument("name")
def show(name: str) -> None:
    """Print an instrument whole: what it is, the lines it adds, the files it adds.

    \b
    Example:
      tracekit patch show llama-cpp-sycl
    """
    from tracekit.patching import find

    patch = find(name)
    parts = [_facts(patch), patch.diff]
    parts += [f"new file {path}:\n\n{text}" for path, text in patch.adds.items()]
    if patch.source is not None:
        parts.append(patch.source.read_text("utf-8"))
    click.echo("\n\n".join(part.rstrip("\n") for part in parts if part))


@command.command()
@click.argument("tree", type=_TREE)
@click.option("--patch", "name", metavar="NAME", help="Check this patch only, instead of all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def check(tree: Path, name: str | None, as_json: bool) -> int:  # noqa: FBT001
    """Tell whether a patch fits a source tree, is in it already, or why it is refused.

    Exits with 0 if one fits or is in it, else with 1. Nothing is written.

    \b
    Example:
      tracekit patch check ~/src/llama.cpp
      tracekit patch check ~/src/llama.cpp --patch llama-cpp-sycl --json
    """
    reports = _reports(tree, name)
    if as_json:
        click.echo(json.dumps({"schema": 1, "tree": str(tree), "patches": [asdict(report) for report in reports]}))
    else:
        click.echo("\n".join(_standing(report) for report in reports))
    return 0 if any(report.state in ("ready", "applied") for report in reports) else 1


@command.command()
@click.argument("tree", type=_TREE)
@click.option("--patch", "name", metavar="NAME", help="Apply this patch; not needed where one fits.")
def apply(tree: Path, name: str | None) -> None:
    """Apply the patch that fits a source tree, all or nothing.

    A tree that is unknown, or whose files have uncommitted changes, is refused with the reason.

    \b
    Example:
      tracekit patch apply ~/src/llama.cpp
      tracekit patch apply ~/src/ik_llama.cpp --patch ik-llama-cpp-sycl
    """
    from tracekit import patching

    patch = patching.find(name or _chosen(tree, "ready"))
    report = patching.apply(tree, patch)
    for path in report.files:
        click.echo(path)
    for note in (*report.notes, f"tested so far: {patch.tested}", f"switch it on by {patch.switch}"):
        click.echo(f"tracekit: {note}", err=True)


@command.command()
@click.argument("tree", type=_TREE)
@click.option("--patch", "name", metavar="NAME", help="Take this patch out; not needed where one is in the tree.")
def revert(tree: Path, name: str | None) -> None:
    """Take a patch out of a source tree again, all or nothing.

    \b
    Example:
      tracekit patch revert ~/src/llama.cpp
    """
    from tracekit import patching

    patch = patching.find(name or _chosen(tree, "applied"))
    kept = patching.revert(tree, patch)
    for path in (*patch.blobs, *patch.adds):
        click.echo(path)
    for path in kept:
        click.echo(f"tracekit: {path} was changed elsewhere since; those changes are kept", err=True)


@command.command()
@click.argument("name", type=click.Choice(["ggml-shim"]))
@click.option("-o", "--output", type=_TREE, required=True, help="The shared library to write.")
@click.option(
    "--ggml-include",
    type=_TREE,
    metavar="DIR",
    help="Directory with the ggml.h of the program to time; without it the layout common to all versions is used. "
    "Either is verified when the shim runs.",
)
@click.option("--cc", "compiler", metavar="COMPILER", help="C compiler; else $CC, cc, gcc, clang or icx.")
def build(name: str, output: Path, ggml_include: Path | None, compiler: str | None) -> None:
    """Build the preload shim with your C compiler.

    \b
    Example:
      tracekit patch build ggml-shim -o shim.so
      tracekit patch build ggml-shim -o shim.so --ggml-include ~/src/llama.cpp/ggml/include
    """
    from tracekit.shimbuild import build_shim

    built = build_shim(output, ggml_include=ggml_include, compiler=compiler)
    if built.warnings:
        click.echo(built.warnings, err=True)
    click.echo(built.path)
    click.echo(f"tracekit: load it into each worker: LD_PRELOAD={built.path.resolve()} rpc-server ...", err=True)


def _reports(tree: Path, name: str | None) -> list["Report"]:
    """Return how each source patch, or the named one, stands to a tree."""
    from tracekit import patching

    chosen = [patching.find(name)] if name else [patch for patch in patching.patches() if patch.kind == "source"]
    return [patching.check(tree, patch) for patch in chosen]


def _chosen(tree: Path, state: str) -> str:
    """Return the one patch that is in that state in a tree.

    Raises:
        PatchError: there is none, or more than one.
    """
    from tracekit.patching import PatchError

    reports = _reports(tree, None)
    fitting = [report.patch for report in reports if report.state == state]
    if len(fitting) > 1:
        raise PatchError(f"{tree}: {', '.join(fitting)} are {state}; name one by --patch")
    if not fitting:
        raise PatchError(f"{tree}: no patch is {state}\n" + "\n".join(_standing(report) for report in reports))
    return fitting[0]


def _standing(report: "Report") -> str:
    words = {
        "ready": "fits" + (", the very version it was made for" if report.exact else ""),
        "applied": "is applied",
        "refused": "is refused",
        "absent": "is for another tree",
    }
    lines = [f"{report.patch}: {words[report.state]}"]
    return "\n".join([*lines, *(f"  {line}" for line in (*report.reasons, *report.notes))])


def _facts(patch: "Patch") -> str:
    facts = {
        "for": f"{patch.upstream}: {patch.made_for}",
        "prints": ", ".join(patch.prints),
        "switch": patch.switch,
        "tested": patch.tested,
    }
    return "\n".join([f"{patch.name}  {patch.title}", *(f"  {key:<8}{value}" for key, value in facts.items())])


def _described(patch: "Patch") -> dict[str, object]:
    keys = ("name", "kind", "title", "upstream", "made_for", "switch", "tested")
    described: dict[str, object] = {key: getattr(patch, key) for key in keys}
    return described | {"prints": list(patch.prints), "files": [*patch.blobs, *patch.adds]}
