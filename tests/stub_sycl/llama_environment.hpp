// What the compute functions of llama.cpp's SYCL backend call, declared only: enough to check their syntax with a
// compiler that knows no SYCL. Types of ggml come from llama.cpp's own headers.
#pragma once

#include <algorithm>
#include <cassert>
#include <initializer_list>
#include <memory>

#include <sycl/sycl.hpp>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "ggml.h"

#define GGML_SYCL_DEBUG(...) (void) 0
#define GGML_SYCL_GRAPH

namespace sycl {
enum class aspect { ext_oneapi_limited_graph, ext_oneapi_graph };

namespace ext::oneapi::experimental {
enum class graph_state { modifiable, executable };
namespace property::graph {
struct updatable {};
struct assume_buffer_outlives_graph {};
}  // namespace property::graph

template <graph_state State = graph_state::modifiable>
struct command_graph {
    struct list {
        list(property::graph::updatable) {}
        list(property::graph::assume_buffer_outlives_graph) {}
    };
    command_graph() = default;
    command_graph(queue &, std::initializer_list<list>) {}
    command_graph(const command_graph<graph_state::modifiable> &, int) {}
    void begin_recording(queue &) {}
    void end_recording() {}
    command_graph<graph_state::executable> finalize() { return {}; }
    command_graph<graph_state::executable> finalize(list) { return {}; }
    command_graph<graph_state::executable> finalize(std::initializer_list<list>) { return {}; }
    void update(const command_graph<graph_state::modifiable> &) {}
};
template <typename... Any>
command_graph(Any...) -> command_graph<graph_state::modifiable>;
}  // namespace ext::oneapi::experimental
}  // namespace sycl

namespace sycl_ex = sycl::ext::oneapi::experimental;

struct stub_queue : sycl::queue {
    template <typename Graph>
    void ext_oneapi_graph(const Graph &) {}
};

namespace dpct {
struct device_ext {
    bool has(sycl::aspect) const { return true; }
};
inline device_ext get_device(int) { return {}; }
}  // namespace dpct

struct ggml_backend_sycl_context {
    int device = 0;
    stub_queue * stream();
    std::unique_ptr<sycl_ex::command_graph<sycl_ex::graph_state::executable>> exec_graph;
};

struct ggml_sycl_device_info {
    int device_count;
};
const ggml_sycl_device_info & ggml_sycl_info();

struct ggml_sycl_gated_delta_net_fused_cache {
    float * data;
    int64_t slot_stride;
};

extern int g_ggml_sycl_enable_graph;
extern int g_ggml_sycl_use_async_mem_op;

using ops_list = std::initializer_list<ggml_op>;
using unary_list = std::initializer_list<ggml_unary_op>;
void ggml_sycl_set_main_device(int);
ggml_backend_buffer_type_t ggml_backend_sycl_buffer_type(int);
bool ggml_sycl_is_view_or_noop(const ggml_tensor *);
bool ggml_sycl_can_fuse(const ggml_cgraph *, int, ops_list, unary_list);
int ggml_sycl_fuse(ggml_backend_sycl_context &, ggml_cgraph *, int);
int ggml_sycl_try_gdn_cache_fusion(const ggml_cgraph *, int, ggml_sycl_gated_delta_net_fused_cache &);
void ggml_sycl_op_gated_delta_net_fused_cache(
    ggml_backend_sycl_context &, ggml_tensor *, ggml_sycl_gated_delta_net_fused_cache &);
void ggml_sycl_op_rms_norm_fused_add(ggml_backend_sycl_context &, ggml_tensor *, ggml_tensor *, ggml_tensor *);
void ggml_sycl_op_rms_norm_fused(ggml_backend_sycl_context &, ggml_tensor *, ggml_tensor *);
void ggml_sycl_op_rms_norm_scale_fused(ggml_backend_sycl_context &, ggml_tensor *, ggml_tensor *);
void ggml_sycl_op_add_add_fused(ggml_backend_sycl_context &, ggml_tensor *, ggml_tensor *);
void ggml_sycl_op_unary_mul_fused(ggml_backend_sycl_context &, ggml_tensor *, ggml_tensor *);
int ggml_sycl_l2_norm_batch_fused(ggml_backend_sycl_context &, ggml_cgraph *, int);
void ggml_sycl_ssm_conv_fused(ggml_backend_sycl_context &, ggml_tensor *, ggml_tensor *, ggml_tensor *);
bool ggml_sycl_mul_mat_glu_mmvq_fused(ggml_backend_sycl_context &, ggml_cgraph *, int);
bool ggml_sycl_compute_forward(ggml_backend_sycl_context &, ggml_tensor *);
