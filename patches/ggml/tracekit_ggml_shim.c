/*
 * Times the graph nodes of unmodified ggml programs (llama-bench, llama-server, rpc-server, ...).
 *
 *     tracekit patch build ggml-shim -o shim.so [--ggml-include DIR]
 *     LD_PRELOAD=$PWD/shim.so rpc-server ... 2> worker0.log
 *
 * The dynamic loader lets this library answer first for four functions that such programs call across a library
 * border, so nothing is rebuilt:
 *
 *   ggml_backend_sched_set_eval_callback     what the program sets is replaced by our callback, unless it sets one of
 *                                            its own. The scheduler then computes the nodes we ask for one at a time
 *                                            and waits after each.
 *   ggml_backend_sched_graph_compute[_async] counts graphs; installs the callback where nobody ever sets one.
 *   ggml_backend_graph_compute               the entry of an RPC worker, which has no scheduler: the graph is computed
 *                                            node by node through ggml_graph_view(), with a wait after each.
 *
 * One line per node, each in one write(2):
 *
 *   [SYCL_OP_TIMING] dev=D op=OP name=NAME ne=AxBxCxD us=U v=1 graph=G t0_ns=T ns=N backend=B
 *
 * Nodes that do nothing (NONE, VIEW, RESHAPE, PERMUTE, TRANSPOSE, empty results) are not printed.
 *
 * Environment:
 *   TRACEKIT_OP_TIMING=0       pass everything through
 *   TRACEKIT_OP_TIMING_OUT     file to append to instead of standard error; %p becomes the process id
 *   TRACEKIT_OP_TIMING_DEV     number to print as dev=
 *   TRACEKIT_OP_TIMING_SKIP    beginnings of backend names to leave alone, separated by commas. "RPC" unless set: a
 *                              client that waits for every remote node slows the workers that are measured.
 *
 * Only two facts about memory are used: where a tensor keeps its dimensions and its operation. They come from the
 * ggml.h that was compiled in (TRACEKIT_GGML_HEADER) or are those of every ggml since 2023; either way they are
 * verified on tensors made for that purpose, and again on every node. In doubt nothing is timed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef TRACEKIT_GGML_HEADER
#include "ggml.h"
enum { NE_OFFSET = offsetof(struct ggml_tensor, ne), OP_OFFSET = offsetof(struct ggml_tensor, op) };
#define LAYOUT_SOURCE "header"
#else
enum { NE_OFFSET = 16, OP_OFFSET = 80 };
#define LAYOUT_SOURCE "default"
#endif

#define EXPORT __attribute__((visibility("default")))

typedef struct tensor tensor; /* struct ggml_tensor, known by the two offsets alone */
typedef struct backend backend;
typedef struct sched sched;
typedef struct device device;
typedef struct context context;

/* Holds a struct ggml_cgraph, which ggml_graph_view() returns by value; far larger, so that it is always returned
 * through memory, whatever the calling convention. */
typedef struct {
    uint64_t words[128];
} graph;

/* struct ggml_init_params, which ggml_init() takes by value. */
typedef struct {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
} init_params;

typedef bool (*eval_callback)(tensor *, bool, void *);

/* ---- the real functions ------------------------------------------------------------------------------------- */

static struct {
    const char *(*get_name)(const tensor *);
    const char *(*op_name)(int);
    int64_t (*nelements)(const tensor *);
    size_t (*nbytes)(const tensor *);
    context *(*init)(init_params);
    void (*free)(context *);
    tensor *(*new_tensor_4d)(context *, int, int64_t, int64_t, int64_t, int64_t);
    tensor *(*add)(context *, tensor *, tensor *);
    tensor *(*mul_mat)(context *, tensor *, tensor *);
    int (*graph_n_nodes)(graph *);
    tensor *(*graph_node)(graph *, int);
    graph (*graph_view)(graph *, int, int);
    void (*synchronize)(backend *);
    const char *(*backend_name)(backend *);
    int (*graph_compute)(backend *, graph *);
    int (*graph_compute_async)(backend *, graph *);
    void (*set_eval_callback)(sched *, eval_callback, void *);
    int (*sched_compute)(sched *, graph *);
    int (*sched_compute_async)(sched *, graph *);
    backend *(*tensor_backend)(sched *, tensor *);
    device *(*get_device)(backend *);
    size_t (*dev_count)(void);
    device *(*dev_get)(size_t);
} real;

