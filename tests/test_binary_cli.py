"""`tracekit inspect` as a user runs it, and against a real library of llama.cpp's SYCL backend."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import elf_writer as elf
import pytest
import zstandard

from tracekit.binary import inspect_file

Command = Callable[..., "subprocess.CompletedProcess[str]"]

INFO = "---\nversion: '1.39'\nkernels:\n" + "".join(
    f"  - name: {name}\n    execution_env:\n      grf_count: {grf}\n      simd_size: 16\n"
    f"      slm_size: 1024\n      spill_size: {spill}\n"
    for name, grf, spill in (("moe_up", 128, 0), ("moe_down", 256, 13888), ("attention", 256, 64))
)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libkernels.so"
    images = [elf.zebin(INFO, 20 << 22 | 1 << 14), zstandard.compress(elf.spirv(["generic"], 32))]
    path.write_bytes(elf.with_table("__CLANG_OFFLOAD_BUNDLE__sycl-spir64_gen", images))
    return path


def test_text_tells_what_a_person_asks(tracekit: Command, library: Path) -> None:
    done = tracekit("inspect", library)
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert f"{library}: shared library, x86_64, " in text
    assert "hooks none of the 15 known timing hooks" in text
    assert "2 modules, 4 kernels (4 different names)" in text
    assert "__CLANG_OFFLOAD_BUNDLE__sycl-spir64_gen zebin 20.1.0 1 3" in text
    assert "SPIR-V, zstd 1 1" in text
    assert "registers 1 kernels with 128, 2 kernels with 256" in text
    assert "spill 2 kernels, most 13,888 bytes per thread: moe_down" in text


def test_kernels_are_chosen_by_part_or_glob(tracekit: Command, library: Path) -> None:
    part = tracekit("inspect", library, "--kernels", "moe", "--limit", "1").stdout
    assert "moe_up" in part
    assert "... 1 more kernels: --limit 0 shows all" in part
    rows = [line.split() for line in tracekit("inspect", library, "--kernels", "*_[du]o*n").stdout.splitlines()]
    assert ["zebin", "16", "256", "13,888", "0", "1,024", "moe_down"] in rows
    assert "no kernel matches 'nothing'" in tracekit("inspect", library, "--kernels", "nothing").stdout


def test_json_holds_all_of_it(tracekit: Command, library: Path) -> None:
    done = tracekit("inspect", library, "--json", "--kernels", "moe_d")
    content = json.loads(done.stdout)
    assert content["schema"] == 1
    (file,) = content["files"]
    assert (file["kind"], file["modules"], file["kernels"], file["faults"]) == ("shared library", 2, 4, [])
    assert [image["kernel_count"] for image in file["images"]] == [3, 1]
    assert file["images"][0]["kernels"] == [
        {"name": "moe_down", "simd": 16, "registers": 256, "spill_bytes": 13888, "scratch_bytes": 0,
         "private_bytes": None, "slm_bytes": 1024}
    ]  # fmt: skip
    assert file["images"][1]["kernels"] == []


def test_status_says_what_went_wrong(tracekit: Command, library: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n")
    nothing = tracekit("inspect", script)
    assert (nothing.returncode, "not ELF (script)" in nothing.stdout) == (3, True)
    assert "no ELF file" in nothing.stderr
    assert tracekit("inspect", script, library).returncode == 0
    missing = tracekit("inspect", tmp_path / "gone", library)
    assert (missing.returncode, "libkernels.so" in missing.stdout) == (2, True)
    assert missing.stderr == f"tracekit: {tmp_path}/gone: No such file or directory\n"
    half = tmp_path / "half.so"
    half.write_bytes(library.read_bytes()[:300])
    damaged = tracekit("inspect", half, "--json")
    assert damaged.returncode == 1
    assert "cut off or damaged" in json.loads(damaged.stdout)["errors"][0]


def test_unreadable_device_code_is_no_quiet_number(tracekit: Command, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(elf.with_table("OFFLOAD_DEVICE_CODE", [elf.spirv(["a"]), elf.spirv(["b"])[:40]]))
    done = tracekit("inspect", path)
    assert done.returncode == 1
    assert "at least 1 kernels" in done.stdout
    assert "device code could not be read" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["-no-pie"], "executable"),
        (["-pie", "-fPIE"], "executable"),
        (["-shared", "-fPIC"], "shared library"),
        (["-shared", "-fPIC", "-Wl,-soname,liba.so.1"], "shared library"),
        (["-c"], "object"),
        (["-static"], "executable"),
    ],
)
def test_kinds_as_gcc_builds_them(tmp_path: Path, arguments: list[str], kind: str) -> None:
    source = tmp_path / "a.c"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", *arguments, "-o", str(tmp_path / "a"), str(source)], check=True)
    assert inspect_file(tmp_path / "a").kind == kind


def test_core_files_are_told_without_their_memory(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(elf.write([elf.Part(".rodata", b"GGML_SYCL_OP_TIMING\0", flags=elf.ALLOC)], kind=4))
    found = inspect_file(path)
    assert (found.kind, found.hooks) == ("core", ())


def test_size_of_a_sparse_file_costs_nothing(tmp_path: Path) -> None:
    """Four gigabytes behind the headers of a core file: only headers are read, and the digest is not asked for."""
    path = tmp_path / "huge.so"
    note = b"\x04\0\0\0\x08\0\0\0\x03\0\0\0GNU\0" + bytes(range(8))
    data = elf.write([elf.Part(".note.gnu.build-id", note, elf.NOTE), elf.Part(".rodata", b"x\0", flags=elf.ALLOC)])
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(4 << 30)
    found = inspect_file(path)
    assert (found.size, found.build_id, found.kind) == (4 << 30, "0001020304050607", "shared library")


@pytest.mark.engine
def test_real_sycl_backend(tracekit: Command) -> None:
    """libggml-sycl as the wheel cyllama-sycl 0.2.18 carries it: counted apart by its magic numbers too."""
    folder = os.environ.get("TRACEKIT_SYCL_WHEEL")
    if not folder:
        pytest.skip("TRACEKIT_SYCL_WHEEL must name the unpacked wheel cyllama-sycl 0.2.18, see docs/binaries.md")
    (backend,) = Path(folder).glob("cyllama_sycl.libs/libggml-sycl-*.so")
    found = inspect_file(backend)
    assert found.build_id is None
    assert found.compilers[0].startswith("Intel(R) oneAPI DPC++/C++ Compiler 2025.3.3")
    assert (found.rpath, found.runpath) == (("$ORIGIN",), ())
    assert "libsycl.so.8" in found.needed
    assert Counter(i.format for i in found.images) == {"SPIR-V": 227}
    assert sum(len(i.kernels) for i in found.images) == 4021
    assert backend.read_bytes().count(b"\x03\x02\x23\x07") == 227
    assert sum(i.size for i in found.images) == 25_207_128
    assert found.hooks == ()

    (blas,) = Path(folder).glob("cyllama_sycl.libs/libmkl_sycl_blas-*.so.*")
    packed = inspect_file(blas)
    assert Counter((i.format, i.compressed) for i in packed.images) == {("SPIR-V", True): 3230}
    assert sum(len(i.kernels) for i in packed.images) == 3210
    assert packed.faults == ()

    done = tracekit("inspect", backend, "--json", "--kernels", "mul_mat_vec_q")
    (file,) = json.loads(done.stdout)["files"]
    names = [kernel["name"] for image in file["images"] for kernel in image["kernels"]]
    assert names
    assert all("mul_mat_vec_q" in name for name in names)
