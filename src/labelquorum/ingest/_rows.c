/* Rows of labels in C: ids → integers, and integers in canonical order.

   The same results as `columns.encode`, `vocabulary._index` and `chunks.canonical_order`, which
   Python and NumPy give where nothing was compiled; tests/ingest/test_rows.py holds them together.
   B rows, N items, P workers present. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef Py_ssize_t size;

#define MAX_INSERTED 24 /* rows of an item up to which insertion is the fastest sort */

/* An array of int32 with this many numbers, or any number where `count` is negative */
static int32_t *int32_of(PyObject *given, Py_buffer *buffer, size count, int flags)
{
    if (PyObject_GetBuffer(given, buffer, flags) < 0)
        return NULL;
    if (buffer->len % 4 == 0 && (count < 0 || buffer->len == 4 * count))
        return buffer->buf;
    PyErr_Format(PyExc_ValueError, "an array has %zd bytes, and %zd numbers of 4 bytes were "
                 "expected", buffer->len, count);
    PyBuffer_Release(buffer);
    return NULL;
}

/* encode(cells, codes) → the distinct values in order of appearance; codes (B,) are written */
static PyObject *encode(PyObject *self, PyObject *args)
{
    PyObject *cells, *given, *values = NULL, *place = NULL;
    Py_buffer buffer;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &cells, &given))
        return NULL;
    size n = PyList_Size(cells);
    int32_t *codes = int32_of(given, &buffer, n, PyBUF_WRITABLE);
    if (!codes)
        return NULL;
    int done = (values = PyList_New(0)) && (place = PyDict_New());
    for (size row = 0; done && row < n; row++) {
        PyObject *cell = Py_NewRef(PyList_GetItem(cells, row)); /* comparing runs its own code */
        PyObject *found = PyDict_GetItemWithError(place, cell);
        if (found) {
            codes[row] = (int32_t)PyLong_AsLong(found);
            Py_DECREF(cell);
            continue;
        }
        size code = PyList_Size(values);
        PyObject *number = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(code);
        done = number && !PyDict_SetItem(place, cell, number) && !PyList_Append(values, cell);
        Py_XDECREF(number);
        Py_DECREF(cell);
        codes[row] = (int32_t)code;
    }
    PyBuffer_Release(&buffer);
    Py_XDECREF(place);
    if (!done)
        Py_CLEAR(values);
    return values;
}

/* look_up(cells, known, index) → whether all cells are known; index (B,) is written */
static PyObject *look_up(PyObject *self, PyObject *args)
{
    PyObject *cells, *known, *given;
    Py_buffer buffer;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyList_Type, &cells, &PyDict_Type, &known, &given))
        return NULL;
    size n = PyList_Size(cells), row = 0;
    int32_t *index = int32_of(given, &buffer, n, PyBUF_WRITABLE);
    if (!index)
        return NULL;
    for (; row < n; row++) {
        PyObject *cell = Py_NewRef(PyList_GetItem(cells, row)); /* comparing runs its own code */
        PyObject *found = PyDict_GetItemWithError(known, cell);
        Py_DECREF(cell);
        if (!found)
            break;
        index[row] = (int32_t)PyLong_AsLong(found);
    }
    PyBuffer_Release(&buffer);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(row == n);
}

/* ── ids by a hash table whose misses of the cache overlap ──────────────────────────────── */
/* Of a million workers, one in a dict is four places in memory, each known only when the one before
   has arrived: 0.9 µs. Here a batch of them is fetched at each step before any is read.

   A slot is 0 or the upper half of a hash and, below, 1 + the position in the list of ids. Their
   number is a power of two; a slot that is taken leads to the next. */

#if defined(__GNUC__)
#define PREFETCH(place) __builtin_prefetch(place)
#else
#define PREFETCH(place) (void)(place)
#endif

#define BATCH 64

static uint64_t mixed(Py_hash_t hash) { return (uint64_t)hash * 0x9E3779B97F4A7C15u; }
static uint64_t slot_of(uint64_t hash, size n) { return (hash & 0xFFFFFFFF00000000u) | (uint64_t)(n + 1); }
static size place_of(uint64_t hash, size n_slots) { return (size)(hash >> 20 & (uint64_t)(n_slots - 1)); }

