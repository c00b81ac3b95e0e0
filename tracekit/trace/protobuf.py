"""Protocol-buffer messages of one shape, encoded by columns: row i of every field makes message i.

A field knows how many bytes each of its rows takes, so a whole chunk of messages is laid out by one cumulative
sum and filled in a few vectorised writes per field. Nothing here knows what the messages mean.

Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


VARINT, FIXED64, LENGTH = 0, 1, 2


def tag(number: int, wire: int) -> bytes:
    """Return the bytes that announce a field: its number and its wire type.

    >>> tag(17, VARINT).hex()
    '8801'
    """
    key, parts = number << 3 | wire, bytearray()
    while key > 0x7F:
        parts.append(key & 0x7F | 0x80)
        key >>= 7
    return bytes([*parts, key])


class Field(Protocol):
    """One field of every message.

    Attributes:
        size: bytes that each row takes; one number where all rows take the same.
    """

    size: Ints | int

    def write(self, buffer: Bytes, at: Ints) -> None:
        """Write row i of the field at ``buffer[at[i]:]``."""


def varint_size(values: Ints) -> Ints | int:
    """Return how many bytes each value takes as a varint; negative values take ten.

    >>> varint_size(np.array([0, 127, 128, -1]))
    array([ 1,  1,  2, 10])
    """
    if not len(values):
        return 1
    lowest, highest = int(values.min()), int(values.max())
    if lowest >= 0 and highest < 128:
        return 1
    size = np.ones(len(values), np.int64)
    bound = 128
    while bound <= highest:
        size += values >= bound
        bound <<= 7
    if lowest < 0:
        size[values < 0] = 10
    return size


def _write_bytes(buffer: Bytes, at: Ints, text: bytes) -> None:
    for offset, byte in enumerate(text):
        buffer[at + offset] = byte


def _write_varint(buffer: Bytes, at: Ints, values: Ints, size: Ints | int) -> None:
    if isinstance(size, int):
        buffer[at] = values
        return
    # Rows that are done drop out, so that each further byte costs only the rows that have it.
    rest = values.view(np.uint64)
    more = size > 1
    buffer[at] = (rest & np.uint64(0x7F)) | np.where(more, np.uint64(0x80), np.uint64(0))
    while more.any():
        at, rest, size = at[more] + 1, rest[more] >> np.uint64(7), size[more] - 1
        more = size > 1
        buffer[at] = (rest & np.uint64(0x7F)) | np.where(more, np.uint64(0x80), np.uint64(0))


@dataclass(slots=True)
class Const:
    """The same bytes in every message."""

    text: bytes
    size: Ints | int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.text)

    def write(self, buffer: Bytes, at: Ints) -> None:
        """Write the bytes."""
        _write_bytes(buffer, at, self.text)


@dataclass(slots=True)
class Varint:
    """An integer behind its tag; constant fields that stand just before it may be part of the tag."""

    tag: bytes
    values: Ints
    size: Ints | int = field(init=False)
    _own: Ints | int = field(init=False)

    def __post_init__(self) -> None:
        self._own = varint_size(self.values)
        self.size = len(self.tag) + self._own

    def write(self, buffer: Bytes, at: Ints) -> None:
        """Write tag and integer."""
        _write_bytes(buffer, at, self.tag)
        _write_varint(buffer, at + len(self.tag), self.values, self._own)


@dataclass(slots=True)
class Fixed64:
    """Eight bytes behind a tag: a double or a fixed64, given as its bits."""

    tag: bytes
    bits: npt.NDArray[np.uint64]
    size: Ints | int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.tag) + 8

    def write(self, buffer: Bytes, at: Ints) -> None:
        """Write tag and bits, least significant byte first."""
        _write_bytes(buffer, at, self.tag)
        octets = self.bits.astype("<u8").view(np.uint8).reshape(-1, 8)
        buffer[(at + len(self.tag))[:, None] + np.arange(8)] = octets


@dataclass(slots=True)
class Message:
    """A message inside each message: tag, length, fields one after the other."""

    tag: bytes
    fields: Sequence[Field]
    size: Ints | int = field(init=False)
    _body: Ints | int = field(init=False)
    _prefix: Ints | int = field(init=False)

    def __post_init__(self) -> None:
        self._body = sum((f.size for f in self.fields), start=0)
        if isinstance(self._body, int):
            self._prefix = int(np.asarray(varint_size(np.array([self._body]))).item())
        else:
            self._prefix = varint_size(self._body)
        self.size = len(self.tag) + self._prefix + self._body

    def write(self, buffer: Bytes, at: Ints) -> None:
        """Write tag, length and the fields."""
        _write_bytes(buffer, at, self.tag)
        at = at + len(self.tag)
        body, size = self._body, self._prefix
        if isinstance(body, int):
            body = np.full(len(at), body, np.int64)
            size = varint_size(body)
        _write_varint(buffer, at, body, size)
        at = at + size
        for one in self.fields:
            one.write(buffer, at)
            at = at + one.size


@dataclass(slots=True)
class Some:
    """A field that only some messages have; the field inside holds just their rows."""

    rows: Ints
    inside: Field
    total: int
    size: Ints | int = field(init=False)

    def __post_init__(self) -> None:
        size = np.zeros(self.total, np.int64)
        size[self.rows] = self.inside.size
        self.size = size

    def write(self, buffer: Bytes, at: Ints) -> None:
        """Write the rows that there are."""
        self.inside.write(buffer, at[self.rows])


def interleave(shapes: Sequence[tuple[Ints, Message]]) -> tuple[Bytes, Ints]:
    """Encode messages of several shapes into one run of bytes.

    Args:
        shapes: for each shape the places of its messages in the common order (together a permutation of
            ``range(n)``), and the messages.

    Returns:
        The bytes, and where each message begins in them.
    """
    total = sum(len(places) for places, _ in shapes)
    sizes = np.empty(total, np.int64)
    for places, message in shapes:
        sizes[places] = message.size
    ends = np.cumsum(sizes)
    buffer = np.empty(int(ends[-1]) if total else 0, np.uint8)
    starts = ends - sizes
    for places, message in shapes:
        if len(places):
            message.write(buffer, starts[places])
    return buffer, starts
