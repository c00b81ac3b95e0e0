"""Patches that only add lines: reading them, finding where they belong, adding and removing the lines.

The format is a unified diff with one line of context at most on each side. Line numbers are nominal: a hunk belongs
where its context stands, inside the function that its header names behind the second ``@@``, and only there. Where
that place is missing or not the only one, nothing is guessed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.errors import TracekitError

_HEADER = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?(.*)$")


class HunkError(TracekitError):
    """A patch file is not one that only adds lines, or its place in a source file is missing or not unique."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines to add to one file at one place.

    Attributes:
        path: the file, relative to the tree.
        section: beginning of the line that opens the function it belongs in; empty: anywhere in the file.
        before, after: the neighbouring lines.
        added: the lines to add between them.
    """

    path: str
    section: str
    before: tuple[str, ...]
    added: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def where(self) -> str:
        """The place in words, for messages."""
        anchor = (self.after if any(map(str.strip, self.after)) else self.before)[0].strip()
        return f'{self.path}, at "{anchor}"' + (f" in {self.section.rstrip('(')}()" if self.section else "")


def parse(text: str, name: str) -> tuple[Hunk, ...]:
    """Return the hunks of a unified diff.

    Args:
        text: the diff.
        name: what to call it in messages.

    Raises:
        HunkError: it removes lines, or a hunk has no context or adds nothing.

    Example:
        >>> [hunk] = parse("+++ b/a.cpp\\n@@ -1,2 +1,3 @@ int f(\\n {\\n+    trace();\\n     g();\\n", "demo")
        >>> hunk.path, hunk.section, hunk.added
        ('a.cpp', 'int f(', ('    trace();',))
    """
    hunks: list[Hunk] = []
    path, section, body = "", "", list[str]()

    def close() -> None:
        if body:
            hunks.append(_hunk(path, section, body, name))
            body.clear()

    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(("--- ", "+++ ")):
            close()
            path = line[4:].split("\t")[0].removeprefix("b/") if line.startswith("+++ ") else path
        elif header := _HEADER.match(line):
            close()
            section = header[1]
        elif line.startswith((" ", "+")) or not line:
            body.append(line or " ")
        else:
            raise HunkError(f"{name}:{number}: {line[:60]!r} is not an added line or its context")
    close()
    return tuple(hunks)


def _hunk(path: str, section: str, body: Sequence[str], name: str) -> Hunk:
    """Return the hunk of a body: context, added lines, context."""
    first = next((i for i, line in enumerate(body) if line[0] == "+"), len(body))
    last = next((i for i in range(first, len(body)) if body[i][0] != "+"), len(body))
    parts = [tuple(line[1:] for line in part) for part in (body[:first], body[first:last], body[last:])]
    if not path or not parts[1] or not (parts[0] or parts[2]) or any(line[0] == "+" for line in body[last:]):
        raise HunkError(f"{name}: a hunk of {path or 'no file'} must be context, added lines, context")
    return Hunk(path, section, *parts)


def add(lines: Sequence[str], hunks: Sequence[Hunk]) -> list[str]:
    """Return the lines with every hunk's lines added.

    Raises:
        HunkError: a hunk's place is missing or not the only one.
    """
    result = list(lines)
    for hunk in hunks:
        at = place(result, hunk, present=False)
        end = "\r" if result[at - 1 if at else 0].endswith("\r") else ""
        result[at:at] = [line + end for line in hunk.added]
    return result


def remove(lines: Sequence[str], hunks: Sequence[Hunk]) -> list[str]:
    """Return the lines without those that the hunks added.

    Raises:
        HunkError: the added lines are not all there, unchanged and in their place.
    """
    result = list(lines)
    for hunk in hunks:
        at = place(result, hunk, present=True)
        del result[at : at + len(hunk.added)]
    return result


def place(lines: Sequence[str], hunk: Hunk, *, present: bool) -> int:
    """Return the index at which the added lines belong, or stand if they are `present`.

    Raises:
        HunkError: there is no such place, or more than one.
    """
    wanted = [*hunk.before, *(hunk.added if present else ()), *hunk.after]
    plain = [line.removesuffix("\r") for line in lines]
    start, stop = _section(plain, hunk)
    found = [i for i in range(start, stop - len(wanted) + 1) if plain[i : i + len(wanted)] == wanted]
    if len(found) != 1:
        count = "not found" if not found else f"found {len(found)} times"
        raise HunkError(f"{hunk.where}: {count}")
    return found[0] + len(hunk.before)


def _section(lines: Sequence[str], hunk: Hunk) -> tuple[int, int]:
    """Return where the function that a hunk belongs in begins, and where a line opens with its closing ``}``."""
    if not hunk.section:
        return 0, len(lines)
    # A declaration ends in a semicolon; the definition is meant.
    opens = [i for i, line in enumerate(lines) if line.startswith(hunk.section) and not line.rstrip().endswith(";")]
    if len(opens) != 1:
        count = "not found" if not opens else f"defined {len(opens)} times"
        raise HunkError(f"{hunk.path}: {hunk.section.rstrip('(')}() is {count}")
    stop = next((i for i in range(opens[0], len(lines)) if lines[i].startswith("}")), len(lines))
    return opens[0], stop
