/* The library: what crosses the border between a program and ggml, with a clock of its own. */
#include "ggml.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct ggml_tensor tensor;
typedef struct { int n; tensor **nodes; char rest[64]; } cgraph;
typedef struct { const char *name; } backend;
typedef bool (*callback)(tensor *, bool, void *);
typedef struct { backend *where; callback f; void *data; } sched;
typedef struct { size_t size; void *buffer; bool no_alloc; } init_params;

static const char *ops[] = {"NONE", "DUP", "ADD", "MUL_MAT", "VIEW"};
static int pending; /* work that was queued and not yet waited for */
static uint64_t clock_ns = 5000000000u;

/* Found before libc's: time passes by work, and by 100 ns whenever it is looked at. */
int clock_gettime(clockid_t id, struct timespec *t) {
    (void)id;
    clock_ns += 100;
    *t = (struct timespec){(time_t)(clock_ns / 1000000000u), (long)(clock_ns % 1000000000u)};
    return 0;
}

void *ggml_init(init_params p) { return p.no_alloc ? malloc(1) : NULL; }
void ggml_free(void *c) { free(c); }
tensor *ggml_new_tensor_4d(void *c, int type, int64_t a, int64_t b, int64_t d, int64_t e) {
    (void)c;
    tensor *t = calloc(1, sizeof *t);
    t->type = type;
    int64_t ne[4] = {a, b, d, e};
    memcpy(t->ne, ne, sizeof ne);
    return t;
}
tensor *ggml_add(void *c, tensor *a, tensor *b) {
    (void)b;
    tensor *t = ggml_new_tensor_4d(c, 0, a->ne[0], a->ne[1], a->ne[2], a->ne[3]);
    t->op = 2;
    return t;
}
tensor *ggml_mul_mat(void *c, tensor *a, tensor *b) {
    tensor *t = ggml_new_tensor_4d(c, 0, a->ne[1], b->ne[1], b->ne[2], b->ne[3]);
    t->op = 3;
    return t;
}
const char *ggml_op_name(int op) { return ops[op]; }
const char *ggml_get_name(const tensor *t) { return t->name; }
int64_t ggml_nelements(const tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
size_t ggml_nbytes(const tensor *t) { return 4 * (size_t)ggml_nelements(t); }
int ggml_graph_n_nodes(cgraph *g) { return g->n; }
tensor *ggml_graph_node(cgraph *g, int i) { return g->nodes[i]; }
cgraph ggml_graph_view(cgraph *g, int i, int j) { return (cgraph){j - i, g->nodes + i, {0}}; }
const char *ggml_backend_name(backend *b) { return b->name; }
void ggml_backend_synchronize(backend *b) {
    (void)b;
    clock_ns += (uint64_t)pending * 1000000u;
    pending = 0;
}
int ggml_backend_graph_compute_async(backend *b, cgraph *g) {
    (void)b;
    for (int i = 0; i < g->n; i++) {
        if (!strcmp(g->nodes[i]->name, "broken")) return -1;
        if (g->nodes[i]->op != 4) pending += g->nodes[i]->op; /* ADD takes 2 ms, MUL_MAT 3, a view nothing */
    }
    return 0;
}
int ggml_backend_graph_compute(backend *b, cgraph *g) {
    int status = ggml_backend_graph_compute_async(b, g);
    ggml_backend_synchronize(b);
    return status;
}
void ggml_backend_sched_set_eval_callback(sched *s, callback f, void *data) { s->f = f, s->data = data; }
backend *ggml_backend_sched_get_tensor_backend(sched *s, tensor *t) { (void)t; return s->where; }
int ggml_backend_sched_graph_compute_async(sched *s, cgraph *g) {
    if (!s->f) return ggml_backend_graph_compute_async(s->where, g);
    for (int i = 0, j; i < g->n; i = j + 1) {
        bool need = s->f(g->nodes[j = i], true, s->data);
        while (!need && j < g->n - 1) need = s->f(g->nodes[++j], true, s->data);
        cgraph view = ggml_graph_view(g, i, j + 1);
        ggml_backend_graph_compute_async(s->where, &view);
        ggml_backend_synchronize(s->where);
        if (need && !s->f(g->nodes[j], false, s->data)) break;
    }
    return 0;
}
int ggml_backend_sched_graph_compute(sched *s, cgraph *g) {
    int status = ggml_backend_sched_graph_compute_async(s, g);
    ggml_backend_synchronize(s->where);
    return status;
}
#ifdef PATCHED
int tracekit_sycl_op_timing_v1 = 1;
#endif
#ifdef MARK_WRITES
#include <sys/syscall.h>
#include <unistd.h>
ssize_t write(int fd, const void *text, size_t size) { /* each write on standard error ends in a bar */
    ssize_t n = syscall(SYS_write, fd, text, size);
    if (fd == 2) syscall(SYS_write, fd, "|", 1);
    return n;
}
#endif
