/* The functions of `_kernel.c` for Python: arrays come as buffers, are checked, and released. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "_kernel.h"

typedef struct {
    Py_buffer item, worker, label, weight, counted_weight, counted_item, gold, share, first_vote;
} Buffers;

static void release(Buffers *given)
{
    Py_buffer *buffers = (Py_buffer *)given;
    for (size_t n = 0; n < sizeof *given / sizeof *buffers; n++)
        if (buffers[n].obj)
            PyBuffer_Release(&buffers[n]);
}

static int bad_size(const Py_buffer *buffer, size count, size bytes)
{
    if (buffer->len == count * bytes)
        return 0;
    PyErr_Format(PyExc_ValueError, "an array has %zd bytes, and %zd numbers of %zd bytes were "
                 "expected", buffer->len, count, bytes);
    return 1;
}

/* the nine arrays of a batch, of which the last three may be empty */
static int read_batch(PyObject *tuple, size n_workers, size n_classes, Buffers *given, Batch *batch)
{
    memset(given, 0, sizeof *given);
    if (!PyArg_ParseTuple(tuple, "y*y*y*y*y*y*y*y*y*", &given->item, &given->worker, &given->label,
                          &given->weight, &given->counted_weight, &given->counted_item,
                          &given->gold, &given->share, &given->first_vote))
        return 0;
    size B = given->item.len / 4, N = given->counted_item.len / 8;
    if (bad_size(&given->item, B, 4) || bad_size(&given->worker, B, 4) ||
        bad_size(&given->label, B, 4) || bad_size(&given->weight, B, 4) ||
        bad_size(&given->counted_weight, B, 4) || bad_size(&given->counted_item, N, 8) ||
        (given->gold.len && bad_size(&given->gold, N, 4)) ||
        (given->share.len && bad_size(&given->share, B, 4)) ||
        (given->first_vote.len && bad_size(&given->first_vote, B, 4)))
        return 0;
    *batch = (Batch){N, B, n_workers, n_classes, given->item.buf, given->worker.buf,
                     given->label.buf, given->weight.buf, given->counted_weight.buf,
                     given->counted_item.buf, given->gold.len ? given->gold.buf : NULL,
                     given->share.len ? given->share.buf : NULL,
                     given->first_vote.len ? given->first_vote.buf : NULL};
    for (size b = 0; b < B; b++)
        if (batch->item[b] < (b ? batch->item[b - 1] : 0) || batch->item[b] >= N ||
            (uint32_t)batch->worker[b] >= (size_t)n_workers ||
            (uint32_t)batch->label[b] >= (size_t)n_classes) {
            PyErr_SetString(PyExc_ValueError, "labels must be sorted by item, and their items, "
                            "workers and classes be among those counted");
            return 0;
        }
    for (size i = 0; batch->gold && i < N; i++)
        if (batch->gold[i] < MISSING || batch->gold[i] >= n_classes) {
            PyErr_SetString(PyExc_ValueError, "a true class is not among those counted");
            return 0;
        }
    return 1;
}

/* what a public function is given besides a batch, released together */
#define MAX_ARRAYS 11
typedef struct {
    Py_buffer buffers[MAX_ARRAYS];
    int n;
} Arrays;

static void release_arrays(Arrays *arrays)
{
    for (int n = 0; n < arrays->n; n++)
        PyBuffer_Release(&arrays->buffers[n]);
}

/* float64 arrays of these sizes; those from `writable` on are written to */
static int read_arrays(PyObject *tuple, Arrays *arrays, int writable, const size *counts, int n)
{
    arrays->n = 0;
    if (PyTuple_Size(tuple) != n) {
        PyErr_Format(PyExc_ValueError, "%d arrays were expected", n);
        return 0;
    }
    for (int at = 0; at < n; at++) {
        int flags = at < writable ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        Py_buffer *buffer = &arrays->buffers[at];
        if (PyObject_GetBuffer(PyTuple_GetItem(tuple, at), buffer, flags) < 0)
            return 0;
        arrays->n = at + 1;
        if (bad_size(buffer, counts[at], 8))
            return 0;
    }
    return 1;
}

static int read_recipe(Py_buffer *given, Recipe *recipe)
{
    if (bad_size(given, sizeof(Recipe) / 8, 8))
        return 0;
    memcpy(recipe, given->buf, sizeof(Recipe));
    return 1;
}