struct search {
    const char *symbol;
    void *self, *found;
    bool ggml_only;
};

static int search_library(struct dl_phdr_info *info, size_t size, void *arg) {
    struct search *s = arg;
    (void)size;
    if (!info->dlpi_name || !*info->dlpi_name || (s->ggml_only && !strstr(info->dlpi_name, "ggml"))) return 0;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return 0;
    void *p = dlsym(library, s->symbol);
    dlclose(library);
    Dl_info ours, theirs;
    /* Our own library is among those loaded. */
    if (!p || p == s->self || (dladdr((void *)&real, &ours) && dladdr(p, &theirs) && ours.dli_fbase == theirs.dli_fbase))
        return 0;
    s->found = p;
    return 1;
}

/* Finds the next definition; also in libraries that were loaded privately, as Python's ctypes does. */
static void *find(const char *symbol, void *self) {
    void *p = dlsym(RTLD_NEXT, symbol);
    if (p && p != self) return p;
    struct search s = {symbol, self, NULL, true};
    if (dl_iterate_phdr(search_library, &s)) return s.found;
    s.ggml_only = false;
    dl_iterate_phdr(search_library, &s);
    return s.found;
}

/* ---- state, notices, lines ---------------------------------------------------------------------------------- */

static struct {
    bool off; /* switched off, or refused: everything passes through */
    int fd;
    const char *dev, *skip, *out;
    atomic_bool stopped; /* a check failed after the start */
    atomic_uint_fast64_t graphs, lines, lost;
    atomic_bool seen_sched, seen_compute, seen_foreign;
} state = {.fd = STDERR_FILENO};

static __thread uint64_t node_start, this_graph;
static __thread backend *last_backend;
static __thread int sched_depth;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One write a line, so that lines of several writers to one pipe stay whole. False if it did not go out whole. */
static bool write_line(int fd, const char *text, size_t size) {
    for (;;) {
        ssize_t n = write(fd, text, size);
        if (n == (ssize_t)size) return true;
        if (n >= 0 || (errno != EINTR && errno != EAGAIN)) return false;
        struct pollfd p = {fd, POLLOUT, 0};
        if (errno == EAGAIN && poll(&p, 1, 1000) <= 0) return false;
    }
}

__attribute__((format(printf, 2, 3))) static void notice(int fd, const char *format, ...) {
    char line[1024] = "[tracekit-shim] ";
    size_t at = strlen(line);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + at, sizeof line - at - 1, format, args);
    va_end(args);
    if (n < 0) return;
    at = at + (size_t)n < sizeof line - 1 ? at + (size_t)n : sizeof line - 2;
    line[at] = '\n';
    write_line(fd, line, at + 1);
}

static void refuse(const char *why) {
    static const char advice[] = "nothing is timed: rebuild the shim with --ggml-include and the ggml.h of this program";
    state.off = true;
    notice(state.fd, "refused: %s; %s", why, advice);
    if (state.fd != STDERR_FILENO) notice(STDERR_FILENO, "refused: %s; %s", why, advice);
}

static const int64_t *dims(const tensor *t) { return (const int64_t *)((const char *)t + NE_OFFSET); }

static int operation(const tensor *t) {
    int op;
    memcpy(&op, (const char *)t + OP_OFFSET, sizeof op);
    return op;
}

/* ---- verifying the layout ----------------------------------------------------------------------------------- */

static bool has_dims(const tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t *n = dims(t);
    return n[0] == a && n[1] == b && n[2] == c && n[3] == d;
}

