"""Protocol-buffer messages of one shape, encoded by columns: row i of every field makes message i.

A field is a run of *chunks*: up to eight bytes of each row, held as one integer, and how many of them count. Chunks
that fit together are joined before anything is written, so that a message of forty bytes costs five writes of whole
words over all rows. Nothing here knows what the messages mean.

Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

VARINT, FIXED64, LENGTH = 0, 1, 2

_WORD = 8  # bytes


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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Up to eight bytes of every row, the first one lowest; one number where all rows agree."""

    value: Words | int
    size: Ints | int

    @property
    def largest(self) -> int:
        """The most bytes that a row has."""
        return self.size if isinstance(self.size, int) else int(self.size.max(initial=0))

    def joined(self, behind: "Chunk") -> "Chunk":
        """Return one chunk of both; together they must not exceed eight bytes."""
        if isinstance(self.value, int) and isinstance(behind.value, int) and isinstance(self.size, int):
            return Chunk(self.value | behind.value << 8 * self.size, self.size + behind.size)
        return Chunk(_word(self.value) | _shifted(behind.value, self.size), self.size + behind.size)


def _word(value: Words | int) -> Words | np.uint64:
    return np.uint64(value) if isinstance(value, int) else value


def _shifted(value: Words | int, size: Ints | int) -> Words:
    """Return values moved up by so many bytes."""
    shifted: Words = np.left_shift(_word(value), _bits(size))
    return shifted


def _chunk(text: bytes) -> Chunk:
    return Chunk(int.from_bytes(text, "little"), len(text))


class Field(Protocol):
    """One field of every message."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield its bytes, front to back."""

    @property
    def size(self) -> Ints | int:
        """How many bytes each row takes; one number where all rows take the same."""


def varint_size(values: Ints) -> Ints | int:
    """Return how many bytes each value takes as a varint; negative values take ten.

    >>> varint_size(np.array([0, 127, 128, -1]))
    array([ 1,  1,  2, 10])
    """
    lowest, highest = int(values.min(initial=0)), int(values.max(initial=0))
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


#: The bits that say "more bytes follow", for a varint of so many bytes, cut to its first eight.
_MORE = np.array([sum(0x80 << 8 * i for i in range(min(n - 1, _WORD))) for n in range(1, 11)], np.uint64)


def _varint(values: Ints, size: Ints | int) -> Iterator[Chunk]:
    words = values.view(np.uint64)
    if isinstance(size, int):
        yield Chunk(words, 1)
        return
    longest = int(size.max())
    spread = words & np.uint64(0x7F)
    for n in range(1, min(longest, _WORD)):
        spread |= (words << np.uint64(n)) & np.uint64(0x7F << 8 * n)
    yield Chunk(spread | _MORE[size - 1], np.minimum(size, _WORD))
    if longest > _WORD:  # the ninth and tenth byte: the bits above the 56th
        ninth = (words >> np.uint64(56)) & np.uint64(0x7F) | np.where(size > 9, np.uint64(0x80), np.uint64(0))
        tenth = words >> np.uint64(63)
        yield Chunk(ninth | tenth << np.uint64(8), np.maximum(size - _WORD, 0))