static PyObject *fit(PyObject *self, PyObject *args)
{
    int kind, scoring;
    size K, C;
    PyObject *tuple, *rest;
    Py_buffer constants;
    (void)self;
    if (!PyArg_ParseTuple(args, "inny*iO!O!", &kind, &K, &C, &constants, &scoring, &PyTuple_Type,
                          &tuple, &PyTuple_Type, &rest))
        return NULL;
    Recipe recipe;
    Buffers given;
    Batch batch;
    Arrays arrays = {.n = 0};
    int done = read_recipe(&constants, &recipe) & read_batch(tuple, K, C, &given, &batch);
    if (done) {
        size stride = stride_of(kind, C), shared = stride;
        /* before, others, class counts, label shares; then counts, theta, q, P, sums, numbers,
           log scores or nothing */
        const size counts[] = {K * stride, shared, C, C, K * stride, K * params_of(kind, C),
                               batch.n_items * C, shared, n_sums(&batch) * C, 2,
                               scoring ? batch.n_items * C : 0};
        done = read_arrays(rest, &arrays, 4, counts, 11);
    }
    if (done) {
        double *a[MAX_ARRAYS];
        for (int n = 0; n < 11; n++)
            a[n] = arrays.buffers[n].buf;
        Py_BEGIN_ALLOW_THREADS
        const Fitted out = {a[4], a[5], a[6], a[7], a[8], a[9], scoring ? a[10] : NULL};
        done = fit_chunk(&batch, &recipe, kind, a[0], a[1], a[2], a[3], &out);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    release_arrays(&arrays);
    release(&given);
    PyBuffer_Release(&constants);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *look(PyObject *args, int scoring)
{
    int kind;
    size K, C;
    PyObject *tuple, *rest;
    Py_buffer constants, evidence = {0};
    if (!PyArg_ParseTuple(args, scoring ? "inny*O!O!w*" : "inny*O!O!", &kind, &K, &C, &constants,
                          &PyTuple_Type, &tuple, &PyTuple_Type, &rest, &evidence))
        return NULL;
    Recipe recipe;
    Buffers given;
    Batch batch;
    Arrays arrays = {.n = 0};
    int done = read_recipe(&constants, &recipe) & read_batch(tuple, K, C, &given, &batch);
    if (done) {
        size stride = stride_of(kind, C);
        /* counts, theta, P, label shares, class counts, q or nothing; then scores or sums */
        const size counts[] = {K * stride, K * params_of(kind, C), stride, C, C,
                               scoring ? 0 : batch.n_items * C,
                               scoring ? batch.n_items * C : n_sums(&batch) * C};
        done = read_arrays(rest, &arrays, 6, counts, 7) &&
               !(scoring && bad_size(&evidence, batch.n_labels * C, 4));
    }
    if (done) {
        double *a[MAX_ARRAYS];
        for (int n = 0; n < 7; n++)
            a[n] = arrays.buffers[n].buf;
        Py_BEGIN_ALLOW_THREADS
        const Settled settled = {a[0], a[1], a[2], a[3], a[4]};
        done = scoring ? score_chunk(&batch, &recipe, kind, &settled, a[6], evidence.buf)
                       : unexplained_chunk(&batch, &recipe, kind, &settled, a[5], a[6]);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    release_arrays(&arrays);
    release(&given);
    PyBuffer_Release(&constants);
    if (scoring)
        PyBuffer_Release(&evidence);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *score(PyObject *self, PyObject *args)
{
    (void)self;
    return look(args, 1);
}

static PyObject *unexplained(PyObject *self, PyObject *args)
{
    (void)self;
    return look(args, 0);
}

/* P of counts (K, ...), or theta at the maximum of J where `solving` */
static PyObject *of_workers(PyObject *args, int solving)
{
    int kind;
    size K, C;
    PyObject *rest;
    Py_buffer constants;
    if (!PyArg_ParseTuple(args, "inny*O!", &kind, &K, &C, &constants, &PyTuple_Type, &rest))
        return NULL;
    Recipe recipe;
    Arrays arrays = {.n = 0};
    size stride = stride_of(kind, C), params = params_of(kind, C);
    /* counts, P or nothing; then theta or P */
    const size counts[] = {K * stride, solving ? stride : 0, solving ? K * params : stride};
    int done = read_recipe(&constants, &recipe) && read_arrays(rest, &arrays, 2, counts, 3);
    if (done) {
        const double *given = arrays.buffers[0].buf, *pooled = arrays.buffers[1].buf;
        double *out = arrays.buffers[2].buf;
        Py_BEGIN_ALLOW_THREADS
        done = solving ? solve_workers(given, pooled, out, K, C, kind, &recipe)
                       : pool_workers(given, out, K, C, kind, &recipe);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    release_arrays(&arrays);
    PyBuffer_Release(&constants);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *count(PyObject *self, PyObject *args)
{
    int kind;
    size K, C;
    PyObject *tuple, *rest;
    (void)self;
    if (!PyArg_ParseTuple(args, "innO!O!", &kind, &K, &C, &PyTuple_Type, &tuple, &PyTuple_Type,
                          &rest))
        return NULL;
    Buffers given;
    Batch batch;
    Arrays arrays = {.n = 0};
    size stride = stride_of(kind, C);
    int done = read_batch(tuple, K, C, &given, &batch);
    if (done) {
        const size counts[] = {batch.n_items * C, K * stride}; /* q; then the counts */
        done = read_arrays(rest, &arrays, 1, counts, 2);
    }
    if (done) {
        const double *probs = arrays.buffers[0].buf;
        double *out = arrays.buffers[1].buf;
        Py_BEGIN_ALLOW_THREADS
        done = count_chunk(&batch, kind, probs, out);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    release_arrays(&arrays);
    release(&given);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *solve(PyObject *self, PyObject *args)
{
    (void)self;
    return of_workers(args, 1);
}

static PyObject *pool(PyObject *self, PyObject *args)
{
    (void)self;
    return of_workers(args, 0);
}

static PyMethodDef functions[] = {
    {"fit", fit, METH_VARARGS, "Solve a chunk with all that was counted before."},
    {"score", score, METH_VARARGS, "Log scores of items, and what each label says."},
    {"unexplained", unexplained, METH_VARARGS, "The sums of `dependence` for labels counted before."},
    {"count", count, METH_VARARGS, "The counts of labels by q."},
    {"solve", solve, METH_VARARGS, "Theta of workers at the maximum of J."},
    {"pool", pool, METH_VARARGS, "What workers give to P."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "The solver of counts.py in C.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&module); }