/* The bound keeps a wrong offset from indexing ggml's table of names out of range. */
static bool has_op(const tensor *t, int bound, const char *name) {
    int op = operation(t);
    return op >= 0 && op <= bound && !strcmp(real.op_name(op), name);
}

/* Makes tensors whose shape and operation are known, and reads both back. NULL if all agrees. */
static const char *layout_fault(void) {
    init_params params = {64 * 1024, NULL, true};
    context *c = real.init(params);
    if (!c) return "ggml_init() failed, so the layout of ggml_tensor could not be verified";
    tensor *a = real.new_tensor_4d(c, 0 /* f32 */, 7, 5, 3, 2);
    tensor *b = real.new_tensor_4d(c, 0, 7, 5, 3, 2);
    tensor *sum = real.add(c, a, b), *product = real.mul_mat(c, a, b);
    const char *fault = NULL;
    if (!has_dims(a, 7, 5, 3, 2) || !has_dims(sum, 7, 5, 3, 2) || !has_dims(product, 5, 5, 3, 2))
        fault = "ggml_tensor keeps its dimensions (ne) elsewhere than expected";
    else if (real.nelements(a) != 210 || real.nbytes(a) != 840)
        fault = "ggml_nelements() or ggml_nbytes() disagree with the dimensions read";
    else if (!has_op(a, 0, "NONE") || !has_op(sum, 8, "ADD") || !has_op(product, 64, "MUL_MAT"))
        fault = "ggml_tensor keeps its operation (op) elsewhere than expected";
    real.free(c);
    return fault;
}

/* ggml_graph_view() is checked on the first graph: a view of one node must hold that node. */
static const char *view_fault(graph *g, int n) {
    graph view = real.graph_view(g, n - 1, n);
    if (real.graph_n_nodes(&view) != 1 || real.graph_node(&view, 0) != real.graph_node(g, n - 1))
        return "ggml_graph_view() does not give the view that was asked for";
    return NULL;
}

static bool check_node(const tensor *t) {
    const int64_t *n = dims(t);
    if (n[0] * n[1] * n[2] * n[3] == real.nelements(t)) return true;
    if (!atomic_exchange(&state.stopped, true))
        notice(state.fd, "stopped: a tensor's dimensions disagree with ggml_nelements(); nothing more is timed");
    return false;
}

/* ---- start -------------------------------------------------------------------------------------------------- */

static void load_functions(void) {
#define LOAD(field, symbol) *(void **)&real.field = find(#symbol, NULL)
    LOAD(get_name, ggml_get_name);
    LOAD(op_name, ggml_op_name);
    LOAD(nelements, ggml_nelements);
    LOAD(nbytes, ggml_nbytes);
    LOAD(init, ggml_init);
    LOAD(free, ggml_free);
    LOAD(new_tensor_4d, ggml_new_tensor_4d);
    LOAD(add, ggml_add);
    LOAD(mul_mat, ggml_mul_mat);
    LOAD(graph_n_nodes, ggml_graph_n_nodes);
    LOAD(graph_node, ggml_graph_node);
    LOAD(graph_view, ggml_graph_view);
    LOAD(synchronize, ggml_backend_synchronize);
    LOAD(backend_name, ggml_backend_name);
    LOAD(graph_compute_async, ggml_backend_graph_compute_async);
    LOAD(tensor_backend, ggml_backend_sched_get_tensor_backend);
    LOAD(get_device, ggml_backend_get_device);
    LOAD(dev_count, ggml_backend_dev_count);
    LOAD(dev_get, ggml_backend_dev_get);
#undef LOAD
}

/* The functions that this library answers for itself: the next definition is wanted, not ours. */
EXPORT int ggml_backend_graph_compute(backend *b, graph *g);
EXPORT void ggml_backend_sched_set_eval_callback(sched *s, eval_callback f, void *data);
EXPORT int ggml_backend_sched_graph_compute(sched *s, graph *g);
EXPORT int ggml_backend_sched_graph_compute_async(sched *s, graph *g);

