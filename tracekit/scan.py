"""The fast lane: lines that are one whole record of the commonest form, read from bytes without making strings.

A line of that form is ``<marker><head><cut><digits>`` and nothing else. Its head is recognised by a 64-bit hash of
its bytes, its number is read eight bytes at a time (arithmetic on 64-bit words instead of a loop over digits).
Whatever is not of that form is left to `records.RecordReader`, line by line; a new head is parsed there once.

With a thousand distinct heads two of them share a 64-bit hash with a probability below 10^-13.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

U64 = np.uint64
Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

#: Longer heads are no tensor's name: they take the slow way.
MAX_HEAD = 512

#: Bytes of a head that are fetched at once.
_STRIDE = 64

#: Bytes that may be looked at beyond the ends of a piece.
PAD = _STRIDE

#: Bytes that are worked on at once: what is made of them stays in a core's cache (measured: half the time of 2 MiB).
_PIECE = 1 << 19

#: What to keep of a stride when a number of its bytes is wanted.
_KEPT = np.ascontiguousarray(np.where(np.arange(_STRIDE) < np.arange(_STRIDE + 1)[:, None], 0xFF, 0).astype(np.uint8))
_KEPT = _KEPT.view(f"V{_STRIDE}").reshape(-1)

_ZEROS = U64(0x3030303030303030)
_LOW7 = U64(0x7F7F7F7F7F7F7F7F)
_HIGH = U64(0x8080808080808080)
_TO_HIGH = U64(0x7676767676767676)  # 0x7F + this + 10 sets the high bit: shows what is no digit
_MULTIPLY = U64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads bits (Knuth's multiplicative hashing)
_BUCKET_BITS = 16


@dataclass(frozen=True, slots=True)
class Scan:
    """The lines of a block and what the fast lane made of them.

    Attributes:
        starts, ends: byte offsets of each line (without its line end).
        rows: indices of the lines of the common form, in order.
        hashes: of their heads; heads: where these end.
        values: their numbers.
    """

    starts: Places
    ends: Places
    rows: Places
    hashes: Words
    heads: Places
    values: npt.NDArray[np.int64]


@dataclass(slots=True)
class HashTable:
    """Ids by 64-bit hash; -1 is a hash that was seen and means nothing."""

    known: Words = field(default_factory=lambda: np.empty(0, U64))
    ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    buckets: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(1 << _BUCKET_BITS, np.int32))

    def find(self, hashes: Words) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the id of each hash and whether it is known."""
        if not len(self.known):
            return np.full(len(hashes), -1), np.zeros(len(hashes), np.bool_)
        place = self.buckets[(hashes >> U64(64 - _BUCKET_BITS)).astype(np.int64)]
        hit = self.known[place] == hashes
        if not hit.all():  # another hash has the bucket, or it is new
            missed = np.flatnonzero(~hit)
            near = np.minimum(np.searchsorted(self.known, hashes[missed]), len(self.known) - 1)
            place[missed] = near
            hit[missed] = self.known[near] == hashes[missed]
        return self.ids[place], hit

    def add(self, hashes: Words, ids: npt.NDArray[np.int64]) -> None:
        """Remember new hashes."""
        known = np.concatenate((self.known, hashes))
        order = np.argsort(known)
        self.known, self.ids = known[order], np.concatenate((self.ids, ids))[order]
        self.buckets[(self.known >> U64(64 - _BUCKET_BITS)).astype(np.int64)] = np.arange(len(known), dtype=np.int32)


def scan(data: bytes, marker: bytes, cut: bytes) -> Scan:
    """Find the lines of ``data`` (which ends at a line end) of the form ``<marker><head><cut><digits>``.

    Args:
        data: a block of lines that end with ``\\n``.
        marker: at least eight bytes.
        cut: at most eight bytes.
    """
    found, start, lines = [], 0, 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + _PIECE) + 1 or data.index(b"\n", start) + 1
        piece = _scan(memoryview(data)[start:end], marker, cut)
        # The places of a piece become those of the block.
        for places, offset in ((piece.starts, start), (piece.ends, start), (piece.heads, start), (piece.rows, lines)):
            places += offset
        lines += len(piece.ends)
        found.append(piece)
        start = end
    return Scan(*(np.concatenate([getattr(piece, column) for piece in found]) for column in Scan.__slots__))


