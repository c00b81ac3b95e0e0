"""`tracekit doctor` on made-up machines: what is there, what is missing, which dialects could be captured."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tracekit.doctor import DIALECTS, Examination, examination_json, examine
from tracekit.doctor_text import examination_text
from tracekit.environments import interpreter_of

Command = Callable[..., "subprocess.CompletedProcess[str]"]

RENDER, VIDEO = 992, 44
CARDS = ("0000:03:00.0", "0000:07:00.0", "0000:83:00.0", "0000:87:00.0")


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def machine_with_four_cards(root: Path, driver: str | None = "xe", bar: int = 32 << 30) -> Path:
    """Four Arc Pro B70 on two sockets, the processor's own graphics, and a network card."""
    put(root / "proc/sys/kernel/osrelease", "6.17.0-8-generic\n")
    put(root / "etc/group", f"root:x:0:\nvideo:x:{VIDEO}:\nrender:x:{RENDER}:alice\n")
    put(
        root / "usr/share/misc/pci.ids",
        "8086  Intel Corporation\n\te223  Battlemage G31 [Arc Pro B70]\n8087  X\n\te223  Y\n",
    )
    for module in ("xe", "i915"):
        (root / "sys/bus/pci/drivers" / module).mkdir(parents=True)
        put(root / "sys/module" / module / "srcversion", "ABC\n")
    devices = root / "sys/bus/pci/devices"
    for number, address in enumerate(CARDS):
        _device(devices / address, "0x030000", "0xe223", numa=number // 2, bar=bar)
        if driver:
            (devices / address / "driver").symlink_to(Path("../../drivers") / driver)
            for node in (f"card{number + 1}", f"renderD{129 + number}"):
                put(devices / address / "drm" / node / "dev", "226:1\n")
                put(root / "dev/dri" / node)
    _device(devices / "0000:00:02.0", "0x030000", "0x7d55", numa=-1, bar=256 << 20)
    (devices / "0000:00:02.0/driver").symlink_to("../../drivers/i915")
    for node in ("card0", "renderD128"):
        put(devices / "0000:00:02.0/drm" / node / "dev")
        put(root / "dev/dri" / node)
    _device(devices / "0000:04:00.0", "0x020000", "0x1593", numa=0, bar=1 << 20)
    put(root / "usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1.14.37020")
    (root / "usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1").symlink_to("libze_intel_gpu.so.1.14.37020")
    put(root / "usr/lib/x86_64-linux-gnu/libze_loader.so.1")
    put(root / "etc/OpenCL/vendors/intel.icd", "/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so\n")
    put(root / "opt/intel/oneapi/compiler/2025.3/bin/icpx")
    put(root / "opt/intel/oneapi/compiler/latest/bin/icpx")
    return root


def _device(path: Path, kind: str, device: str, numa: int, bar: int) -> None:
    put(path / "vendor", "0x8086\n")
    put(path / "class", kind + "\n")
    put(path / "device", device + "\n")
    put(path / "numa_node", f"{numa}\n")
    end = 0x4000000000 + bar - 1
    put(path / "resource", f"0x00000000a0000000 0x00000000a0ffffff 0x0\n0x0 0x0 0x0\n0x4000000000 {end:#x} 0x14220c\n")


def worker(path: Path, variable: str, text: str) -> Path:
    """Build a program that holds a variable and a text."""
    source = put(
        path.parent / f"{path.name}.c",
        f'#include <stdio.h>\n#include <stdlib.h>\nint main(void) {{ if (getenv("{variable}")) puts("{text}"); }}\n',
    )
    subprocess.run(["gcc", "-w", "-o", str(path), str(source)], check=True)
    return path


def environment_with_vllm(prefix: Path) -> Path:
    """An environment with vLLM, its timing helper and llm-scaler's kernels, as files."""
    site = prefix / "lib/python3.12/site-packages"
    put(prefix / "pyvenv.cfg", "home = /usr/bin\n")
    for name, version in (("vllm", "0.14.0"), ("torch", "2.10.0+xpu"), ("requests", "2.0")):
        put(site / f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    put(site / "vllm/__init__.py", "import os\n")
    put(
        site / "vllm/timing.py", 'if os.getenv("VLLM_XPU_DECODE_TIMING") == "1": print(f"[vllm-xpu-timing] rank={r}")\n'
    )
    folder = site / "custom_esimd_kernels_vllm"
    put(folder / "__init__.py")
    source = put(
        prefix / "moe.c",
        '#include <stdio.h>\n#include <stdlib.h>\nvoid f(void) { if (getenv("LLM_SCALER_MOE_TRACE_KERNELS")) '
        'fputs("[llm-scaler][moe-kernel] device=", stderr); }\n',
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "moe_int4_ops.abi3.so"), str(source)], check=True)
    return prefix


