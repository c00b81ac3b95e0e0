// A stand-in for SYCL, of our own: what the patches touch. A device whose clock moves by the work given to it.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <thread>

namespace sycl {

struct exception : std::runtime_error {
    using std::runtime_error::runtime_error;
};

namespace property::queue {
struct enable_profiling {};
}  // namespace property::queue

namespace info::event_profiling {
struct command_start {};
struct command_end {};
}  // namespace info::event_profiling

inline uint64_t stub_clock = 1000;  // ns on the device
inline int stub_waits = 0;
inline bool stub_lost = false;  // a device that is gone after two waits: then every wait throws

struct event {
    uint64_t start = 0, end = 0;

    template <typename What>
    uint64_t get_profiling_info() const {
        return std::is_same_v<What, info::event_profiling::command_start> ? start : end;
    }

    void wait() const {
        stub_waits++;
        if (stub_lost && stub_waits > 2) {
            throw exception("device lost");
        }
    }
};

struct handler {
    uint64_t work = 0;
};

struct queue {
    bool profiling = false;

    template <typename What>
    bool has_property() const {
        return profiling;
    }

    event ext_oneapi_submit_barrier() {
        return {stub_clock, stub_clock};
    }

    void wait() {
        event().wait();
    }

    template <typename Kernel>
    event submit(const Kernel& kernel) {
        handler h;
        kernel(h);
        event e{stub_clock, stub_clock + h.work};
        stub_clock += h.work;
        return e;
    }
};

}  // namespace sycl