static uint64_t *slots_of(PyObject *given, Py_buffer *buffer, size *n_slots, int flags)
{
    if (PyObject_GetBuffer(given, buffer, flags) < 0)
        return NULL;
    *n_slots = buffer->len / 8;
    if (*n_slots && !(*n_slots & (*n_slots - 1)))
        return buffer->buf;
    PyErr_SetString(PyExc_ValueError, "the number of slots must be a power of two");
    PyBuffer_Release(buffer);
    return NULL;
}

/* insert(ids, first, slots): make the ids from `first` on known, but None; they are different */
static PyObject *insert(PyObject *self, PyObject *args)
{
    PyObject *ids, *given;
    size first, n_slots;
    Py_buffer buffer;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!nO", &PyList_Type, &ids, &first, &given))
        return NULL;
    uint64_t *slots = slots_of(given, &buffer, &n_slots, PyBUF_WRITABLE);
    if (!slots)
        return NULL;
    size n_ids = PyList_Size(ids);
    int done = n_ids < n_slots;
    if (!done)
        PyErr_SetString(PyExc_ValueError, "there are fewer slots than ids");
    for (size n = first; done && n < n_ids; n++) {
        PyObject *id = PyList_GetItem(ids, n);
        if (id == Py_None)
            continue;
        Py_hash_t hash = PyObject_Hash(id);
        done = hash != -1;
        size at = place_of(mixed(hash), n_slots);
        while (done && slots[at])
            at = (at + 1) & (n_slots - 1);
        if (done)
            slots[at] = slot_of(mixed(hash), n);
    }
    PyBuffer_Release(&buffer);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

/* find(cells, ids, slots, index) → whether all cells are among the ids; index (B,) is written */
static PyObject *find(PyObject *self, PyObject *args)
{
    PyObject *cells, *ids, *given, *written;
    Py_buffer slot_buffer, buffer;
    size n_slots;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!O!OO", &PyList_Type, &cells, &PyList_Type, &ids, &given, &written))
        return NULL;
    size n = PyList_Size(cells), n_ids = PyList_Size(ids);
    uint64_t *slots = slots_of(given, &slot_buffer, &n_slots, PyBUF_SIMPLE);
    if (!slots)
        return NULL;
    int32_t *index = int32_of(written, &buffer, n, PyBUF_WRITABLE);
    if (!index) {
        PyBuffer_Release(&slot_buffer);
        return NULL;
    }
    int all = 1, failed = 0;
    for (size start = 0; all && !failed && start < n; start += BATCH) {
        size end = start + BATCH < n ? start + BATCH : n;
        uint64_t hashes[BATCH];
        size places[BATCH];
        for (size row = start; !failed && row < end; row++) {
            Py_hash_t hash = PyObject_Hash(PyList_GetItem(cells, row));
            failed = hash == -1;
            hashes[row - start] = mixed(hash);
            places[row - start] = place_of(mixed(hash), n_slots);
            PREFETCH(slots + places[row - start]);
        }
        for (size row = start; !failed && row < end; row++) { /* where the first slot leads */
            size place = (size)(slots[places[row - start]] & 0xFFFFFFFFu) - 1;
            if (place >= 0 && place < n_ids) {
                const char *id = (const char *)PyList_GetItem(ids, place);
                PREFETCH(id);
                PREFETCH(id + 48); /* the text of a str */
            }
        }
        for (size row = start; all && !failed && row < end; row++) {
            PyObject *cell = Py_NewRef(PyList_GetItem(cells, row)); /* comparing runs its own code */
            uint64_t hash = hashes[row - start];
            size at = places[row - start];
            all = 0;
            for (; !all && !failed && slots[at]; at = (at + 1) & (n_slots - 1)) {
                size place = (size)(slots[at] & 0xFFFFFFFFu) - 1;
                if (slots[at] != slot_of(hash, place) || place >= PyList_Size(ids))
                    continue;
                PyObject *id = Py_NewRef(PyList_GetItem(ids, place));
                int equal = id == cell ? 1 : PyObject_RichCompareBool(id, cell, Py_EQ);
                Py_DECREF(id);
                failed = equal < 0;
                all = equal > 0;
                index[row] = (int32_t)place;
            }
            Py_DECREF(cell);
        }
    }
    PyBuffer_Release(&buffer);
    PyBuffer_Release(&slot_buffer);
    return failed ? NULL : PyBool_FromLong(all);
}

/* is_text(cells) → whether each is a str whose first character is printable ASCII and no blank.
   Others may be text too: that takes a closer look. */
static PyObject *is_text(PyObject *self, PyObject *cells)
{
    (void)self;
    if (!PyList_Check(cells)) {
        PyErr_SetString(PyExc_TypeError, "a list was expected");
        return NULL;
    }
    size n = PyList_Size(cells);
    for (size row = 0; row < n; row++) {
        PyObject *cell = PyList_GetItem(cells, row);
        if (!PyUnicode_CheckExact(cell) || !PyUnicode_GetLength(cell))
            Py_RETURN_FALSE;
        Py_UCS4 first = PyUnicode_ReadChar(cell, 0);
        if (first <= ' ' || first > '~')
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

typedef struct {
    int32_t worker, label, row;
} Row;

static int compare(const void *a, const void *b)
{
    const Row *one = a, *other = b;
    if (one->worker != other->worker)
        return one->worker < other->worker ? -1 : 1;
    if (one->label != other->label)
        return one->label < other->label ? -1 : 1;
    return one->row < other->row ? -1 : one->row > other->row;
}

static void sort_rows(Row *rows, size n)
{
    if (n > MAX_INSERTED) {
        qsort(rows, (size_t)n, sizeof *rows, compare);
        return;
    }
    for (size i = 1; i < n; i++) {
        Row moved = rows[i];
        size j = i;
        for (; j && compare(&rows[j - 1], &moved) > 0; j--)
            rows[j] = rows[j - 1];
        rows[j] = moved;
    }
}

/* Rows in canonical order: by item, then worker, label and row. `ends` has room for N + 1.
   Returns whether a worker has several rows of one item. */
static int order_rows(const int32_t *const *from, int32_t *const *to, size B, size N, size *ends,
                      Row *rows)
{
    const int32_t *item = from[0];
    int repeats = 0;
    memset(ends, 0, sizeof *ends * (size_t)(N + 1));
    for (size b = 0; b < B; b++)
        ends[item[b] + 1]++;
    for (size i = 0; i < N; i++)
        ends[i + 1] += ends[i];
    for (size b = 0; b < B; b++)
        rows[ends[item[b]]++] = (Row){from[1][b], from[2][b], (int32_t)b};
    for (size i = 0, b = 0; i < N; i++) { /* an item's rows now end where they began to be put */
        sort_rows(rows + b, ends[i] - b);
        for (size first = b; b < ends[i]; b++) {
            to[0][b] = (int32_t)i;
            to[1][b] = rows[b].worker;
            to[2][b] = rows[b].label;
            to[3][b] = rows[b].row;
            repeats |= b > first && rows[b].worker == rows[b - 1].worker;
        }
    }
    return repeats;
}

/* The distinct workers, ascending, and the position of each row's worker among them. Radix sort by
   bytes; room: (2, B) rows. Returns P. */
static size number_workers(const int32_t *worker, int32_t *local, int32_t *workers, size B, Row *room)
{
    Row *from = room, *to = room + B;
    int32_t highest = 0, last = -1;
    for (size b = 0; b < B; b++) {
        from[b] = (Row){worker[b], 0, (int32_t)b};
        highest = worker[b] > highest ? worker[b] : highest;
    }
    for (int shift = 0; shift < 32 && highest >> shift; shift += 8) {
        size place[257] = {0};
        for (size b = 0; b < B; b++)
            place[(from[b].worker >> shift & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++)
            place[digit + 1] += place[digit];
        for (size b = 0; b < B; b++)
            to[place[from[b].worker >> shift & 255]++] = from[b];
        Row *swapped = from;
        from = to;
        to = swapped;
    }
    size P = 0;
    for (size b = 0; b < B; b++) {
        if (from[b].worker != last)
            workers[P++] = last = from[b].worker;
        local[from[b].row] = (int32_t)(P - 1);
    }
    return P;
}

/* sort(N, (item, worker, label), (item, worker, label, row, local worker, workers)) → P, repeats

   The first three are given, (B,) each. The rest are written: the same in canonical order, the row
   each was, its worker's position among the distinct ones, and those, of which P are there. */
static PyObject *sort(PyObject *self, PyObject *args)
{
    size N, B = -1, P = 0;
    PyObject *given, *made;
    Py_buffer buffers[9];
    int32_t *columns[9];
    int n = 0, done = 1, repeats = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "nO!O!", &N, &PyTuple_Type, &given, &PyTuple_Type, &made))
        return NULL;
    if (PyTuple_Size(given) != 3 || PyTuple_Size(made) != 6) {
        PyErr_SetString(PyExc_ValueError, "three arrays and six to write to were expected");
        return NULL;
    }
    for (; done && n < 9; n += done) {
        PyObject *column = n < 3 ? PyTuple_GetItem(given, n) : PyTuple_GetItem(made, n - 3);
        columns[n] = int32_of(column, &buffers[n], B, n < 3 ? PyBUF_SIMPLE : PyBUF_WRITABLE);
        done = columns[n] != NULL;
        B = done && !n ? buffers[0].len / 4 : B;
    }
    for (size b = 0; done && b < B; b++)
        if (columns[0][b] < 0 || columns[0][b] >= N || columns[1][b] < 0) {
            PyErr_SetString(PyExc_ValueError, "an item or a worker is not among those counted");
            done = 0;
        }
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        Row *room = malloc(sizeof *room * (size_t)(2 * B + 1));
        size *ends = malloc(sizeof *ends * (size_t)(N + 1));
        if ((done = room && ends)) {
            repeats = order_rows((const int32_t *const *)columns, columns + 3, B, N, ends, room);
            P = number_workers(columns[4], columns[7], columns[8], B, room);
        }
        free(room);
        free(ends);
        Py_END_ALLOW_THREADS
        if (!done)
            PyErr_NoMemory();
    }
    while (n--)
        PyBuffer_Release(&buffers[n]);
    return done ? Py_BuildValue("nN", P, PyBool_FromLong(repeats)) : NULL;
}

/* add_votes((item, label), weight, C, votes, totals): the weight of each item's labels by class,
   (N, C), and in all, (N,), is added to what is there, row by row. With C = 0 only the latter. */
static PyObject *add_votes(PyObject *self, PyObject *args)
{
    PyObject *given;
    Py_buffer weights, by_class, by_item, buffers[2];
    int32_t *columns[2];
    size C;
    int n = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!y*nw*w*", &PyTuple_Type, &given, &weights, &C, &by_class, &by_item))
        return NULL;
    size B = weights.len / 4, N = by_item.len / 8;
    const float *weight = weights.buf;
    double *votes = by_class.buf, *totals = by_item.buf;
    int done = PyTuple_Size(given) == 2 && C >= 0 && by_class.len == 8 * N * C;
    for (; done && n < 2; n += done) {
        columns[n] = int32_of(PyTuple_GetItem(given, n), &buffers[n], B, PyBUF_SIMPLE);
        done = columns[n] != NULL;
    }
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        for (size b = 0; done && b < B; b++) {
            size i = columns[0][b], c = columns[1][b];
            if (!(done = i >= 0 && i < N && (!C || (c >= 0 && c < C))))
                break;
            totals[i] += weight[b];
            if (C)
                votes[i * C + c] += weight[b];
        }
        Py_END_ALLOW_THREADS
    }
    if (!done && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "an item or a class is not among those counted");
    while (n--)
        PyBuffer_Release(&buffers[n]);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&by_class);
    PyBuffer_Release(&by_item);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef functions[] = {
    {"add_votes", add_votes, METH_VARARGS, "Add up the weight of labels by item and class."},
    {"encode", encode, METH_VARARGS, "Number a list of cells by first appearance."},
    {"look_up", look_up, METH_VARARGS, "Number a list of cells by a dict."},
    {"insert", insert, METH_VARARGS, "Put ids into a hash table."},
    {"find", find, METH_VARARGS, "Number a list of cells by a hash table."},
    {"is_text", is_text, METH_O, "Whether all cells are surely text that is not blank."},
    {"sort", sort, METH_VARARGS, "Put rows into canonical order and number their workers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rows", "Rows of labels in C.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void) { return PyModule_Create(&module); }
