// Times the kernels that pass through llm-scaler's submit_kernel(). Added by `tracekit patch apply`.
//
// One line per kernel, in one write, on standard error or in the file named by TRACEKIT_OP_TIMING_OUT:
//
//   [llm-scaler][moe-kernel] device=D kernel="TEXT" wait_ms=W v=1 count=C pid=P t0_ns=T ns=N submit_ns=S
//
// and, where it is known:  rank=R        LOCAL_RANK, RANK, VLLM_LOCAL_RANK or VLLM_RANK, read once;
//                          device_ns=N   the kernel's own time, if the queue was made with profiling.
//
// wait_ms and ns run from the return of the submission (t0_ns) to the kernel's end: what was left of the queue's backlog
// and the kernel. submit_ns is how long the submission took. count is the ordinal in this process and extension module.
//
// LLM_SCALER_MOE_TRACE_KERNELS=1 or TRACEKIT_OP_TIMING=1 switches it on; unset, empty or 0 off. While a graph is being
// recorded nothing may be waited for: such kernels are submitted untimed. Run with enforce_eager.
#pragma once

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include <sycl/sycl.hpp>

namespace tracekit {

inline bool moe_trace_switch(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

inline bool moe_trace_on() {
    static const bool on = moe_trace_switch("LLM_SCALER_MOE_TRACE_KERNELS") || moe_trace_switch("TRACEKIT_OP_TIMING");
    return on;
}

// The rank must not change while the process lives, so it is read once.
inline const std::string& moe_trace_rank() {
    static const std::string rank = [] {
        for (const char* name : {"LOCAL_RANK", "RANK", "VLLM_LOCAL_RANK", "VLLM_RANK"}) {
            const char* value = std::getenv(name);
            if (value != nullptr && *value != '\0') {
                std::string text = value;
                for (char& c : text) {
                    c = static_cast<unsigned char>(c) <= 32 || c == 127 ? '_' : c;  // it must end at a blank
                }
                return text;
            }
        }
        return std::string();
    }();
    return rank;
}

inline int moe_trace_fd() {
    static const int fd = [] {
        const char* out = std::getenv("TRACEKIT_OP_TIMING_OUT");
        std::string path = out == nullptr ? "" : out;
        const size_t mark = path.find("%p");
        if (mark != std::string::npos) {
            path.replace(mark, 2, std::to_string(::getpid()));
        }
        const int opened =
            path.empty() ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        return opened < 0 ? 2 : opened;
    }();
    return fd;
}

inline uint64_t moe_trace_now() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

inline bool moe_trace_recording([[maybe_unused]] const sycl::queue& queue) {
#ifdef SYCL_EXT_ONEAPI_GRAPH
    return queue.ext_oneapi_get_state() == sycl::ext::oneapi::experimental::queue_state::recording;
#else
    return false;
#endif
}

inline void moe_trace_print(
    sycl::queue& queue, const sycl::event& event, int device, const char* desc, uint64_t before, uint64_t began,
    uint64_t ended) {
    static std::atomic<uint64_t> calls{0};
    std::string text;
    for (const char* c = desc; *c != '\0'; c++) {
        // A quote or a bracket would end the field for whoever reads it.
        text += *c == '"' ? '\'' : *c == '[' ? '(' : static_cast<unsigned char>(*c) < 32 || *c == 127 ? '?' : *c;
    }
    char numbers[256];
    std::snprintf(
        numbers, sizeof numbers,
        "\" wait_ms=%.6f v=1 count=%" PRIu64 " pid=%d t0_ns=%" PRIu64 " ns=%" PRIu64 " submit_ns=%" PRIu64,
        static_cast<double>(ended - began) / 1e6, ++calls, static_cast<int>(::getpid()), began, ended - began,
        began - before);
    std::string line = "[llm-scaler][moe-kernel] device=" + std::to_string(device) + " kernel=\"" + text + numbers;
    if (!moe_trace_rank().empty()) {
        line += " rank=" + moe_trace_rank();
    }
    try {
        if (queue.has_property<sycl::property::queue::enable_profiling>()) {
            using namespace sycl::info::event_profiling;
            line += " device_ns=" + std::to_string(
                event.template get_profiling_info<command_end>() - event.template get_profiling_info<command_start>());
        }
    } catch (const sycl::exception&) {
        // Not every event can tell; the record stays whole without it.
    }
    line += '\n';
    (void)!::write(moe_trace_fd(), line.data(), line.size());
}

// Submits as queue.submit() does, waits, and prints.
template <typename Kernel>
inline sycl::event submit_traced(sycl::queue& queue, const Kernel& kernel, int device, const char* desc) {
    if (moe_trace_recording(queue)) {
        return queue.submit(kernel);
    }
    const uint64_t before = moe_trace_now();
    sycl::event event = queue.submit(kernel);
    const uint64_t began = moe_trace_now();
    event.wait();
    moe_trace_print(queue, event, device, desc, before, began, moe_trace_now());
    return event;
}

}  // namespace tracekit
