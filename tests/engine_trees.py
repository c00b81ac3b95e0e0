"""Tiny imitations of the trees that the patches are for: the lines our hunks need as neighbours, and a main()."""

import shutil
import subprocess
from pathlib import Path

STUBS = Path(__file__).parent / "stub_sycl"

_GRAPH = """
static ggml_tensor a{GGML_OP_MUL_MAT, {8, 2, 1, 1}, "Qcur-0"}, b{GGML_OP_ADD, {8, 2, 1, 1}, "bias ne=1 (copy)"},
    c{GGML_OP_VIEW, {8, 2, 1, 1}, "view"}, d{GGML_OP_ADD, {8, 1, 1, 1}, "l_out-0"};

int main() {
    ggml_tensor* nodes[] = {&a, &b, &c, &d};
    ggml_cgraph graph{4, nodes};
    ggml_backend_sycl_context ctx;
    ctx.device = 2;
    ctx.q.profiling = std::getenv("STUB_PROFILING") != nullptr;
    sycl::stub_lost = std::getenv("STUB_LOST") != nullptr;
    COMPUTE
    COMPUTE
    std::printf("waits=%d\\n", sycl::stub_waits);
}
"""

_HEAD = """// an imitation
#include <cstdio>
#include <cstdlib>
#include "ggml.h"
#include "ggml-sycl/presets.hpp"
"""

LLAMA = {
    "ggml/src/ggml-sycl/presets.hpp": "#pragma once\n",
    "ggml/src/ggml-sycl/quantize.hpp": "#pragma once\n",
    "ggml/src/ggml-sycl/ggml-sycl.cpp": _HEAD
    + """#include "ggml-sycl/quantize.hpp"

static bool g_ggml_sycl_enable_graph = true;

static void ggml_backend_sycl_graph_compute_impl(ggml_backend_sycl_context * sycl_ctx, ggml_cgraph * cgraph) {
    ggml_sycl_set_main_device(sycl_ctx->device);

    for (int i = 0; i < cgraph->n_nodes; i++) {
        ggml_tensor * node = cgraph->nodes[i];
        if (node->op == GGML_OP_VIEW) {
            continue;
        }

        const int nodes_to_skip = ggml_sycl_fuse(*sycl_ctx, cgraph, i);
        if (nodes_to_skip != 0) {
            i += nodes_to_skip;
            continue;
        }
        assert(ggml_sycl_compute_forward(*sycl_ctx, node));
    }
}

static int ggml_backend_sycl_graph_compute(ggml_backend_sycl_context * sycl_ctx, ggml_cgraph * cgraph) {
    bool use_sycl_graph = false;
    if (g_ggml_sycl_enable_graph) {
        use_sycl_graph = true;
    }
    if (use_sycl_graph) {
        std::printf("recorded\\n");
    }
    ggml_backend_sycl_graph_compute_impl(sycl_ctx, cgraph);
    return 0;
}
""".replace("static int ggml_backend", "using ggml_status = int;\n\nstatic ggml_status ggml_backend")
    + _GRAPH.replace("COMPUTE", "ggml_backend_sycl_graph_compute(&ctx, &graph);"),
}

IK = {
    "ggml/src/ggml-sycl/presets.hpp": "#pragma once\n",
    "ggml/src/ggml-sycl.cpp": _HEAD
    + """
#define GGML_CALL
using ggml_status = int;
using ggml_backend_t = ggml_backend_sycl_context *;

GGML_CALL static ggml_status ggml_backend_sycl_graph_compute(ggml_backend_t backend, ggml_cgraph * cgraph) {
    ggml_backend_sycl_context * sycl_ctx = backend;
    ggml_sycl_set_main_device(sycl_ctx->device);


    for (int i = 0; i < cgraph->n_nodes; i++) {
        ggml_tensor * node = cgraph->nodes[i];
        if (node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW || node->op == GGML_OP_NONE) {
            continue;
        }
#ifndef NDEBUG
        assert(node != nullptr);
#endif
        bool ok = ggml_sycl_compute_forward(*sycl_ctx, node);
        assert(ok);
    }

    return 0;
}
"""
    + _GRAPH.replace("COMPUTE", "ggml_backend_sycl_graph_compute(&ctx, &graph);"),
}

_MOE = """#include <torch/extension.h>
#include <c10/xpu/XPUStream.h>
#include <sycl/ext/intel/esimd.hpp>
#include <cstdio>

static inline sycl::event submit_kernel(
    std::function<void(sycl::handler&)> kernel,
    const torch::Device& device,
    const char* desc) {
    sycl::queue& queue = c10::xpu::getCurrentXPUStream(device.index()).queue();
    return queue.submit(kernel);
}

int main() {
    c10::xpu::getCurrentXPUStream(0).queue().profiling = std::getenv("STUB_PROFILING") != nullptr;
    const torch::Device device{1};
    auto kernel = [](sycl::handler& cgh) { cgh.work = 44650; };
    submit_kernel(kernel, device, "moe up routed int4");
    submit_kernel(kernel, device, "a \\"quoted\\" [name]");
    std::printf("waits=%d clock=%d\\n", sycl::stub_waits, (int)sycl::stub_clock);
}
"""

_MOE_FOLDER = "vllm/custom-esimd-kernels-vllm/csrc/moe_batch"
SCALER = {f"{_MOE_FOLDER}/moe_int4.sycl": _MOE, f"{_MOE_FOLDER}/moe.sycl": _MOE}

#: Per patch: the imitation of its tree, and the file that compiles to a program.
TREES = {
    "llama-cpp-sycl": (LLAMA, "ggml/src/ggml-sycl/ggml-sycl.cpp"),
    "ik-llama-cpp-sycl": (IK, "ggml/src/ggml-sycl.cpp"),
    "llm-scaler-moe": (SCALER, f"{_MOE_FOLDER}/moe_int4.sycl"),
}


def plant(place: Path, name: str, *, end: str = "\n") -> Path:
    """Write the imitation of a patch's tree and return its top."""
    for path, text in TREES[name][0].items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.replace("\n", end).encode())
    return place


def snapshot(tree: Path) -> dict[str, bytes]:
    """Return every file of a tree with its content, git's own apart."""
    return {
        str(file.relative_to(tree)): file.read_bytes()
        for file in sorted(tree.rglob("*"))
        if file.is_file() and ".git" not in file.parts
    }


def compiled(tree: Path, name: str) -> Path:
    """Compile the imitation with the stand-in for SYCL and return the program."""
    source = tree / TREES[name][1]
    program = tree / "program"
    compiler = shutil.which("g++")
    assert compiler is not None
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    include = [f"-I{STUBS}", f"-I{STUBS / 'ggml_part'}", f"-I{tree / 'ggml/src'}"]
    subprocess.run([*command, *include, "-x", "c++", "-o", program, source], check=True, timeout=60)
    return program