static void load_interposed(void) {
#define LOAD(field, symbol) *(void **)&real.field = find(#symbol, (void *)symbol)
    LOAD(graph_compute, ggml_backend_graph_compute);
    LOAD(set_eval_callback, ggml_backend_sched_set_eval_callback);
    LOAD(sched_compute, ggml_backend_sched_graph_compute);
    LOAD(sched_compute_async, ggml_backend_sched_graph_compute_async);
#undef LOAD
}

static bool open_output(void) {
    const char *path = state.out, *mark = strstr(path, "%p");
    char name[4096];
    int n = mark ? snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - path), path, (int)getpid(), mark + 2)
                 : snprintf(name, sizeof name, "%s", path);
    if (n < 0 || n >= (int)sizeof name) return false;
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    state.fd = fd;
    return true;
}

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void start(void) {
    load_interposed();
    const char *on = getenv("TRACEKIT_OP_TIMING"), *skip = getenv("TRACEKIT_OP_TIMING_SKIP");
    state.dev = environment("TRACEKIT_OP_TIMING_DEV");
    state.out = environment("TRACEKIT_OP_TIMING_OUT");
    state.skip = skip ? skip : "RPC";
    if (on && !strcmp(on, "0")) {
        state.off = true;
        return;
    }
    if (state.out && !open_output()) {
        state.off = true;
        notice(STDERR_FILENO, "refused: cannot append to %s: %s; nothing is timed", state.out, strerror(errno));
        return;
    }
    load_functions();
    if (find("tracekit_sycl_op_timing_v1", NULL)) {
        state.off = true;
        notice(state.fd, "refused: this ggml carries tracekit's source patch and prints the lines itself");
        return;
    }
    if (!real.get_name || !real.op_name || !real.nelements || !real.nbytes || !real.init || !real.free ||
        !real.new_tensor_4d || !real.add || !real.mul_mat || !real.synchronize)
        refuse("this ggml does not export the functions that verify its layout");
    else {
        const char *fault = layout_fault();
        if (fault) refuse(fault);
    }
}

static bool active(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return !state.off && !atomic_load_explicit(&state.stopped, memory_order_relaxed);
}

/* Says once per process what is timed and what the figures cannot tell. */
static void announce(const char *entry) {
    notice(state.fd, "v=1 pid=%d program=%s entry=%s layout=%s,verified skip=%s clock=CLOCK_MONOTONIC", (int)getpid(),
           program_invocation_short_name, entry, LAYOUT_SOURCE, *state.skip ? state.skip : "-");
    notice(state.fd, "limit: every node is computed alone and waited for: fused kernels are split into their nodes, "
                     "overlap and device graphs are lost; the speed of this run is not a measurement");
    notice(state.fd, "limit: a time runs from the dispatch on the host to the end of the wait, launch included; "
                     "copies between backends and nodes without work are not timed");
}

__attribute__((destructor)) static void finish(void) {
    uint64_t graphs = atomic_load(&state.graphs), lines = atomic_load(&state.lines), lost = atomic_load(&state.lost);
    if (graphs) {
        /* What could not be written to a file is said where it may be seen. */
        static const char end[] = "end: graphs=%" PRIu64 " lines=%" PRIu64 " lost=%" PRIu64;
        notice(state.fd, end, graphs, lines, lost);
        if (lost && state.fd != STDERR_FILENO) notice(STDERR_FILENO, end, graphs, lines, lost);
    } else if (!state.off && !state.seen_foreign && !strncmp(program_invocation_short_name, "llama", 5))
        notice(STDERR_FILENO, "no graph passed by: %s may be linked statically, then no preloaded library can time it "
                              "(build it with BUILD_SHARED_LIBS=ON)", program_invocation_short_name);
}

/* ---- one node ----------------------------------------------------------------------------------------------- */

