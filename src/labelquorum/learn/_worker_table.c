/* Worker rows in C: some rows of a table to arrays, and back.

   The same as `take_in_numpy` and `put_in_numpy` of worker_table.py, which are used where nothing
   was compiled; tests/learn/test_worker_table.py holds them together. Of a million workers, hardly
   a row is in the cache: rows are copied whole, so that a processor waits for many at a time. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef Py_ssize_t size;

#define ROOM 8192 /* bytes of rows that are copied whole before they are taken apart: they stay in L1 */
#define MAX_LEAVES 16

typedef struct {
    Py_buffer buffer;
    size offset, width; /* bytes: where the leaf begins in a row, and what it takes */
} Leaf;

typedef struct {
    Py_buffer block, workers;
    size row_bytes, n_workers;
    Leaf leaves[MAX_LEAVES];
    int n_leaves;
} Copied;

static void release(Copied *c)
{
    for (int n = 0; n < c->n_leaves; n++)
        PyBuffer_Release(&c->leaves[n].buffer);
    PyBuffer_Release(&c->workers);
    PyBuffer_Release(&c->block);
}

/* (block, bytes of a row, workers, offsets, leaves): all are checked, so that copying cannot fail */
static int read_arguments(PyObject *args, Copied *c, int putting, Py_buffer *before)
{
    PyObject *offsets, *leaves;
    c->n_leaves = 0;
    if (!PyArg_ParseTuple(args, putting ? "w*ny*O!O!w*" : "y*ny*O!O!", &c->block, &c->row_bytes,
                          &c->workers, &PyTuple_Type, &offsets, &PyTuple_Type, &leaves, before))
        return 0;
    size n_leaves = PyTuple_Size(leaves), n_rows = c->row_bytes > 0 ? c->block.len / c->row_bytes : 0;
    int fits = c->row_bytes > 0 && n_leaves <= MAX_LEAVES && PyTuple_Size(offsets) == n_leaves;
    const int32_t *worker = c->workers.buf;
    c->n_workers = c->workers.len / 4;
    for (size k = 0; fits && k < c->n_workers; k++)
        fits = worker[k] >= 0 && worker[k] < n_rows;
    for (size n = 0; fits && n < n_leaves; n++) {
        Leaf *leaf = &c->leaves[n];
        leaf->offset = PyLong_AsSsize_t(PyTuple_GetItem(offsets, n));
        int flags = putting ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (PyObject_GetBuffer(PyTuple_GetItem(leaves, n), &leaf->buffer, flags) < 0)
            break;
        c->n_leaves = (int)n + 1;
        leaf->width = c->n_workers ? leaf->buffer.len / c->n_workers : 0;
        fits = leaf->buffer.len == leaf->width * c->n_workers && leaf->offset >= 0 &&
               leaf->offset + leaf->width <= c->row_bytes;
    }
    fits = fits && (!putting || before->len == c->n_workers * c->row_bytes);
    if (!fits && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the arrays are not of the sizes of one another, or a "
                        "worker is not among those of the table");
    if (!PyErr_Occurred())
        return 1;
    release(c);
    if (putting)
        PyBuffer_Release(before);
    return 0;
}

/* memcpy as a call: where GCC knows a bound it makes `rep movs` of it, which takes 20 ns to start. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;

/* take(block, row_bytes, workers, offsets, leaves): the leaves are written */
static PyObject *take(PyObject *self, PyObject *args)
{
    Copied c;
    (void)self;
    if (!read_arguments(args, &c, 0, NULL))
        return NULL;
    const int32_t *worker = c.workers.buf;
    const char *block = c.block.buf;
    char room[ROOM];
    size some = c.row_bytes <= ROOM ? ROOM / c.row_bytes : 1;
    for (size first = 0; first < c.n_workers; first += some) {
        size end = first + some < c.n_workers ? first + some : c.n_workers;
        const char *rows = c.row_bytes <= ROOM ? room : block + worker[first] * c.row_bytes;
        for (size k = first; rows == room && k < end; k++)
            copy(room + (k - first) * c.row_bytes, block + worker[k] * c.row_bytes,
                 (size_t)c.row_bytes);
        for (int n = 0; n < c.n_leaves; n++) {
            const Leaf *leaf = &c.leaves[n];
            char *out = leaf->buffer.buf;
            for (size k = first; k < end; k++)
                copy(out + k * leaf->width, rows + (k - first) * c.row_bytes + leaf->offset,
                     (size_t)leaf->width);
        }
    }
    release(&c);
    Py_RETURN_NONE;
}

/* put(block, row_bytes, workers, offsets, leaves, before): the rows of the block become those of the
   leaves, and `before` has them as they were */
static PyObject *put(PyObject *self, PyObject *args)
{
    Copied c;
    Py_buffer before;
    (void)self;
    if (!read_arguments(args, &c, 1, &before))
        return NULL;
    const int32_t *worker = c.workers.buf;
    for (size k = 0; k < c.n_workers; k++)
        copy((char *)before.buf + k * c.row_bytes, (char *)c.block.buf + worker[k] * c.row_bytes,
             (size_t)c.row_bytes);
    for (int n = 0; n < c.n_leaves; n++) {
        const Leaf *leaf = &c.leaves[n];
        char *block = (char *)c.block.buf + leaf->offset;
        const char *from = leaf->buffer.buf;
        for (size k = 0; k < c.n_workers; k++)
            copy(block + worker[k] * c.row_bytes, from + k * leaf->width, (size_t)leaf->width);
    }
    release(&c);
    PyBuffer_Release(&before);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"take", take, METH_VARARGS, "Copy some rows to arrays."},
    {"put", put, METH_VARARGS, "Replace some rows by those of arrays, and keep what they were."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_worker_table", "Worker rows in C.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__worker_table(void) { return PyModule_Create(&module); }
