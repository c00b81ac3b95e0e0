"""Rules that experts change, as data: categories, layer patterns, the hierarchy of regions, known markers.

Shipped in ``tracekit/rules/*.toml``; a file of the same name in the directory that the environment variable
TRACEKIT_RULES names is read instead. Each file is checked when it is read.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tracekit.errors import UsageError

T = TypeVar("T")

VARIABLE = "TRACEKIT_RULES"


@dataclass(frozen=True, slots=True)
class LayerRule:
    """A pattern whose group is a layer number; `families` empty means all."""

    pattern: str
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CategoryRule:
    """The category of what matches all patterns given (None: not asked)."""

    category: str
    family: str | None = None
    op: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """A class of regions: which labels belong to it and which classes may hold it."""

    name: str
    label: str
    inside: tuple[str, ...] = ()
    or_inside: tuple[str, ...] = ()
    anywhere: bool = False
    opens: str = ""


@dataclass(frozen=True, slots=True)
class Marker:
    """A known marker that no dialect reads."""

    text: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Notice:
    """What an instrument says of itself: a pattern, whose group (if any) is how many, and what it means."""

    pattern: str
    severity: str
    code: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Rename:
    """An operation that is several ones elsewhere: `op` and `name` are patterns of its parts."""

    new: str
    op: str
    name: str


@cache
def layer_rules() -> tuple[LayerRule, ...]:
    """Return the layer patterns, the first that matches first."""
    name = "layers.toml"
    rules = load(LayerRule, name, "rule", patterns=("pattern",))
    for rule in rules:
        if re.compile(rule.pattern).groups != 1:
            raise _bad(name, f"the pattern {rule.pattern!r} must have exactly one group, the layer's number")
    return rules


@cache
def category_rules() -> tuple[CategoryRule, ...]:
    """Return the category rules, the first that matches first; the last matches everything."""
    name = "categories.toml"
    rules = load(CategoryRule, name, "rule", patterns=("op", "name"))
    allowed = set(_taxonomy())
    if unknown := {r.category for r in rules} - allowed:
        raise _bad(name, f"unknown category {', '.join(sorted(unknown))}; allowed are {', '.join(sorted(allowed))}")
    if not rules or rules[-1] != CategoryRule(rules[-1].category):
        raise _bad(name, "the last rule must match everything")
    return rules


@cache
def categories() -> tuple[str, ...]:
    """Return the taxonomy in its declared order."""
    return _taxonomy()


def _taxonomy() -> tuple[str, ...]:
    name = "categories.toml"
    found = _read(name).get("categories")
    if not isinstance(found, list) or not all(isinstance(c, str) for c in found):
        raise _bad(name, "needs categories = [...], the names there are")
    return tuple(found)


#: Categories that are shown but not counted as cost: no work at all, and waiting for other processes.
NOT_COST = ("view", "wait")


@cache
def declared_regions() -> tuple[Region, ...]:
    """Return the classes of regions as declared: of two that match a label the first is taken."""
    name = "regions.toml"
    found = load(Region, name, "region", patterns=("label",))
    names = {r.name for r in found}
    for region in found:
        if unknown := {*region.inside, *region.or_inside, region.opens or region.name} - names:
            raise _bad(name, f"region {region.name!r} names unknown {', '.join(sorted(unknown))}")
    return found


@cache
def regions() -> tuple[Region, ...]:
    """Return the classes of regions, ordered so that a class stands after all that may stand inside it."""
    found = list(declared_regions())
    ordered: list[Region] = []
    while found:
        holders = {holder for r in found for holder in (*r.inside, *r.or_inside)}
        ready = [r for r in found if r.name not in holders]
        if not ready:
            raise _bad("regions.toml", f"a circle: {', '.join(r.name for r in found)} stand inside one another")
        ordered += ready
        found = [r for r in found if r.name in holders]
    return tuple(ordered)


@cache
def markers() -> tuple[Marker, ...]:
    """Return the known markers that no dialect reads yet."""
    return load(Marker, "markers.toml", "marker")


@cache
def notices() -> tuple[Notice, ...]:
    """Return what tracekit's instruments may say of themselves in a log."""
    name = "notices.toml"
    found = load(Notice, name, "notice", patterns=("pattern",))
    for notice in found:
        if notice.severity not in ("fault", "note") or re.compile(notice.pattern).groups > 1:
            raise _bad(name, f"notice {notice.pattern!r}: severity must be fault or note, and at most one group")
    return found


@cache
def renames() -> tuple[Rename, ...]:
    """Return the fused operations and their parts, the first that matches first."""
    name = "renames.toml"
    found = load(Rename, name, "rename", patterns=("op", "name"))
    if doubled := {r.new for r in found if sum(o.new == r.new for o in found) > 1}:
        raise _bad(name, f"{', '.join(sorted(doubled))} is named twice")
    return found


def path(name: str) -> Path:
    """Return where a rule file is read from."""
    own = os.environ.get(VARIABLE)
    if own and (file := Path(own) / name).exists():
        return file
    return Path(__file__).parent / "rules" / name


def load(kind: type[T], name: str, key: str, patterns: Sequence[str] = ()) -> tuple[T, ...]:
    """Return the tables ``[[key]]`` of a rule file, each as one of `kind` (a dataclass: its fields are the schema).

    Args:
        patterns: fields that hold regular expressions.

    Raises:
        UsageError: the file cannot be read, or a table is not as the schema says.
    """
    tables = _read(name).get(key)
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise _bad(name, f"needs tables [[{key}]]")
    return tuple(_build(kind, name, key, table, patterns) for table in tables)


def _read(name: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _bad(name, str(error)) from error


def _build(kind: type[T], name: str, key: str, table: Mapping[str, Any], patterns: Sequence[str]) -> T:
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    try:
        built = kind(**values)
        for field in patterns:
            re.compile(str(values.get(field) or ""))
    except (TypeError, re.error) as error:
        raise _bad(name, f"[[{key}]] {dict(table)}: {error}") from error
    return built


def _bad(name: str, what: str) -> UsageError:
    return UsageError(f"{path(name)}: {what}")
