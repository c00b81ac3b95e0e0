"""Device images: where they stand, their formats, their kernels and what those take."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import elf_writer as elf
import pytest
import zstandard

from tracekit.binary import DamagedError, inspect_file
from tracekit.binary.kernels import Kernel
from tracekit.binary.report import BinaryReport

BUNDLE = "__CLANG_OFFLOAD_BUNDLE__sycl-spir64"

INFO = """---
version:         '1.39'
kernels:
  - name:            simt_spills
    user_attributes:
      intel_reqd_sub_group_size: 16
    execution_env:
      grf_count:       128
      simd_size:       16
      slm_size:        8192
      spill_size:      512
      private_size:    64
      work_group_walk_order_dimensions: [ 0, 1, 2 ]
    payload_arguments:
      - arg_type:        arg_bypointer
        offset:          0
        size:            8
    per_thread_memory_buffers:
      - type:            scratch
        usage:           single_space
        size:            640
        slot:            1
  - name:            'simt; clean'
    execution_env:
      grf_count:       256
      simd_size:       32
  - name:            "esimd"
    execution_env:
      grf_count:       256
      simd_size:       1
    per_thread_memory_buffers:
      - type:            scratch
        usage:           single_space
        size:            1024
kernels_misc_info:
  - name:            simt_spills
    args_info: []
...
"""

KERNELS = (
    Kernel("simt_spills", 16, 128, spill_bytes=512, scratch_bytes=640, private_bytes=64, slm_bytes=8192),
    Kernel("simt; clean", 32, 256, spill_bytes=0, scratch_bytes=0, private_bytes=None, slm_bytes=0),
    Kernel("esimd", 1, 256, spill_bytes=None, scratch_bytes=1024, private_bytes=None, slm_bytes=0),
)


def report(tmp_path: Path, data: bytes) -> BinaryReport:
    path = tmp_path / "file"
    path.write_bytes(data)
    return inspect_file(path)


def test_zebin_tells_registers_width_spill_and_local_memory(tmp_path: Path) -> None:
    found = report(tmp_path, elf.zebin(INFO, config=20 << 22 | 2 << 14 | 4))
    assert found.kind == "zebin"
    (image,) = found.images
    assert (image.format, image.device, image.kernels, image.fault) == ("zebin", "20.2.4", KERNELS, None)


@pytest.mark.parametrize(
    ("version", "environment", "buffers", "spill"),
    [
        ("1.39", "", "", 0),  # nothing set apart: nothing spilled
        ("1.39", "spill_size: 96", "single_space", 96),
        ("1.39", "private_size: 64", "single_space", 0),  # this compiler tells both, and left out a zero
        ("1.38", "private_size: 64", "single_space", None),
        ("1.20", "", "single_space", None),  # private variables, spills or both
        ("1.20", "", "spill_fill_space", 256),
        ("1.20", "", "private_space", 0),
    ],
)
def test_spill_is_told_or_not_known(
    tmp_path: Path, version: str, environment: str, buffers: str, spill: int | None
) -> None:
    info = f"---\nversion: '{version}'\nkernels:\n  - name: k\n    execution_env:\n      grf_count: 128\n"
    info += f"      {environment}\n" if environment else ""
    if buffers:
        info += f"    per_thread_memory_buffers:\n      - type: scratch\n        usage: {buffers}\n        size: 256\n"
    (image,) = report(tmp_path, elf.zebin(info)).images
    assert [k.spill_bytes for k in image.kernels] == [spill]


@pytest.mark.parametrize("table", [True, False])
def test_images_of_every_format_in_one_library(tmp_path: Path, table: bool) -> None:
    compressed = zstandard.compress(elf.spirv(["packed"], width=16))
    packed_zebin = zstandard.compress(elf.zebin(INFO))
    fat = elf.archive([("64.20.1.0", elf.zebin(INFO)), ("pad", b"xxx"), ("generic_ir", elf.spirv(["ir"]))])
    images = [elf.spirv(["one", "two"], width=32), compressed, packed_zebin, fat, elf.spirv([])]
    if table:
        data = elf.with_table(BUNDLE, images)
    else:
        padded = b"".join(i + b"\0" * (-len(i) % 16) for i in images)
        data = elf.write([elf.Part("OFFLOAD_DEVICE_CODE", padded, flags=elf.ALLOC)])
    found = report(tmp_path, data)
    assert found.kind == "shared library"
    assert found.faults == ()
    told = [(i.format, i.compressed, i.device, [k.name for k in i.kernels]) for i in found.images]
    names = [k.name for k in KERNELS]
    assert told == [
        ("SPIR-V", False, None, ["one", "two"]),
        ("SPIR-V", True, None, ["packed"]),
        ("zebin", True, None, names),
        ("zebin", False, "64.20.1.0", names),
        ("SPIR-V", False, "generic_ir", ["ir"]),
        ("SPIR-V", False, None, []),
    ]
    assert [k.simd for i in found.images[:2] for k in i.kernels] == [32, 32, 16]
    assert found.images[1].expanded_bytes == len(elf.spirv(["packed"], width=16))


def test_compressed_images_end_where_their_frame_ends(tmp_path: Path) -> None:
    """The linker's table gives the size before compression, which overlaps the next image."""
    plain = [elf.spirv([f"kernel_{i}_{'x' * 500}"]) for i in range(5)]
    images = [zstandard.compress(p, level=19) for p in plain]
    found = report(tmp_path, elf.with_table(BUNDLE, images, sizes=[len(p) for p in plain]))
    assert [i.size for i in found.images] == [len(i) for i in images]
    assert [len(i.kernels) for i in found.images] == [1] * 5