static bool left_alone(backend *b) {
    const char *name = b && real.backend_name ? real.backend_name(b) : NULL;
    for (const char *p = state.skip; name && *p;) {
        size_t n = strcspn(p, ",");
        if (n && !strncmp(p, name, n)) return true;
        p += n + (p[n] == ',');
    }
    return false;
}

static bool does_nothing(const tensor *t) {
    const char *op = real.op_name(operation(t));
    return !strcmp(op, "NONE") || !strcmp(op, "VIEW") || !strcmp(op, "RESHAPE") || !strcmp(op, "PERMUTE") ||
           !strcmp(op, "TRANSPOSE") || real.nelements(t) == 0;
}

/* The index in ggml's registry; where there is none (ik_llama.cpp), the digits that end the backend's name. Nothing is
 * remembered by address: programs free backends, and the next one gets the same address. */
static int device_number(backend *b) {
    if (state.dev) return atoi(state.dev);
    if (b && real.get_device && real.dev_count && real.dev_get) {
        device *d = real.get_device(b);
        for (size_t i = 0, n = real.dev_count(); i < n; i++)
            if (real.dev_get(i) == d) return (int)i;
    }
    const char *name = b && real.backend_name ? real.backend_name(b) : "", *end = name + strlen(name);
    while (end > name && end[-1] >= '0' && end[-1] <= '9') end--;
    return atoi(end);
}

/* Copies a text so that it cannot break a line, or a value that ends at a blank. */
static void plain(char *to, size_t size, const char *from, bool blanks) {
    size_t n = 0;
    for (; from && from[n] && n + 1 < size; n++) {
        unsigned char c = (unsigned char)from[n];
        to[n] = c < 32 || c == 127 ? '?' : c == ' ' && !blanks ? '_' : (char)c;
    }
    to[n] = 0;
}

static void emit(backend *b, const tensor *t, uint64_t began, uint64_t ended) {
    if (!check_node(t)) return;
    const int64_t *n = dims(t);
    char line[1024], name[256], where[64];
    plain(name, sizeof name, real.get_name(t), true);
    plain(where, sizeof where, b && real.backend_name ? real.backend_name(b) : "?", false);
    int k = snprintf(line, sizeof line,
                     "[SYCL_OP_TIMING] dev=%d op=%s name=%s ne=%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64
                     " us=%" PRIu64 " v=1 graph=%" PRIu64 " t0_ns=%" PRIu64 " ns=%" PRIu64 " backend=%s\n",
                     device_number(b), real.op_name(operation(t)), name, n[0], n[1], n[2], n[3],
                     (ended - began) / 1000, this_graph, began, ended - began, where);
    bool whole = k > 0 && k < (int)sizeof line && write_line(state.fd, line, (size_t)k);
    atomic_fetch_add_explicit(whole ? &state.lines : &state.lost, 1, memory_order_relaxed);
}

/* ---- programs with a scheduler ------------------------------------------------------------------------------ */

/* Schedulers with a callback of the program's own. Few; an address is struck off when it is set to none. */
static sched *foreign[64];
static pthread_mutex_t foreign_lock = PTHREAD_MUTEX_INITIALIZER;

static bool foreign_set(sched *s, bool member) {
    pthread_mutex_lock(&foreign_lock);
    int at = 0, gap = -1;
    for (; at < 64 && foreign[at] != s; at++)
        if (!foreign[at] && gap < 0) gap = at;
    if (at < 64 && !member) foreign[at] = NULL;
    if (at == 64 && member && gap >= 0) foreign[gap] = s;
    pthread_mutex_unlock(&foreign_lock);
    return at < 64 || gap >= 0;
}

static bool foreign_has(sched *s) {
    pthread_mutex_lock(&foreign_lock);
    bool found = false;
    for (int at = 0; at < 64 && !found; at++) found = foreign[at] == s;
    pthread_mutex_unlock(&foreign_lock);
    return found;
}

