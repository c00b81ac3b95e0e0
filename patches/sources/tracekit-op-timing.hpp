// Per-operation timing for the compute loop of ggml's SYCL backend. Added by `tracekit patch apply`.
//
// One line per operation, each in one write, on standard error or in the file named by TRACEKIT_OP_TIMING_OUT:
//
//   [SYCL_OP_TIMING] dev=D op=OP name=NAME ne=AxBxCxD us=U v=1 graph=G t0_ns=T ns=N backend=SYCLD
//
// and, where it applies:  fused=K  the K nodes after this one ran inside it;
//                         device_span_ns=N  time on the device's own clock between a barrier before and one after.
//
// us and ns: host time from the dispatch to the end of a wait for the queue, launch and wait included.
// device_span_ns holds the gaps before and between launches: an upper bound of the kernels' time.
//
// Environment of the process that owns the backend (each RPC worker):
//   GGML_SYCL_OP_TIMING=1 or TRACEKIT_OP_TIMING=1   on. Unset, empty or 0: off, and then one test per operation.
//   TRACEKIT_OP_TIMING_OUT=FILE                     append there; %p becomes the process id.
//   TRACEKIT_OP_TIMING_PROFILE=1                    device_span_ns, if the queues were made with profiling: build with
//                                                   -DDPCT_PROFILING_ENABLED.
#pragma once

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include <fcntl.h>
#ifdef _WIN32
#    include <io.h>
#    include <process.h>
#    define TRACEKIT_WRITE(fd, text, size) _write(fd, text, static_cast<unsigned>(size))
#    define TRACEKIT_OPEN(path) _open(path, _O_WRONLY | _O_CREAT | _O_APPEND | _O_BINARY, 0666)
#    define TRACEKIT_PID() _getpid()
#else
#    include <unistd.h>
#    define TRACEKIT_WRITE(fd, text, size) ::write(fd, text, size)
#    define TRACEKIT_OPEN(path) ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)
#    define TRACEKIT_PID() ::getpid()
// The preload shim looks for this name and steps back: two instruments would print every operation twice.
extern "C" {
__attribute__((weak, used, visibility("default"))) int tracekit_sycl_op_timing_v1 = 1;
}
#endif

#include <sycl/sycl.hpp>

#include "ggml.h"

