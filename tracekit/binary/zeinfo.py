"""Reader of the YAML that ``.ze_info`` sections hold: the part of YAML that their writers use, and nothing else.

Compilers write block mappings and sequences, one-line ``[a, b]`` sequences and plain or quoted scalars. Anchors,
tags, multi-line scalars and flow mappings do not occur: they are refused with the line, not guessed at. Scalars stay
text; what is a number is known by who reads it.

    >>> read("---\\nversion: '1.39'\\nkernels:\\n  - name: k\\n    sizes: [ 1, 2 ]\\n...\\n")
    {'version': '1.39', 'kernels': [{'name': 'k', 'sizes': ['1', '2']}]}
"""

import io
import re
from dataclasses import dataclass

from tracekit.binary.elf import DamagedError

Value = str | list["Value"] | dict[str, "Value"]

#: More lines than the kernels of any image take.
_MAX_LINES = 2_000_000

#: Deeper nesting than any .ze_info has.
_MAX_DEPTH = 16

_LINE = re.compile(r"( *)(.*?)\s*$")
_KEY = re.compile(r"([A-Za-z_][\w.-]*):(?:\s+(.*))?$")
_SINGLE = re.compile(r"'((?:[^']|'')*)'")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)")
_ESCAPED = {
    "a": "\a",
    "b": "\b",
    "v": "\v",
    "f": "\f",
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "0": "\0",
    "e": "\x1b",
    '"': '"',
    "\\": "\\",
    "/": "/",
    " ": " ",
}
#: Plain scalars that would mean something else in YAML: indicators at their beginning.
_INDICATORS = "&*!|>{}[]%@`\"'#,?"


@dataclass(slots=True)
class _Line:
    number: int
    indent: int
    text: str


def read(text: str) -> dict[str, Value]:
    """Return the document as nested mappings and lists of text.

    Raises:
        DamagedError: a line is outside of the subset; the message names it.
    """
    lines = _lines(text)
    if not lines:
        return {}
    value, at = _block(lines, 0, 0)
    if at < len(lines):
        raise _bad(lines[at], "is not indented like the lines around it")
    if not isinstance(value, dict):
        raise _bad(lines[0], "is no `key: value`")
    return value


def _lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    for number, raw in enumerate(io.StringIO(text.rstrip("\0")), 1):
        if number > _MAX_LINES:
            raise DamagedError(f".ze_info has more than {_MAX_LINES:,} lines")
        match = _LINE.match(raw)
        assert match is not None  # the pattern matches any line
        content = match[2]
        if not content or content.startswith("#") or (content == "---" and not lines):
            continue
        if content == "...":
            break
        if "\t" in match[1] or content.startswith("\t"):
            raise DamagedError(f".ze_info line {number}: indented by a tab")
        lines.append(_Line(number, len(match[1]), content))
    return lines


def _block(lines: list[_Line], at: int, depth: int) -> tuple[Value, int]:
    if depth > _MAX_DEPTH:
        raise _bad(lines[at], f"is nested deeper than {_MAX_DEPTH} levels")
    if _is_item(lines[at]):
        return _sequence(lines, at, depth)
    return _mapping(lines, at, depth)


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _sequence(lines: list[_Line], at: int, depth: int) -> tuple[list[Value], int]:
    indent, items = lines[at].indent, list[Value]()
    while at < len(lines) and lines[at].indent == indent and _is_item(lines[at]):
        line = lines[at]
        rest = line.text[1:].lstrip(" ")
        if rest and not _KEY.match(rest):
            items.append(_inline(rest, line))
            at += 1
            continue
        if rest:  # the item's first key stands behind the dash: read it as a line of its own, indented to there
            lines[at] = _Line(line.number, indent + len(line.text) - len(rest), rest)
        else:
            at += 1
            if at == len(lines) or lines[at].indent <= indent:
                raise _bad(line, "is an item without content")
        item, at = _block(lines, at, depth + 1)
        items.append(item)
    return items, at


def _mapping(lines: list[_Line], at: int, depth: int) -> tuple[dict[str, Value], int]:
    indent, found = lines[at].indent, dict[str, Value]()
    while at < len(lines) and lines[at].indent == indent and not _is_item(lines[at]):
        line = lines[at]
        match = _KEY.match(line.text)
        if match is None:
            raise _bad(line, "is no `key: value`")
        if match[1] in found:
            raise _bad(line, f"gives {match[1]} twice")
        at += 1
        value: Value
        if match[2]:
            value = _inline(match[2], line)
        elif at < len(lines) and (lines[at].indent > indent or (lines[at].indent == indent and _is_item(lines[at]))):
            value, at = _block(lines, at, depth + 1)
        else:
            value = ""
        found[match[1]] = value
    if at < len(lines) and lines[at].indent > indent:
        raise _bad(lines[at], "is not indented like the lines around it")
    return found, at


def _inline(text: str, line: _Line) -> Value:
    if text == "{}":
        return {}
    if text.startswith("["):
        if not text.endswith("]"):
            raise _bad(line, "holds a `[` that is not closed")
        inner = text[1:-1].strip()
        return [_scalar(part.strip(), line) for part in inner.split(",")] if inner else []
    return _scalar(text, line)


def _scalar(text: str, line: _Line) -> str:
    if match := _SINGLE.fullmatch(text):
        return match[1].replace("''", "'")
    if match := _DOUBLE.fullmatch(text):
        return _ESCAPE.sub(lambda found: _escaped(found[1], line), match[1])
    if not text or text[0] in _INDICATORS or ": " in text or " #" in text:
        raise _bad(line, "holds a value that is neither plain nor quoted")
    return text


def _escaped(code: str, line: _Line) -> str:
    if code in _ESCAPED:
        return _ESCAPED[code]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    raise _bad(line, f"holds the unknown escape \\{code}")


def _bad(line: _Line, what: str) -> DamagedError:
    return DamagedError(f".ze_info line {line.number}: {line.text[:60]!r} {what}")
