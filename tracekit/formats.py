"""Descriptions of the dialects, for people and as data."""

import inspect
import sys
from typing import Any

from tracekit import rules
from tracekit.dialect import Dialect
from tracekit.parsers import catalogue


def describe() -> list[dict[str, Any]]:
    """Return name, family, kind, marker, switch, clock, unit, meaning, sample and grammar of every dialect."""
    return [
        {
            "name": d.name,
            "family": d.family,
            "kind": d.kind,
            "marker": d.marker,
            "switch": d.switch,
            "clock": d.clock,
            "resolution_ns": d.resolution_ns,
            "meaning": d.meaning,
            "sample": d.sample,
            "grammar": _grammar(d),
        }
        for d in catalogue()
    ]


def describe_text(described: list[dict[str, Any]], *, grammar: bool) -> str:
    """Return the descriptions as text, with what is known and not read yet."""
    lines = []
    for d in described:
        lines += [f"{d['name']} ({d['family']}, {d['kind']})", f"  {d['sample']}"]
        lines += [
            f"  switched on by  {d['switch']}",
            f"  meaning         {d['meaning']}",
            f"  clock           {d['clock']}",
            "",
        ]
        if grammar:
            lines += ["".join(f"  {line}\n" if line else "\n" for line in d["grammar"].splitlines())]
    lines.append("known, not read yet (named in the coverage ledger):")
    lines += [f"  {m.text:32} {m.meaning}" for m in rules.markers()]
    return "\n".join(lines) + "\n"


def _grammar(dialect: Dialect) -> str:
    """Return the docstring of the module that declares the dialect."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tracekit.parsers.") and any(v is dialect for v in vars(module).values()):
            return inspect.cleandoc(module.__doc__ or "")
    return ""