def test_addresses_that_the_loader_writes_are_read_from_relocations(tmp_path: Path) -> None:
    image = elf.spirv(["relocated"])
    code, table = elf.Part(BUNDLE, image, flags=elf.ALLOC), struct.pack("<QQ", 0, len(image))

    def build(relocations: bytes) -> bytes:
        parts = [code, elf.Part(".tgtimg", table, flags=elf.ALLOC), elf.Part(".rela.dyn", relocations, elf.RELA)]
        return elf.write(parts)

    draft = build(bytes(24))
    data = build(struct.pack("<QQq", elf.offset_of(draft, table), 8, elf.offset_of(draft, image)))
    (found,) = report(tmp_path, data).images
    assert [k.name for k in found.kernels] == ["relocated"]


def test_long_preambles_are_read_to_their_end(tmp_path: Path) -> None:
    names = [f"kernel_{i:05}" for i in range(20_000)]
    for image in (elf.spirv(names), zstandard.compress(elf.spirv(names))):
        (found,) = report(tmp_path, elf.with_table(BUNDLE, [image])).images
        assert [k.name for k in found.kernels] == names


def test_images_that_cannot_be_read_are_told_and_the_others_kept(tmp_path: Path) -> None:
    broken = bytearray(zstandard.compress(elf.spirv([f"kernel_{i * i}" for i in range(300)])))
    broken[20:24] = b"\xff\xff\xff\xff"
    images = [elf.spirv(["good"]), bytes(broken), elf.spirv(["cut"])[:-20], elf.zebin("kernels: 3\n")]
    found = report(tmp_path, elf.with_table(BUNDLE, images))
    assert [bool(i.fault) for i in found.images] == [False, True, True, True]
    assert [i.format for i in found.images] == ["SPIR-V", "unknown", "SPIR-V", "zebin"]
    assert "decompressed" in found.faults[0]
    assert "ends before its entry points" in found.faults[1]
    assert "the version is 'None'" in found.faults[2]


def test_tables_that_lie_are_refused(tmp_path: Path) -> None:
    images = [elf.spirv(["a"]), elf.spirv(["b"])]
    with pytest.raises(DamagedError, match="overlap"):
        report(tmp_path, elf.with_table(BUNDLE, images, sizes=[len(images[0]) + 17, len(images[1])]))
    with pytest.raises(DamagedError, match="leaves its section"):
        report(tmp_path, elf.with_table(BUNDLE, images, sizes=[len(images[0]), 10_000]))


@pytest.mark.parametrize(
    ("repeated", "fault"),
    [
        (struct.pack("<2I", 2 << 16 | 17, 6), "do not end"),  # capabilities, for ever
        (bytes(8), None),  # no preamble at all
    ],
)
def test_a_bomb_is_expanded_in_bounds(tmp_path: Path, repeated: bytes, fault: str | None) -> None:
    """A gigabyte behind a few kilobytes: no more is decompressed than kernel names can need."""
    compressor = zstandard.ZstdCompressor().compressobj()
    bomb = compressor.compress(elf.spirv([])[:20])
    block = repeated * (1 << 17)
    for _ in range(1024):
        bomb += compressor.compress(block)
    bomb += compressor.flush()
    path = tmp_path / "bomb.so"
    path.write_bytes(elf.with_table(BUNDLE, [bomb]))
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from tracekit.binary import inspect_file; (image,) = inspect_file(sys.argv[1]).images;"
        "print(len(image.kernels), image.fault)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True, text=True, timeout=60, env=environment, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("0 ")
    assert (fault or "None") in done.stdout


def test_lone_spirv_and_archives(tmp_path: Path) -> None:
    found = report(tmp_path, elf.spirv(["lone"]))
    assert (found.kind, found.elf, [k.name for i in found.images for k in i.kernels]) == (
        "not ELF (SPIR-V module)", False, ["lone"]
    )  # fmt: skip
    found = report(tmp_path, elf.archive([("64.20.1.0", elf.zebin(INFO)), ("x.o", elf.write([]))]))
    assert [(i.device, len(i.kernels)) for i in found.images] == [("64.20.1.0", 3)]