def _scan(data: memoryview, marker: bytes, cut: bytes) -> Scan:
    padded = b"".join((bytes(PAD), data, bytes(PAD)))
    octets = np.frombuffer(padded, np.uint8)
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    ends = np.flatnonzero(octets == ord("\n"))
    starts = np.empty_like(ends)
    starts[:1] = PAD
    starts[1:] = ends[:-1] + 1
    rows = _opening(words, starts, marker)
    number, digits = _number(words[ends[rows] - 8])
    heads = ends[rows] - digits - len(cut)
    length = heads - starts[rows]
    fits = (digits > 0) & (length > len(marker)) & (length <= MAX_HEAD)
    fits &= _ends_with(words, heads + len(cut), cut)
    if not fits.all():
        rows, number, heads = rows[fits], number[fits], heads[fits]
    hashes = _hash(octets, starts[rows] + len(marker), heads)
    return Scan(starts - PAD, ends - PAD, rows, hashes, heads - PAD, number)


def _opening(words: Words, starts: Places, marker: bytes) -> Places:
    """Return the lines that begin with the marker (compared in words, the last of which may overlap)."""
    places = [*range(0, len(marker) - 7, 8), len(marker) - 8]
    begins = np.ones(len(starts), np.bool_)
    for place in dict.fromkeys(places):
        begins &= words[starts + place] == U64(int.from_bytes(marker[place : place + 8], "little"))
    return np.flatnonzero(begins)


def _ends_with(words: Words, ends: Places, cut: bytes) -> npt.NDArray[np.bool_]:
    """Return whether the bytes before each end are the cut."""
    wanted = U64(int.from_bytes(cut, "little") << (64 - 8 * len(cut)))
    mask = U64((1 << 64) - (1 << (64 - 8 * len(cut))))
    return np.asarray((words[ends - 8] & mask) == wanted)


def _number(last: Words) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read the digits at the end of eight bytes: their number and how many there are (0 if none or all eight).

    The bytes are turned so that the last digit is the lowest byte; digits are then joined in pairs, pairs in
    fours, fours in eights.
    """
    turned = last.byteswap() ^ _ZEROS
    other = ((turned & _LOW7) + _TO_HIGH | turned) & _HIGH
    lowest = other & (~other + U64(1))
    below = (lowest >> U64(7)) - U64(1)  # the bytes under the first that is no digit; all ones if there is none
    kept = np.where(other != 0, turned & below, U64(0))
    pairs = (kept & U64(0x00FF00FF00FF00FF)) + U64(10) * ((kept >> U64(8)) & U64(0x00FF00FF00FF00FF))
    fours = (pairs & U64(0x0000FFFF0000FFFF)) + U64(100) * ((pairs >> U64(16)) & U64(0x0000FFFF0000FFFF))
    number = (fours & U64(0xFFFFFFFF)) + U64(10000) * (fours >> U64(32))
    digits = np.where(other != 0, np.bitwise_count(below) // 8, 0)
    return number.astype(np.int64), digits.astype(np.int64)


def _hash(octets: npt.NDArray[np.uint8], starts: Places, ends: Places) -> Words:
    """Hash the bytes between starts and ends, a stride of 64 at a time.

    Whole strides are fetched: one such fetch costs as much as one of eight bytes.
    """
    left = ends - starts
    result = left.astype(U64)
    strides = np.ndarray((len(octets) - _STRIDE + 1,), f"V{_STRIDE}", octets, strides=(1,))
    rows = np.arange(len(starts))
    at = starts
    while len(rows):
        words = strides[at].view("<u8").reshape(-1, _STRIDE // 8)
        words &= _KEPT[np.minimum(left, _STRIDE)].view("<u8").reshape(words.shape)
        mixed = result[rows]
        for k in range(_STRIDE // 8):
            mixed ^= words[:, k]
            mixed *= _MULTIPLY
            mixed ^= mixed >> U64(29)
        result[rows] = mixed
        more = left > _STRIDE
        rows, at, left = rows[more], at[more] + _STRIDE, left[more] - _STRIDE
    return result * _MULTIPLY
