/* Tracks in C: what a chunk adds to the history of each worker.

   The same as `count_in_numpy` of drift.py, which is used where nothing was compiled;
   tests/learn/analysis/test_drift.py holds the two together. B labels, P workers. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef Py_ssize_t size;

#define BINS 16
#define TINY 1e-30

enum { LABELS, AGREED, SQUARES, CROWD, CHUNK, WIDTH }; /* what stands in a bin */
typedef float Bin[WIDTH];

/* Adds a bin. Where none is free, the adjacent pair becomes one that is the smallest beside what
   came after it; the newest bin has nothing after it. */
static void extend(Bin *track, const Bin newest)
{
    size used = 0, pair = 0;
    for (size n = 0; n < BINS; n++)
        used += track[n][CHUNK] != 0;
    if (used < BINS) {
        memcpy(track[used], newest, sizeof(Bin));
        return;
    }
    double so_far[BINS + 1], total = 0, least = 0;
    for (size n = 0; n <= BINS; n++)
        so_far[n] = total += n < BINS ? track[n][LABELS] : newest[LABELS];
    for (size n = 0; n < BINS - 1; n++) {
        double joint = (double)track[n][LABELS] + track[n + 1][LABELS];
        double after = total - so_far[n + 1], ratio = joint / (after > TINY ? after : TINY);
        if (n == 0 || ratio < least) {
            least = ratio;
            pair = n;
        }
    }
    for (int column = LABELS; column < CHUNK; column++)
        track[pair + 1][column] += track[pair][column];
    memmove(track[pair], track[pair + 1], sizeof(Bin) * (size_t)(BINS - 1 - pair));
    memcpy(track[BINS - 1], newest, sizeof(Bin));
}

/* count(chunk, worker, agreement, agrees, labels, agreed, tracks)

   Given are the chunk's number and, of each label, its worker (B,) int32, how far it agrees with
   the others (B,) float64, and whether it is the consensus (B,) bool. Written are how many labels
   each worker has, (P,) int64, and how many agreed; tracks (P, BINS, WIDTH) float32 are extended. */
static PyObject *count(PyObject *self, PyObject *args)
{
    double number, all_own = 0;
    int64_t all = 0;
    Py_buffer given[6];
    (void)self;
    if (!PyArg_ParseTuple(args, "dy*y*y*w*w*w*", &number, &given[0], &given[1], &given[2],
                          &given[3], &given[4], &given[5]))
        return NULL;
    const int32_t *worker = given[0].buf;
    const double *agreement = given[1].buf;
    const char *agrees = given[2].buf;
    int64_t *labels = given[3].buf, *agreed = given[4].buf;
    Bin *tracks = given[5].buf;
    size B = given[2].len, P = given[3].len / 8;
    int fits = given[0].len == 4 * B && given[1].len == 8 * B && given[4].len == 8 * P &&
               given[5].len == P * BINS * (size)sizeof(Bin);
    for (size b = 0; fits && b < B; b++)
        fits = worker[b] >= 0 && worker[b] < P;
    double *own = fits ? calloc((size_t)(2 * P + 1), sizeof(double)) : NULL, *squares = own + P;
    if (own) {
        memset(labels, 0, sizeof(int64_t) * (size_t)P);
        memset(agreed, 0, sizeof(int64_t) * (size_t)P);
        for (size b = 0; b < B; b++) {
            size k = worker[b];
            labels[k]++;
            agreed[k] += agrees[b];
            own[k] += agreement[b];
            squares[k] += agreement[b] * agreement[b];
        }
        for (size k = 0; k < P; k++) {
            all += labels[k];
            all_own += own[k];
        }
        for (size k = 0; k < P; k++) {
            if (!labels[k])
                continue;
            Bin *track = tracks + k * BINS, newest;
            int64_t others = all - labels[k];
            newest[LABELS] = (float)labels[k];
            newest[AGREED] = (float)own[k];
            newest[SQUARES] = (float)squares[k];
            /* as far as their labels would agree if they were like the others' */
            newest[CROWD] = (float)(others ? (double)labels[k] * ((all_own - own[k]) / (double)others)
                                           : own[k]);
            newest[CHUNK] = (float)number; /* one that failed may come late */
            for (size n = 0; n < BINS; n++)
                newest[CHUNK] = track[n][CHUNK] > newest[CHUNK] ? track[n][CHUNK] : newest[CHUNK];
            extend(track, newest);
        }
        free(own);
    }
    for (int n = 0; n < 6; n++)
        PyBuffer_Release(&given[n]);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "the arrays are not of the sizes of one another, or a "
                        "worker is not among those counted");
    else if (!own)
        PyErr_NoMemory();
    if (!own)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"count", count, METH_VARARGS, "Count a chunk's labels by worker, and extend the tracks."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_tracks", "Tracks in C.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__tracks(void) { return PyModule_Create(&module); }