@dataclass(slots=True)
class Const:
    """The same bytes in every message."""

    text: bytes

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self.text)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the bytes."""
        for at in range(0, len(self.text), _WORD):
            yield _chunk(self.text[at : at + _WORD])


class Varint:
    """An integer behind its tag; constant fields that stand just before it may be part of the tag."""

    def __init__(self, tag: bytes, values: Ints) -> None:
        same = len(values) and values[0] >= 0 and (values == values[0]).all()
        if same:  # the commonest case by far for what a whole track shares
            number, rest = int(values[0]), bytearray()
            while number > 0x7F:
                rest.append(number & 0x7F | 0x80)
                number >>= 7
            tag, values = tag + bytes([*rest, number]), values[:0]
        self._tag = Const(tag)
        self._values = values
        self._own: Ints | int = 0 if same else varint_size(values)

    @property
    def size(self) -> Ints | int:
        """How many bytes each row takes, tag included."""
        return self._tag.size + self._own

    def chunks(self) -> Iterator[Chunk]:
        """Yield tag and integer."""
        yield from self._tag.chunks()
        if len(self._values):
            yield from _varint(self._values, self._own)


@dataclass(slots=True)
class Fixed64:
    """Eight bytes behind a tag: a double or a fixed64, given as its bits."""

    tag: bytes
    bits: Words

    @property
    def size(self) -> int:
        """How many bytes, tag included."""
        return len(self.tag) + _WORD

    def chunks(self) -> Iterator[Chunk]:
        """Yield tag and bits, the least significant byte first."""
        yield _chunk(self.tag)
        yield Chunk(self.bits, _WORD)


class Message:
    """A message inside each message: tag, length, fields one after the other."""

    def __init__(self, tag: bytes, fields: Sequence[Field]) -> None:
        self._tag = tag
        self._fields = fields
        self._body: Ints | int = sum((f.size for f in fields), start=0)
        self._prefix = Varint(tag, np.array([self._body]) if isinstance(self._body, int) else self._body)
        self.size: Ints | int = self._prefix.size + self._body

    def chunks(self) -> Iterator[Chunk]:
        """Yield tag, length and the fields."""
        yield from self._prefix.chunks()
        for one in self._fields:
            yield from one.chunks()


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
    starts = ends - sizes
    buffer = np.empty(int(ends[-1]) if total else 0, np.uint8)
    for places, message in shapes:
        if len(places):
            _write(buffer, starts[places], _joined(message.chunks()))
    return buffer, starts


def _joined(chunks: Iterator[Chunk]) -> list[Chunk]:
    """Join neighbours that fit into one word for every row."""
    joined: list[Chunk] = []
    for chunk in chunks:
        if joined and joined[-1].largest + chunk.largest <= _WORD:
            joined[-1] = joined[-1].joined(chunk)
        else:
            joined.append(chunk)
    return joined


def _write(buffer: Bytes, at: Ints, chunks: Sequence[Chunk]) -> None:
    """Write the chunks of each row one after the other, from ``at`` on.

    A chunk is written as a whole word where the row goes on for that long: what stands above it is overwritten by the
    next one. The last eight bytes of a row are one word that is put together first, so that no byte of the next row is
    touched.
    """
    left = np.broadcast_to(np.asarray(sum((c.size for c in chunks), start=0)), at.shape)
    if left.min() < _WORD:
        raise ValueError("messages of less than eight bytes are not written by columns")
    # Every address is a valid word's: the view has one for each byte.
    words = np.ndarray(len(buffer) - _WORD + 1, "<u8", buffer, 0, (1,))
    end = at + left - _WORD
    for chunk in chunks:
        if left.min() >= _WORD:
            words[at] = chunk.value
        else:
            rows = np.flatnonzero(left >= _WORD)
            words[at[rows]] = chunk.value if isinstance(chunk.value, int) else chunk.value[rows]
        at = at + chunk.size
        left = left - chunk.size
    last = chunks[-1].size
    if not isinstance(last, int) or last != _WORD:
        words[end] = _last_word(chunks)


def _last_word(chunks: Sequence[Chunk]) -> Words | np.uint64:
    """Return the last eight bytes of each row."""
    word: Words | np.uint64 = np.uint64(0)
    room: Ints | int = _WORD
    for chunk in reversed(chunks):
        if np.max(room) <= 0:
            break
        beyond = chunk.size - room  # of the chunk, what stands before the last eight bytes; or less than nothing
        value = np.right_shift(_word(chunk.value), _bits(np.maximum(beyond, 0)))
        word = word | np.left_shift(value, _bits(np.maximum(-beyond, 0)))
        room = np.maximum(room - chunk.size, 0)
    return word


def _bits(size: Ints | np.int64 | int) -> Words | np.uint64:
    """Return how far to shift by so many bytes; eight bytes and more shift everything out."""
    return np.asarray(size, np.int64).view(np.uint64) << np.uint64(3)