/* The scheduler asks before each node, and tells after each node that was asked for. Nodes not asked for are computed
 * together with the next that is, so only those without work may be left out: a time must not hold another's work. */
static bool on_node(tensor *t, bool ask, void *s) {
    uint64_t ended = now_ns();
    backend *b = real.tensor_backend ? real.tensor_backend(s, t) : NULL;
    if (!ask) {
        emit(b, t, node_start, ended);
        return true;
    }
    if (!active() || does_nothing(t) || left_alone(b)) return false;
    if (b && b != last_backend) { /* what was queued before, such as copies of inputs, is not this node's */
        real.synchronize(b);
        last_backend = b;
    }
    node_start = now_ns();
    return true;
}

EXPORT void ggml_backend_sched_set_eval_callback(sched *s, eval_callback f, void *data) {
    bool timing = active();
    if (!real.set_eval_callback) return;
    if (timing && f && !atomic_exchange(&state.seen_foreign, true))
        notice(state.fd, "limit: the program sets an evaluation callback of its own; that scheduler is not timed");
    foreign_set(s, f != NULL);
    if (timing && !f)
        real.set_eval_callback(s, on_node, s);
    else
        real.set_eval_callback(s, f, data);
}

static int sched_compute(int (*compute)(sched *, graph *), sched *s, graph *g) {
    /* The blocking form calls the other one; a graph counts once. */
    if (sched_depth || !active() || foreign_has(s)) return compute(s, g);
    if (!atomic_exchange(&state.seen_sched, true)) announce("scheduler");
    this_graph = atomic_fetch_add(&state.graphs, 1);
    last_backend = NULL;
    if (real.set_eval_callback) real.set_eval_callback(s, on_node, s);
    sched_depth++;
    int status = compute(s, g);
    sched_depth--;
    return status;
}

EXPORT int ggml_backend_sched_graph_compute(sched *s, graph *g) {
    active();
    return sched_compute(real.sched_compute, s, g);
}

EXPORT int ggml_backend_sched_graph_compute_async(sched *s, graph *g) {
    active();
    return sched_compute(real.sched_compute_async, s, g);
}

/* ---- programs without one (RPC workers) --------------------------------------------------------------------- */

/* The bare form where there is one: the other waits too, and two waits would be counted. */
static int compute_view(backend *b, graph *view) {
    if (!real.graph_compute_async) return real.graph_compute(b, view);
    int status = real.graph_compute_async(b, view);
    real.synchronize(b);
    return status;
}

static int compute_by_node(backend *b, graph *g, int n) {
    for (int i = 0, last; i < n; i = last + 1) {
        for (last = i; last < n - 1 && does_nothing(real.graph_node(g, last));) last++;
        tensor *t = real.graph_node(g, last);
        graph view = real.graph_view(g, i, last + 1);
        uint64_t began = now_ns();
        int status = compute_view(b, &view);
        uint64_t ended = now_ns();
        if (status) return status;
        if (!does_nothing(t)) emit(b, t, began, ended);
    }
    return 0;
}

/* The first graph that holds anything shows whether views work; then what is timed is announced. */
static bool graphs_can_be_cut(graph *g, int n) {
    if (atomic_exchange(&state.seen_compute, true)) return true;
    const char *fault = n < 0 ? "this ggml does not export ggml_graph_view()" : view_fault(g, n);
    if (fault)
        refuse(fault);
    else
        announce("graph_compute");
    return !fault;
}

EXPORT int ggml_backend_graph_compute(backend *b, graph *g) {
    if (!active() || left_alone(b)) return real.graph_compute(b, g);
    int n = real.graph_n_nodes && real.graph_node && real.graph_view ? real.graph_n_nodes(g) : -1;
    if (n == 0 || !graphs_can_be_cut(g, n)) return real.graph_compute(b, g);
    this_graph = atomic_fetch_add(&state.graphs, 1);
    real.synchronize(b); /* what was queued before is not the first node's */
    return compute_by_node(b, g, n);
}