def examined(
    root: Path,
    variables: dict[str, str] | None = None,
    own: frozenset[int] = frozenset({RENDER}),
    *,
    open_: bool = True,
) -> Examination:
    given = {"PATH": "", **(variables or {})}
    return examine(root, given, own, own_prefix=root / "none", access=lambda node: open_ and node.exists())


def missing(found: Examination, dialect: str) -> str:
    (verdict,) = (v for v in found.verdicts if v.dialect == dialect)
    assert verdict.ready == (not verdict.missing)
    return " | ".join(verdict.missing)


def test_everything_in_place_is_ready(tmp_path: Path) -> None:
    root = machine_with_four_cards(tmp_path / "root")
    server = put(tmp_path / "bin/x").parent / "rpc-server"
    worker(server, "GGML_SYCL_OP_TIMING", "[SYCL_OP_TIMING] dev=0")
    prefix = environment_with_vllm(tmp_path / "venv")
    found = examined(root, {"PATH": str(server.parent), "VIRTUAL_ENV": str(prefix), "ZE_AFFINITY_MASK": "0,1"})

    assert [g.pci for g in found.gpus] == ["0000:00:02.0", *CARDS]
    cards = found.gpus[1:]
    assert {(g.ids, g.name, g.driver, g.accessible) for g in cards} == {
        ("8086:e223", "Battlemage G31 [Arc Pro B70]", "xe", True)
    }
    assert [(g.render, g.numa_node) for g in cards] == [(f"renderD{129 + i}", i // 2) for i in range(4)]
    assert (found.gpus[0].integrated, found.gpus[0].driver, found.gpus[0].name) == (True, "i915", None)
    assert not any(g.small_bar for g in found.gpus)
    assert found.kernel == "6.17.0-8-generic"
    assert [(g.name, g.member) for g in found.groups] == [("render", True), ("video", False)]
    assert found.compilers == ("2025.3",)
    assert found.variables == {"ZE_AFFINITY_MASK": "0,1"}
    (environment,) = found.environments
    assert environment.packages == {"torch": "2.10.0+xpu", "vllm": "0.14.0"}

    assert [(v.dialect, v.ready) for v in found.verdicts] == [(name, True) for name in DIALECTS]
    assert [Path(v.where[0]).name for v in found.verdicts] == ["rpc-server", "moe_int4_ops.abi3.so", "timing.py"]

    text = examination_text(found)
    assert "0000:83:00.0 8086:e223 Battlemage G31 [Arc Pro B70], xe, /dev/dri/renderD131, NUMA node 1\n" in text
    assert "libze_intel_gpu.so.1.14.37020" in text
    assert f"ggml-sycl: yes, GGML_SYCL_OP_TIMING is in {server}\n" in text
    content = json.loads(json.dumps(examination_json(found)))
    assert content["schema"] == 1
    assert content["verdicts"][0]["where"] == [str(server)]
    assert content["libraries"]["level-zero GPU driver"].endswith("libze_intel_gpu.so.1")


def test_user_outside_group_render_is_told_the_cure(tmp_path: Path) -> None:
    root = machine_with_four_cards(tmp_path)
    found = examined(root, own=frozenset({VIDEO}), open_=False)
    told = missing(found, "ggml-sycl")
    assert "this user may not open /dev/dri/renderD128, /dev/dri/renderD129" in told
    assert "usermod -aG render" in told
    assert "render: not a member" in examination_text(found)
    assert "usermod" not in missing(examined(root, open_=False), "ggml-sycl")


def test_cards_without_a_driver_are_seen(tmp_path: Path) -> None:
    root = machine_with_four_cards(tmp_path, driver=None)
    (root / "sys/bus/pci/devices/0000:00:02.0/driver").unlink()
    found = examined(root)
    assert [g.driver for g in found.gpus] == [None] * 5
    assert f"no driver (xe or i915) is bound to 0000:00:02.0, {', '.join(CARDS)}" in missing(found, "vllm-xpu")


def test_small_window_onto_memory_is_told(tmp_path: Path) -> None:
    found = examined(machine_with_four_cards(tmp_path, bar=256 << 20))
    assert [g.small_bar for g in found.gpus] == [False, True, True, True, True]
    assert examination_text(found).count("only 256 MiB of its memory are visible: resizable BAR is off") == 4


def test_machine_without_gpu_or_runtime(tmp_path: Path) -> None:
    put(tmp_path / "etc/group", "root:x:0:\nbroken line\n")
    found = examined(tmp_path)
    assert (found.gpus, found.groups, found.drivers, found.oneapi, found.kernel) == ((), (), (), None, None)
    for dialect in DIALECTS:
        told = missing(found, dialect)
        assert "there is no Intel GPU on the PCI bus" in told
        assert "SYCL has no way to an Intel GPU" in told
    assert "none of ggml-rpc-server, rpc-server" in missing(found, "ggml-sycl")
    assert "vllm is not installed" in missing(found, "llm-scaler")


def test_programs_that_cannot_be_timed_say_why(tmp_path: Path) -> None:
    root = machine_with_four_cards(tmp_path / "root")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    worker(bin_ / "llama-bench", "OTHER", "text")
    script = put(bin_ / "rpc-server", "#!/bin/sh\n")
    script.chmod(0o755)
    put(bin_ / "llama-cli", "\x7fELF").chmod(0o755)
    found = examined(root, {"PATH": str(bin_)})
    reasons = {e.name: e.reason or "" for e in found.engines}
    assert "this llama-bench has no GGML_SYCL_OP_TIMING in it" in reasons["llama-bench"]
    assert "is a script" in reasons["rpc-server"]
    assert "cut off or damaged" in reasons["llama-cli"]
    assert missing(found, "ggml-sycl").count(" | ") == 2


def test_libraries_that_the_loader_does_not_find_are_a_fault(tmp_path: Path) -> None:
    root = machine_with_four_cards(tmp_path / "root")
    bin_ = tmp_path / "bin"
    runtime = bin_ / "libsycl.so.8"
    source = put(bin_ / "sycl.c", "void go(void) {}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{runtime.name}", "-o", runtime, source], check=True)
    main = put(
        bin_ / "main.c",
        "#include <stdio.h>\n#include <stdlib.h>\nvoid go(void);\n"
        'int main(void) { if (getenv("GGML_SYCL_OP_TIMING")) go(); return puts("[SYCL_OP_TIMING]"); }\n',
    )
    subprocess.run(["gcc", "-o", bin_ / "llama-server", main, runtime], check=True)
    runtime.rename(tmp_path / "libsycl.so.8")
    found = examined(root, {"PATH": str(bin_)})
    assert "needs libsycl.so.8, which the loader does not find; activate oneAPI" in missing(found, "ggml-sycl")
    found = examined(root, {"PATH": str(bin_), "LD_LIBRARY_PATH": str(tmp_path)})
    assert missing(found, "ggml-sycl") == ""


def test_vllm_without_hooks_and_with_a_plugin(tmp_path: Path) -> None:
    root = machine_with_four_cards(tmp_path / "root")
    prefix = environment_with_vllm(tmp_path / "venv")
    site = prefix / "lib/python3.12/site-packages"
    (site / "vllm/timing.py").unlink()
    (site / "custom_esimd_kernels_vllm/moe_int4_ops.abi3.so").unlink()
    variables = {"VIRTUAL_ENV": str(prefix)}
    found = examined(root, variables)
    assert "has VLLM_XPU_DECODE_TIMING; install tracekit there" in missing(found, "vllm-xpu")
    assert f"no package custom_esimd_kernels_vllm or llm_scaler is in {prefix}" in missing(found, "llm-scaler")

    source = tmp_path / "checkout/src/timing_plugin.py"
    put(source, 'VARIABLE = "VLLM_XPU_DECODE_TIMING"\nprint("[vllm-xpu-timing] rank=0")\n')
    info = site / "timing_plugin-1.dist-info"
    put(info / "METADATA", "Metadata-Version: 2.1\nName: timing-plugin\nVersion: 1\n")
    put(info / "entry_points.txt", "[vllm.general_plugins]\ntiming = timing_plugin:register\n")
    put(info / "direct_url.json", json.dumps({"url": f"file://{tmp_path}/checkout", "dir_info": {"editable": True}}))
    found = examined(root, variables)
    assert missing(found, "vllm-xpu") == ""
    assert found.verdicts[2].where == (str(source),)


def test_environment_behind_the_vllm_command_is_found(tmp_path: Path) -> None:
    root = machine_with_four_cards(tmp_path / "root")
    prefix = environment_with_vllm(tmp_path / "venv")
    script = put(tmp_path / "bin/vllm", f"#!{prefix}/bin/python3\nimport vllm\n")
    script.chmod(0o755)
    assert interpreter_of(script) == prefix / "bin/python3"
    found = examined(root, {"PATH": str(script.parent)})
    assert missing(found, "vllm-xpu") == ""
    assert [e.name for e in found.engines] == ["vllm"]


def test_command_answers_on_this_machine(tracekit: Command) -> None:
    done = tracekit("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert content["kernel"] == os.uname().release
    assert [v["dialect"] for v in content["verdicts"]] == list(DIALECTS)
    text = tracekit("doctor")
    assert text.returncode == 0
    assert "Could be captured here" in text.stdout


@pytest.mark.parametrize("first", ["", "#!/bin/sh", "#!/usr/bin/env python3", "\x00\xff", "#!"])
def test_scripts_that_name_no_interpreter_of_their_own(tmp_path: Path, first: str) -> None:
    assert interpreter_of(put(tmp_path / "vllm", first)) is None
    assert interpreter_of(tmp_path / "gone") is None