namespace tracekit {

inline bool op_timing_switch(const char * name) {
    const char * value = std::getenv(name);
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

inline bool op_timing_on() {
    static const bool on = op_timing_switch("GGML_SYCL_OP_TIMING") || op_timing_switch("TRACEKIT_OP_TIMING");
    return on;
}

// Opened once. Where the file cannot be opened the lines go to standard error, which is said.
inline int op_timing_fd() {
    static const int fd = [] {
        const char * out = std::getenv("TRACEKIT_OP_TIMING_OUT");
        if (out == nullptr || *out == '\0') {
            return 2;
        }
        std::string  path = out;
        const size_t mark = path.find("%p");
        if (mark != std::string::npos) {
            path.replace(mark, 2, std::to_string(TRACEKIT_PID()));
        }
        const int opened = TRACEKIT_OPEN(path.c_str());
        if (opened >= 0) {
            return opened;
        }
        const std::string said = "[tracekit-sycl] cannot append to " + path + ": lines go to standard error\n";
        (void) !TRACEKIT_WRITE(2, said.data(), said.size());
        return 2;
    }();
    return fd;
}

inline void op_timing_write(const std::string & line) {
    (void) !TRACEKIT_WRITE(op_timing_fd(), line.data(), line.size());
}

inline uint64_t op_timing_now() {
    // CLOCK_MONOTONIC with both C++ libraries of Linux.
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

inline std::atomic<uint64_t> & op_timing_graphs() {
    static std::atomic<uint64_t> graphs{0};
    return graphs;
}

inline void op_timing_announce(bool profile, bool profiled_queue) {
    op_timing_write(
        "[tracekit-sycl] v=1 pid=" + std::to_string(TRACEKIT_PID()) + " clock=CLOCK_MONOTONIC device_span=" +
        (profile ? (profiled_queue ? "on" : "unavailable,queue_without_profiling") : "off") + "\n" +
        "[tracekit-sycl] limit: the queue is waited for after every operation; overlap and device graphs are lost, "
        "the speed of this run is not a measurement\n");
}

// The timing must not throw where the backend does not: its next call to the device meets the fault itself.
inline void op_timing_fault(const char * what, const std::exception & e) {
    op_timing_write(std::string("[tracekit-sycl] ") + what + ": " + e.what() + "\n");
}

// Begins a graph: counts it, and waits for what was queued before, which is not the first operation's.
class op_graph {
  public:
    op_graph(sycl::queue & queue, int device) : queue(queue), device(device) {
        if (!op_timing_on()) {
            return;
        }
        static const bool asked = op_timing_switch("TRACEKIT_OP_TIMING_PROFILE");
        profiled                = asked && queue.has_property<sycl::property::queue::enable_profiling>();
        ordinal                 = op_timing_graphs()++;
        if (ordinal == 0) {
            op_timing_announce(asked, profiled);
        }
        try {
            queue.wait();
        } catch (const std::exception & e) {
            op_timing_fault("the queue could not be waited for before a graph", e);
        }
    }

    sycl::queue & queue;
    int           device;
    uint64_t      ordinal  = 0;
    bool          profiled = false;
};

// Times one round of the loop over nodes, however it is left. `index` is the loop's own counter: fused paths advance
// it, so the nodes that ran inside this one are known at the end.
class op_timer {
  public:
    op_timer(const op_graph & graph, const ggml_tensor * node, const int & index) :
        graph(graph), node(node), index(index), first(index), on(op_timing_on()) {
        if (!on) {
            return;
        }
        exceptions = std::uncaught_exceptions();
        if (graph.profiled) {
            before = graph.queue.ext_oneapi_submit_barrier();
        }
        began = op_timing_now();
    }

    ~op_timer() {
        if (!on || std::uncaught_exceptions() != exceptions) {
            return;
        }
        try {
            finish();
        } catch (const std::exception & e) {
            op_timing_fault("an operation was not timed", e);
        }
    }

    op_timer(const op_timer &)             = delete;
    op_timer & operator=(const op_timer &) = delete;

  private:
    void finish() {
        sycl::event after;
        if (graph.profiled) {
            after = graph.queue.ext_oneapi_submit_barrier();
        }
        graph.queue.wait();
        const uint64_t ns = op_timing_now() - began;

        char name[GGML_MAX_NAME];
        for (size_t i = 0; i < sizeof name; i++) {
            const unsigned char c = static_cast<unsigned char>(node->name[i]);
            name[i]               = c != 0 && (c < 32 || c == 127) ? '?' : static_cast<char>(c);
        }
        name[sizeof name - 1] = '\0';

        char line[512];
        int  n = std::snprintf(line, sizeof line,
                               "[SYCL_OP_TIMING] dev=%d op=%s name=%s ne=%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64
                               " us=%" PRIu64 " v=1 graph=%" PRIu64 " t0_ns=%" PRIu64 " ns=%" PRIu64 " backend=SYCL%d",
                               graph.device, ggml_op_name(node->op), name, node->ne[0], node->ne[1], node->ne[2],
                               node->ne[3], ns / 1000, graph.ordinal, began, ns, graph.device);
        if (n < 0 || n >= static_cast<int>(sizeof line)) {
            return;
        }
        std::string text(line, static_cast<size_t>(n));
        if (index != first) {
            text += " fused=" + std::to_string(index - first);
        }
        if (graph.profiled) {
            text += " device_span_ns=" + std::to_string(span(after));
        }
        op_timing_write(text + "\n");
    }

    // Nanoseconds on the device's clock from the end of the barrier before to the start of the barrier after.
    uint64_t span(const sycl::event & after) const {
        using namespace sycl::info::event_profiling;
        const uint64_t from = before.template get_profiling_info<command_end>();
        const uint64_t to   = after.template get_profiling_info<command_start>();
        return to > from ? to - from : 0;
    }

    const op_graph &    graph;
    const ggml_tensor * node;
    const int &         index;
    int                 first;
    bool                on;
    int                 exceptions = 0;
    uint64_t            began      = 0;
    sycl::event         before;
};

}  // namespace tracekit
