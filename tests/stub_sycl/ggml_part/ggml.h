// The parts of ggml that the timing header and the imitated compute loops use.
#pragma once
#include <cassert>
#include <cstdint>
#include <sycl/sycl.hpp>

#define GGML_MAX_NAME 64
enum ggml_op { GGML_OP_NONE, GGML_OP_MUL_MAT, GGML_OP_ADD, GGML_OP_VIEW, GGML_OP_RESHAPE };

struct ggml_tensor {
    ggml_op op;
    int64_t ne[4];
    char name[GGML_MAX_NAME];
};

struct ggml_cgraph {
    int n_nodes;
    ggml_tensor** nodes;
};

inline const char* ggml_op_name(ggml_op op) {
    const char* names[] = {"NONE", "MUL_MAT", "ADD", "VIEW", "RESHAPE"};
    return names[op];
}

struct ggml_backend_sycl_context {
    int device = 0;
    sycl::queue q;
    sycl::queue* stream() { return &q; }
};

inline void ggml_sycl_set_main_device(int) {}

// A product takes 500 ns on the device, a sum 20.
inline bool ggml_sycl_compute_forward(ggml_backend_sycl_context& ctx, ggml_tensor* node) {
    ctx.q.submit([&](sycl::handler& h) { h.work = node->op == GGML_OP_MUL_MAT ? 500 : 20; });
    return true;
}

// A sum behind a product runs inside the product.
inline int ggml_sycl_fuse(ggml_backend_sycl_context& ctx, ggml_cgraph* graph, int i) {
    const bool both = i + 1 < graph->n_nodes && graph->nodes[i]->op == GGML_OP_MUL_MAT &&
                      graph->nodes[i + 1]->op == GGML_OP_ADD;
    return both && ggml_sycl_compute_forward(ctx, graph->nodes[i]) ? 1 : 0;
}
