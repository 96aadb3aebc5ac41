/* The solver of counts.py in C: one call per chunk and worker model, whatever their sizes.

   The formulas are those of hierarchical.py, worker_models.py and dependence.py, which say what
   they mean; tests/learn/bila/test_solver.py holds the two together. Everything is in float64.

   A worker's counts come and go as N[c][z]. Inside they are transposed, N[z][c]: what a label z
   says of all classes c is then one run of memory. K workers, N items, B labels sorted by item,
   C classes; a cell is a pair (worker, label) that occurs in the chunk. */

#include "_kernel.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* glibc chooses the copy of a function for the processor it runs on */
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12
#define VECTORISED __attribute__((optimize("O3"), target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif

/* A loop over few classes is fast only where their number is known: functions that are INLINED take
   it as an argument, and BY_CLASSES calls them with a constant for each small number. */
#if defined(__GNUC__)
#define INLINED static inline __attribute__((always_inline))
#else
#define INLINED static inline
#endif

#define BY_CLASSES(C, CALL)        \
    switch (C) {                   \
    case 2: { CALL(2); break; }    \
    case 3: { CALL(3); break; }    \
    case 4: { CALL(4); break; }    \
    case 5: { CALL(5); break; }    \
    default: { CALL(C); }          \
    }

#define CLARITY 3.0          /* on a clear item labels follow m^3, normalised */
#define CLEAR_SHARE 0.2      /* the share of such items */
#define DAMPING 1e-5         /* relative enlargement of the Hessian's diagonal */
#define STEP_TOLERANCE 1e-12 /* a worker is solved when no number of theta moves further */
#define MAX_STEPS 1000

/* ── exp and log of many numbers ────────────────────────────────────────────────────────── */
/* Polynomials without a branch, so that a compiler makes vector code of a loop over them; within
   4e-16 of the exact value, relative, for arguments from -700 to 700 and for normal numbers. */

INLINED double as_double(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
INLINED uint64_t as_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

INLINED double fast_exp(double x)
{
    const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    double held = x < -708.0 ? -708.0 : x > 709.0 ? 709.0 : x;
    double rounded = held * 1.4426950408889634 + shift;
    uint64_t k = as_bits(rounded) - as_bits(shift);
    double n = rounded - shift;
    double r = (held - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    /* Taylor to r^13, |r| <= ln 2 / 2 */
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    double result = p * as_double((k + 1023) << 52);
    return x < -708.0 ? 0.0 : result; /* what is that improbable is impossible */
}

INLINED double fast_log(double x)
{
    uint64_t bits = as_bits(x);
    /* x = 2^k m, sqrt(1/2) <= m < sqrt(2) */
    uint64_t moved = bits - 0x3fe6a09e667f3bcdULL;
    uint64_t k = moved & 0xfff0000000000000ULL;
    double m = as_double(bits - k);
    /* the exponent as a double: its bits under those of 1.5 * 2^52; k may be negative */
    uint64_t biased = (moved >> 52) ^ 0x800; /* 12 bits, two's complement, biased by 2048 */
    double n = as_double(biased | 0x4338000000000000ULL) - 6755399441055744.0 - 2048.0;
    /* log m = 2 atanh(f), f = (m - 1)/(m + 1), |f| < 0.172 */
    double f = (m - 1.0) / (m + 1.0), s = f * f;
    double p = 1.0 / 21.0;
    p = p * s + 1.0 / 19.0;
    p = p * s + 1.0 / 17.0;
    p = p * s + 1.0 / 15.0;
    p = p * s + 1.0 / 13.0;
    p = p * s + 1.0 / 11.0;
    p = p * s + 1.0 / 9.0;
    p = p * s + 1.0 / 7.0;
    p = p * s + 1.0 / 5.0;
    p = p * s + 1.0 / 3.0;
    double tail = 2.0 * f * s * p;
    double result =
        n * 6.93147180369123816490e-01 + (2.0 * f + (tail + n * 1.90821492927058770002e-10));
    return x > 0 && x <= DBL_MAX ? result : x == 0 ? -INFINITY : x > 0 ? x : NAN;
}

VECTORISED
static void exp_all(const double *x, double *out, size n)
{
    for (size i = 0; i < n; i++)
        out[i] = fast_exp(x[i]);
}

VECTORISED
static void log_all(double *x, size n)
{
    for (size i = 0; i < n; i++)
        x[i] = fast_log(x[i]);
}

/* ── what all workers share ─────────────────────────────────────────────────────────────── */

/* pi = mix w + (1 - mix)/C,  w ~ sqrt(u v),  u ~ f + 1,  v ~ nu + 1 */
static void log_class_prior(const double *shares, const double *inferred, size C, const Recipe *r,
                            double *out)
{
    double total = 0, said = 0, found = 0;
    for (size c = 0; c < C; c++) {
        said += shares[c] + r->class_strength;
        found += inferred[c] + r->class_strength;
    }
    for (size c = 0; c < C; c++) {
        double u = shares[c] + r->class_strength, v = inferred[c] + r->class_strength;
        if (r->class_prior == BLENDED)
            out[c] = sqrt(u / said * v / found);
        else
            out[c] = r->class_prior == RUNNING ? u : 1.0;
        total += out[c];
    }
    for (size c = 0; c < C; c++)
        out[c] = fast_log(r->prior_mix * out[c] / total + (1 - r->prior_mix) / (double)C);
}

/* G of P, both as [z][c]: G = (P + g0 S), each row c divided by its sum */
static void crowd_matrix(const double *pooled, size C, const Recipe *r, double *crowd)
{
    double prior = r->accuracy_strength * r->crowd_accuracy;
    double hits = prior, misses = r->accuracy_strength - prior;
    for (size z = 0; z < C; z++)
        for (size c = 0; c < C; c++)
            *(z == c ? &hits : &misses) += pooled[z * C + c];
    double right = r->crowd_strength * hits / (hits + misses);
    double wrong = r->crowd_strength * misses / (double)(C > 1 ? C - 1 : 1) / (hits + misses);
    for (size c = 0; c < C; c++) {
        double total = 0;
        for (size z = 0; z < C; z++)
            total += crowd[z * C + c] = pooled[z * C + c] + (z == c ? right : wrong);
        for (size z = 0; z < C; z++)
            crowd[z * C + c] /= total;
    }
}

/* a/(1 - a) of P as (2, C), how much oftener the crowd is right than wrong */
static double crowd_odds(const double *pooled, size C, const Recipe *r)
{
    double hits = 0, labels = 0, prior = r->accuracy_strength * r->crowd_accuracy;
    for (size c = 0; c < C; c++) {
        hits += pooled[c];
        labels += pooled[C + c];
    }
    return (hits + prior) / (labels - hits + r->accuracy_strength - prior);
}

/* ── workers of the hierarchical model, LANES at a time ─────────────────────────────────── */
/* The same numbers of LANES workers lie side by side in a vector, of GCC and Clang, however few
   classes there are. Where fewer workers are left, the last one fills the lanes. */

#define LANES 8
#define EACH for (int l = 0; l < LANES; l++)
typedef double Lanes __attribute__((vector_size(LANES * sizeof(double))));

typedef struct {
    size worker[LANES];
    size n;        /* how many are not repeats of the last */
    Lanes *m;      /* (C, C) as [z][c] */
    Lanes *totals; /* (C,) n[c] = sum over z of N[z][c] */
    Lanes *room;   /* (C,) */
    Lanes *move;   /* (D,) */
    Lanes *hessian;/* (D, D), where Newton's step is taken */
    void *memory;
} Block;

static int start_block(Block *block, size C, int newton)
{
    size D = C + 1, n = C * C + 2 * C + D + (newton ? D * D : 0);
    block->memory = malloc(sizeof(Lanes) * (size_t)(n + 1));
    /* where a line of memory begins: a vector over two lines takes twice as long */
    block->m = (Lanes *)(((uintptr_t)block->memory + sizeof(Lanes) - 1) & ~(sizeof(Lanes) - 1));
    block->totals = block->m + C * C;
    block->room = block->totals + C;
    block->move = block->room + C;
    block->hessian = block->move + D;
    return block->memory != NULL;
}

static void choose_workers(Block *block, size first, size n_workers)
{
    block->n = n_workers - first < LANES ? n_workers - first : LANES;
    EACH block->worker[l] = first + (l < block->n ? l : block->n - 1);
}

/* m: G[c, z] e^{b_z} (e^a where c = z) / R[c]; the factors (K, D) are e^theta */
VECTORISED
static void find_matrices(Block *block, const double *crowd, const double *factors, size C)
{
    size D = C + 1;
    Lanes *restrict rows = block->room, *restrict matrix = block->m, bias, tilt;
    EACH tilt[l] = factors[block->worker[l] * D];
    for (size c = 0; c < C; c++)
        rows[c] = (Lanes){0};
    for (size z = 0; z < C; z++) {
        EACH bias[l] = factors[block->worker[l] * D + 1 + z];
        Lanes *restrict m = matrix + z * C;
        for (size c = 0; c < C; c++)
            m[c] = crowd[z * C + c] * bias;
        m[z] *= tilt;
        for (size c = 0; c < C; c++)
            rows[c] += m[c];
    }
    for (size c = 0; c < C; c++)
        rows[c] = 1 / rows[c];
    for (size z = 0; z < C; z++)
        for (size c = 0; c < C; c++)
            matrix[z * C + c] *= rows[c];
}

VECTORISED
static void find_totals(Block *block, const double *counts, size C)
{
    Lanes *restrict totals = block->totals;
    const double *restrict own[LANES];
    EACH own[l] = counts + block->worker[l] * C * C;
    for (size c = 0; c < C; c++) {
        Lanes total = {0}, counted;
        for (size z = 0; z < C; z++) {
            EACH counted[l] = own[l][z * C + c];
            total += counted;
        }
        totals[c] = total;
    }
}

/* Gauss: symmetric positive definite systems (D, D); the solutions replace v */
INLINED void solve(Lanes *a, Lanes *v, size D)
{
    for (size i = 0; i < D; i++) {
        Lanes pivot = 1 / a[i * D + i];
        for (size j = i + 1; j < D; j++) {
            Lanes factor = a[j * D + i] * pivot;
            for (size k = i + 1; k < D; k++)
                a[j * D + k] -= factor * a[i * D + k];
            v[j] -= factor * v[i];
        }
    }
    for (size i = D; i-- > 0;) {
        Lanes rest = v[i];
        for (size j = i + 1; j < D; j++)
            rest -= a[i * D + j] * v[j];
        v[i] = rest / a[i * D + i];
    }
}

INLINED double clipped(double x, double limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* One curvature step of these workers at their m, with totals; returns how far a number of theta
   (K, D) moved. */
VECTORISED
static double step_block(Block *block, double *theta, const double *counts, size C, const Recipe *r)
{
    size D = C + 1, shared = C * C;
    int newton = (double)C <= r->newton_classes;
    double tilt_precision = 1 / (r->tilt_scale * r->tilt_scale);
    double bias_precision = 1 / (r->bias_scale * r->bias_scale), furthest = 0;
    const size *k = block->worker;
    Lanes *restrict n = block->totals, *restrict m = block->m;
    Lanes *restrict move = block->move, *restrict hessian = block->hessian;
    Lanes own, slope, curve = {0}, mean = {0};
    /* g_a = sum_c E[c, c] - a/s^2,  g_b[z] = sum_c E[c, z] - b_z/s^2,  E = N - n m */
    EACH slope[l] = -theta[k[l] * D] * tilt_precision;
    curve += tilt_precision;
    for (size c = 0; c < C; c++) {
        Lanes right = m[c * C + c];
        EACH own[l] = counts[k[l] * shared + c * C + c];
        slope += own - n[c] * right;
        curve += n[c] * right * (1 - right);
    }
    move[0] = slope;
    for (size z = 0; z < C; z++) {
        Lanes error, diagonal = {0};
        EACH error[l] = -theta[k[l] * D + 1 + z] * bias_precision;
        diagonal += bias_precision;
        for (size c = 0; c < C; c++) {
            Lanes expected = n[c] * m[z * C + c];
            EACH own[l] = counts[k[l] * shared + z * C + c];
            error += own - expected;
            diagonal += expected * (1 - m[z * C + c]);
        }
        move[1 + z] = newton ? error : error / (2 * diagonal);
    }
    if (newton) {
        hessian[0] = curve * (1 + DAMPING);
        for (size z = 0; z < C; z++) {
            Lanes both = n[z] * m[z * C + z], column = {0};
            column += bias_precision;
            for (size c = 0; c < C; c++) {
                both -= n[c] * m[c * C + c] * m[z * C + c];
                column += n[c] * m[z * C + c];
            }
            hessian[1 + z] = hessian[(1 + z) * D] = both;
            for (size y = 0; y <= z; y++) {
                Lanes cross = {0};
                for (size c = 0; c < C; c++)
                    cross += n[c] * m[z * C + c] * m[y * C + c];
                if (y == z)
                    cross = (cross - column) * (1 + DAMPING);
                hessian[(1 + z) * D + 1 + y] = hessian[(1 + y) * D + 1 + z] = -cross;
            }
        }
        solve(hessian, move, D);
    } else {
        move[0] /= 2 * curve;
    }
    for (size d = 0; d < D; d++)
        EACH move[d][l] = theta[k[l] * D + d] + clipped(move[d][l], r->step_limit);
    /* the same number added to all b changes no m, and the prior wants their sum to be 0 */
    for (size z = 0; z < C; z++)
        mean += move[1 + z] / (double)C;
    for (size d = 0; d < D; d++)
        EACH {
            double reached = d ? move[d][l] - mean[l] : move[d][l];
            double far = fabs(reached - theta[k[l] * D + d]);
            furthest = far > furthest ? far : furthest;
            move[d][l] = reached;
        }
    for (size d = 0; d < D; d++)
        for (size l = 0; l < block->n; l++)
            theta[k[l] * D + d] = move[d][l];
    return furthest;
}

/* a <- a + clip(g/H);  g = h - n r - a/s^2,  H = n r (1 - r) + 1/s^2 */
INLINED double one_coin_step(double *theta, double tilt, const double *counts, double odds, size C,
                             const Recipe *r)
{
    double hits = 0, labels = 0, precision = 1 / (r->tilt_scale * r->tilt_scale);
    for (size c = 0; c < C; c++) {
        hits += counts[c];
        labels += counts[C + c];
    }
    double factor = odds * tilt, right = factor / (1 + factor);
    double slope = hits - labels * right - theta[0] * precision;
    double move = clipped(slope / (labels * right * (1 - right) + precision), r->step_limit);
    theta[0] += move;
    return fabs(move);
}

/* ── everything about a chunk that one call needs ───────────────────────────────────────── */

typedef struct {
    const Batch *batch;
    const Recipe *recipe;
    int kind;
    size stride;        /* numbers of a worker's counts: C*C or 2*C */
    size params;        /* numbers of theta: C + 1 or 1 */
    size n_cells;
    int32_t *cell;      /* (B,) */
    int32_t *cell_of;   /* (n_cells,) worker * C + label, ascending */
    double *table;      /* (n_cells, C) log m[c, l]; of the one-coin model (K, 2): right, wrong */
    double *counts;     /* (K, stride), inside */
    double *theta;      /* (K, params) */
    double *crowd;      /* (C, C) as [z][c], or the odds */
    double *factors;    /* (K, params) e^theta */
    double *scratch;    /* (C,) */
    Block block;        /* of the hierarchical model */
    void *memory;
} Work;

static int start_work(Work *w, const Batch *batch, const Recipe *recipe, int kind)
{
    size B = batch->n_labels, K = batch->n_workers, C = batch->n_classes;
    memset(w, 0, sizeof *w);
    w->batch = batch;
    w->recipe = recipe;
    w->kind = kind;
    w->stride = kind == HIERARCHICAL ? C * C : 2 * C;
    w->params = kind == HIERARCHICAL ? C + 1 : 1;
    w->crowd = malloc(sizeof(double) * (size_t)(kind == HIERARCHICAL ? C * C : 1));
    w->scratch = malloc(sizeof(double) * (size_t)(C + 1));
    w->factors = malloc(sizeof(double) * (size_t)(K * w->params + 1));
    w->cell = malloc(sizeof(int32_t) * (size_t)(B + 1));
    if (kind == ONE_COIN) {
        w->table = malloc(sizeof(double) * (size_t)(2 * K + 1));
        return w->crowd && w->scratch && w->factors && w->cell && w->table;
    }
    if (!start_block(&w->block, C, (double)C <= recipe->newton_classes))
        return 0;
    /* number the cells that occur */
    int32_t *number = calloc((size_t)(K * C + 1), sizeof(int32_t));
    if (!number)
        return 0;
    for (size b = 0; b < B; b++)
        number[batch->worker[b] * C + batch->label[b]] = 1;
    size n_cells = 0;
    for (size place = 0; place < K * C; place++)
        if (number[place])
            number[place] = (int32_t)++n_cells;
    w->cell_of = malloc(sizeof(int32_t) * (size_t)(n_cells + 1));
    w->table = malloc(sizeof(double) * (size_t)(n_cells * C + 1));
    if (w->cell_of && w->cell)
        for (size place = 0; place < K * C; place++)
            if (number[place])
                w->cell_of[number[place] - 1] = (int32_t)place;
    if (w->cell)
        for (size b = 0; b < B; b++)
            w->cell[b] = number[batch->worker[b] * C + batch->label[b]] - 1;
    free(number);
    w->n_cells = n_cells;
    return w->crowd && w->scratch && w->factors && w->cell && w->cell_of && w->table;
}

static void end_work(Work *w)
{
    free(w->crowd);
    free(w->scratch);
    free(w->factors);
    free(w->block.memory);
    free(w->cell);
    free(w->cell_of);
    free(w->table);
    free(w->memory);
}

/* [c][z] <-> [z][c] of K square matrices */
static void transpose(const double *from, double *to, size K, size C)
{
    for (size k = 0; k < K; k++)
        for (size c = 0; c < C; c++)
            for (size z = 0; z < C; z++)
                to[k * C * C + z * C + c] = from[k * C * C + c * C + z];
}

/* n[c] = sum over z of N[z][c] */
INLINED void totals_of(const double *counts, size C, double *totals)
{
    for (size c = 0; c < C; c++)
        totals[c] = 0;
    for (size z = 0; z < C; z++)
        for (size c = 0; c < C; c++)
            totals[c] += counts[z * C + c];
}

/* what these workers give to P: sum_k N_k[c, z] kappa/(kappa + n_k[c]), added to `pooled` */
INLINED void add_pooled_of(const double *counts, size K, int kind, const Recipe *r, double *pooled,
                           double *weight, size C)
{
    for (size k = 0; k < K; k++) {
        const double *own = counts + k * stride_of(kind, C);
        if (kind == HIERARCHICAL)
            totals_of(own, C, weight);
        else
            memcpy(weight, own + C, sizeof(double) * (size_t)C);
        for (size c = 0; c < C; c++)
            weight[c] = r->worker_cap / (r->worker_cap + weight[c]);
        size rows = kind == HIERARCHICAL ? C : 2;
        for (size z = 0; z < rows; z++)
            for (size c = 0; c < C; c++)
                pooled[z * C + c] += own[z * C + c] * weight[c];
    }
}

VECTORISED
static void add_pooled(const double *restrict counts, size K, size C, int kind, const Recipe *r,
                       double *restrict pooled, double *restrict weight)
{
#define POOL(N)                                                        \
    if (kind == HIERARCHICAL)                                          \
        add_pooled_of(counts, K, HIERARCHICAL, r, pooled, weight, N);  \
    else                                                               \
        add_pooled_of(counts, K, ONE_COIN, r, pooled, weight, N)
    BY_CLASSES(C, POOL)
}

static void find_crowd(Work *w, const double *pooled)
{
    size C = w->batch->n_classes;
    if (w->kind == HIERARCHICAL)
        crowd_matrix(pooled, C, w->recipe, w->crowd);
    else
        w->crowd[0] = crowd_odds(pooled, C, w->recipe);
}

/* Fills the table: what labels say, by cell, or by worker. With `step`, theta moves first, and e^theta
   with it. With `extra`, also three tables of (K, C): m = P(k says c | c), sqrt(m (1 - m)) and
   log sum_z m[c, z]^3. Logarithms are taken of all workers at once. */
static void fill_one_coin(Work *w, int step, double *extra)
{
    size K = w->batch->n_workers, C = w->batch->n_classes;
    double *right = extra, *deviations = extra + K * C, *powers = extra + 2 * K * C;
    double odds = w->crowd[0], others = (double)(C > 1 ? C - 1 : 1);
    for (size k = 0; step && k < K; k++)
        one_coin_step(w->theta + k, w->factors[k], w->counts + k * w->stride, odds, C, w->recipe);
    if (step)
        exp_all(w->theta, w->factors, K);
    /* log r and log (1 - r)/(C - 1) */
    for (size k = 0; k < K; k++) {
        double factor = odds * w->factors[k], wrong = 1 / (1 + factor), rate = factor * wrong;
        double spread = wrong / others;
        w->table[2 * k] = rate;
        w->table[2 * k + 1] = spread;
        for (size c = 0; extra && c < C; c++) {
            right[k * C + c] = rate;
            deviations[k * C + c] = sqrt(rate * wrong);
            powers[k * C + c] = rate * rate * rate + others * spread * spread * spread;
        }
    }
    log_all(w->table, 2 * K);
    if (extra)
        log_all(powers, K * C);
}

static void fill_hierarchical(Work *w, int step, double *extra)
{
    size K = w->batch->n_workers, C = w->batch->n_classes, D = w->params, at = 0;
    double own = w->recipe->own_weight, *share = w->scratch;
    double *right = extra, *deviations = extra + K * C, *powers = extra + 2 * K * C;
    Block *block = &w->block;
    for (size first = 0; first < K; first += LANES) {
        choose_workers(block, first, K);
        find_matrices(block, w->crowd, w->factors, C);
        find_totals(block, w->counts, C);
        if (step) {
            step_block(block, w->theta, w->counts, C, w->recipe);
            exp_all(w->theta + first * D, w->factors + first * D, block->n * D);
            find_matrices(block, w->crowd, w->factors, C);
        }
        for (size l = 0; l < block->n; l++) {
            size k = block->worker[l];
            const double *counts = w->counts + k * w->stride;
            /* (m + w N)/(1 + w n): the mean of a row whose prior is Dirichlet(m/w) */
            for (size c = 0; c < C; c++)
                share[c] = 1 / (1 + own * block->totals[c][l]);
            for (; at < w->n_cells && w->cell_of[at] < (k + 1) * C; at++) {
                size z = w->cell_of[at] - k * C;
                double *row = w->table + at * C;
                for (size c = 0; c < C; c++)
                    row[c] = (block->m[z * C + c][l] + own * counts[z * C + c]) * share[c];
            }
            if (!extra)
                continue;
            double *sum = powers + k * C;
            for (size c = 0; c < C; c++)
                sum[c] = 0;
            for (size z = 0; z < C; z++)
                for (size c = 0; c < C; c++) {
                    double cell = (block->m[z * C + c][l] + own * counts[z * C + c]) * share[c];
                    sum[c] += cell * cell * cell;
                    if (z == c) {
                        right[k * C + c] = cell;
                        deviations[k * C + c] = sqrt(fmax(cell * (1 - cell), 0));
                    }
                }
        }
    }
    log_all(w->table, w->n_cells * C);
    if (extra)
        log_all(powers, K * C);
}

static void fill_table(Work *w, int step, double *extra)
{
    if (w->kind == HIERARCHICAL)
        fill_hierarchical(w, step, extra);
    else
        fill_one_coin(w, step, extra);
}

/* adds what a label says, times a weight, to the scores of its item */
INLINED void add_label(const Work *w, size b, double weight, double *scores, double *common, int kind,
                       size C)
{
    if (kind == HIERARCHICAL) {
        const double *row = w->table + (size)w->cell[b] * C;
        for (size c = 0; c < C; c++)
            scores[c] += weight * row[c];
    } else { /* log (1 - r)/(C - 1) for all, and the rest for the label itself */
        const double *row = w->table + 2 * (size)w->batch->worker[b];
        *common += weight * row[1];
        scores[w->batch->label[b]] += weight * (row[0] - row[1]);
    }
}

INLINED void add_common(double *scores, double common, size C)
{
    for (size c = 0; c < C; c++)
        scores[c] += common;
}

INLINED void count_label(const Work *w, size b, const double *probs, double *counts, int kind, size C)
{
    double weight = w->batch->counted_weight[b];
    if (weight == 0)
        return;
    double *own = counts + (size)w->batch->worker[b] * w->stride;
    size label = w->batch->label[b];
    if (kind == HIERARCHICAL) {
        own += label * C;
    } else {
        own[label] += weight * probs[label];
        own += C;
    }
    for (size c = 0; c < C; c++)
        own[c] += weight * probs[c];
}

#define BLOCK 64 /* items at a time, so that their exponentials are taken at once */

/* q of a block of items, in place of their scores; log sum_c exp(score) goes to `reached` */
INLINED void normalise_block(double *scores, double *reached, const int32_t *gold, size items, size C)
{
    double total[BLOCK];
    for (size i = 0; i < items; i++) {
        double *row = scores + i * C, high = row[0];
        for (size c = 1; c < C; c++)
            high = row[c] > high ? row[c] : high;
        reached[i] = gold && gold[i] != MISSING ? row[gold[i]] : high;
        for (size c = 0; c < C; c++)
            row[c] -= high;
    }
    exp_all(scores, scores, items * C);
    for (size i = 0; i < items; i++) {
        double *row = scores + i * C, sum = 0;
        for (size c = 0; c < C; c++)
            sum += row[c];
        double share = 1 / sum;
        for (size c = 0; c < C; c++)
            row[c] *= share;
        total[i] = sum;
        if (gold && gold[i] != MISSING) {
            total[i] = 1;
            for (size c = 0; c < C; c++)
                row[c] = c == gold[i];
        }
    }
    log_all(total, items);
    for (size i = 0; i < items; i++)
        reached[i] += total[i];
}

/* One round over the items: q by the table, and the counts and class counts by this q.
   Returns how far q moved; *evidence is the sum of log p(l_i). Room: BLOCK C. */
INLINED double encode(const Work *w, const double *log_prior, double *probs, double *counts,
                      double *inferred, double *evidence, double *room, int kind, size C)
{
    const Batch *batch = w->batch;
    size b = 0, counted = 0;
    double moved = 0, reached[BLOCK];
    *evidence = 0;
    for (size start = 0; start < batch->n_items; start += BLOCK) {
        size items = batch->n_items - start < BLOCK ? batch->n_items - start : BLOCK;
        for (size i = 0; i < items; i++) {
            double *scores = room + i * C, common = 0;
            for (size c = 0; c < C; c++)
                scores[c] = log_prior[c];
            for (; b < batch->n_labels && batch->item[b] == start + i; b++)
                add_label(w, b, batch->weight[b], scores, &common, kind, C);
            add_common(scores, common, C);
        }
        normalise_block(room, reached, batch->gold ? batch->gold + start : NULL, items, C);
        for (size i = 0; i < items; i++) {
            double *kept = probs + (start + i) * C, part = batch->counted_item[start + i];
            *evidence += part * reached[i];
            for (size c = 0; c < C; c++) {
                /* as it is kept of open items, so that it can be taken back exactly */
                double q = (double)(float)room[i * C + c], change = fabs(q - kept[c]);
                moved = change > moved || change != change ? change : moved;
                kept[c] = q;
                inferred[c] += part * q;
            }
            for (; counted < batch->n_labels && batch->item[counted] == start + i; counted++)
                count_label(w, counted, kept, counts, kind, C);
        }
    }
    return moved;
}

VECTORISED
static double encode_items(const Work *w, const double *log_prior, double *probs, double *counts,
                           double *inferred, double *evidence, double *room)
{
    double moved;
#define ENCODE(N)                                                                               \
    moved = w->kind == HIERARCHICAL                                                             \
                ? encode(w, log_prior, probs, counts, inferred, evidence, room, HIERARCHICAL, N) \
                : encode(w, log_prior, probs, counts, inferred, evidence, room, ONE_COIN, N)
    BY_CLASSES(w->batch->n_classes, ENCODE)
    return moved;
}

/* ── what a chunk leaves unexplained ────────────────────────────────────────────────────── */

/* Adds to (7, C) or (10, C) of `dependence.sums` what labels of one item go together, by q */
INLINED void add_pairs(const Work *w, size start, size end, const double *belief,
                       const double *tables, double *sums, double *room, int several, size C)
{
    const Batch *batch = w->batch;
    size cells = batch->n_workers * C;
    const double *right = tables, *deviations = tables + cells;
    double *residual = room, *residual2 = residual + C, *spread = residual2 + C;
    double *spread2 = spread + C, *one = spread2 + C, *two = one + C;
    double *vote = two + C, *own = vote + 2 * C, *own2 = own + 2 * C;
    double labels = 0, labels2 = 0, vote_pairs = 0;
    for (size c = 0; c < C; c++)
        residual[c] = residual2[c] = spread[c] = spread2[c] = vote[c] = vote[C + c] = 0;
    for (size b = start; b < end;) {
        /* the labels of one worker on this item: one, unless there are several votes */
        size last = b + 1;
        while (several && last < end && batch->first_vote[last] == batch->first_vote[b])
            last++;
        double shares = 0, votes = 0, votes2 = 0;
        for (size c = 0; c < C; c++)
            one[c] = two[c] = own[c] = own[C + c] = own2[c] = own2[C + c] = 0;
        for (; b < last; b++) {
            const double *rate = right + (size)batch->worker[b] * C;
            const double *deviation = deviations + (size)batch->worker[b] * C;
            double weight = batch->counted_weight[b];
            double share = batch->share ? batch->share[b] : weight;
            shares += share;
            for (size c = 0; c < C; c++) {
                double surprise = (batch->label[b] == c) - rate[c];
                one[c] += surprise * share;
                two[c] += deviation[c] * share;
                if (several) {
                    double r = surprise * weight, v = deviation[c] * weight;
                    own[c] += r;
                    own[C + c] += v;
                    own2[c] += r * r;
                    own2[C + c] += v * v;
                }
            }
            votes += weight;
            votes2 += weight * weight;
        }
        labels += shares;
        labels2 += shares * shares;
        vote_pairs += votes * votes - votes2;
        for (size c = 0; c < C; c++) {
            residual[c] += one[c];
            residual2[c] += one[c] * one[c];
            spread[c] += two[c];
            spread2[c] += two[c] * two[c];
        }
        for (size c = 0; several && c < 2 * C; c++)
            vote[c] += own[c] * own[c] - own2[c];
    }
    for (size c = 0; c < C; c++) {
        sums[c] += belief[c] * (residual[c] * residual[c] - residual2[c]);
        sums[C + c] += belief[c] * (spread[c] * spread[c] - spread2[c]);
        sums[2 * C + c] += belief[c] * residual[c];
        sums[3 * C + c] += belief[c] * labels;
        sums[4 * C + c] += belief[c] * (labels * labels - labels2);
        if (several) {
            sums[7 * C + c] += belief[c] * vote[c];
            sums[8 * C + c] += belief[c] * vote[C + c];
            sums[9 * C + c] += belief[c] * vote_pairs;
        }
    }
}

/* All of `dependence.sums`, by q, the table and what goes with it. Room: (3 BLOCK + 13) C. */
INLINED void add_unexplained(const Work *w, const double *log_prior, const double *probs,
                             const double *tables, double *sums, double *room, int several,
                             int kind, size C)
{
    const Batch *batch = w->batch;
    const double *powers = tables + 2 * batch->n_workers * C;
    double *said = room, *once = said + BLOCK * C, *clear = once + BLOCK * C;
    double *belief = clear + BLOCK * C, *rest = belief + C;
    double evidence[BLOCK], plain[BLOCK], gain[BLOCK], above[BLOCK];
    size end = 0, next = 0;
    for (size start = 0; start < batch->n_items; start += BLOCK) {
        size items = batch->n_items - start < BLOCK ? batch->n_items - start : BLOCK;
        for (size i = 0; i < items; i++) {
            double common = 0, common_once = 0, *s = said + i * C, *o = once + i * C;
            double *clearly = clear + i * C;
            for (size c = 0; c < C; c++) {
                s[c] = o[c] = log_prior[c];
                clearly[c] = 0;
            }
            for (; end < batch->n_labels && batch->item[end] == start + i; end++) {
                double weight = batch->weight[end];
                const double *power = powers + (size)batch->worker[end] * C;
                add_label(w, end, weight, s, &common, kind, C);
                if (batch->share) {
                    weight = batch->share[end];
                    add_label(w, end, weight, o, &common_once, kind, C);
                }
                for (size c = 0; c < C; c++)
                    clearly[c] -= weight * power[c];
            }
            add_common(s, common, C);
            if (batch->share)
                add_common(o, common_once, C);
            /* sum_k log( m_k[c, l]^3 / sum_z m_k[c, z]^3 ) */
            for (size c = 0; c < C; c++) {
                o[c] = batch->share ? o[c] : s[c];
                clearly[c] += log_prior[c] + CLARITY * (o[c] - log_prior[c]);
            }
        }
        const int32_t *gold = batch->gold ? batch->gold + start : NULL;
        int by_share = batch->share && !several;
        normalise_block(said, evidence, gold, items, C);
        normalise_block(clear, gain, NULL, items, C);
        normalise_block(once, plain, NULL, items, C);
        /* g = log(0.8 + 0.2 e^d), d = log p(l | clear) - log p(l); e^max(d, 0) is factored out */
        for (size i = 0; i < items; i++) {
            double ratio = gain[i] - plain[i];
            above[i] = ratio > 0 ? ratio : 0;
            plain[i] = -above[i];
            gain[i] = ratio - above[i];
        }
        exp_all(plain, plain, items);
        exp_all(gain, gain, items);
        for (size i = 0; i < items; i++)
            gain[i] = (1 - CLEAR_SHARE) * plain[i] + CLEAR_SHARE * gain[i];
        log_all(gain, items);
        for (size i = 0; i < items; i++)
            gain[i] += above[i];
        for (size i = 0; i < items; i++) {
            size first = next;
            double part = batch->counted_item[start + i];
            for (size c = 0; c < C; c++) {
                double q = probs[(start + i) * C + c];
                if (by_share) /* a majority says less by its share than it knows */
                    q = gold && gold[i] != MISSING ? c == gold[i] : once[i * C + c];
                belief[c] = part * q;
                sums[5 * C + c] += belief[c] * gain[i];
                sums[6 * C + c] += belief[c] * evidence[i];
            }
            while (next < batch->n_labels && batch->item[next] == start + i)
                next++;
            add_pairs(w, first, next, belief, tables, sums, rest, several, C);
        }
    }
}

VECTORISED
static void unexplained_sums(const Work *w, const double *log_prior, const double *probs,
                             const double *tables, double *sums, double *room)
{
    int several = w->batch->first_vote != NULL;
    size n_sums = N_SUMS + (several ? N_VOTE_SUMS : 0);
    memset(sums, 0, sizeof(double) * (size_t)(n_sums * w->batch->n_classes));
#define EXPLAIN(N)                                                                          \
    if (several)                                                                            \
        add_unexplained(w, log_prior, probs, tables, sums, room, 1, w->kind, N);            \
    else if (w->kind == HIERARCHICAL)                                                       \
        add_unexplained(w, log_prior, probs, tables, sums, room, 0, HIERARCHICAL, N);       \
    else                                                                                    \
        add_unexplained(w, log_prior, probs, tables, sums, room, 0, ONE_COIN, N)
    BY_CLASSES(w->batch->n_classes, EXPLAIN)
}

/* ── a whole chunk ──────────────────────────────────────────────────────────────────────── */

/* the sums of a chunk once theta, counts, crowd and prior are settled */
static int find_unexplained(Work *w, const double *log_prior, const double *probs, double *sums)
{
    size K = w->batch->n_workers, C = w->batch->n_classes;
    double *room = malloc(sizeof(double) * (size_t)(3 * K * C + (3 * BLOCK + 16) * C));
    if (!room)
        return 0;
    fill_table(w, 0, room);
    unexplained_sums(w, log_prior, probs, room, sums, room + 3 * K * C);
    free(room);
    return 1;
}

static void score_items(const Work *w, const double *log_prior, double *scores, float *evidence);

static int fit_batch(Work *w, const double *before, const double *others, const double *class_counts,
                     const double *label_shares, const Fitted *out)
{
    const Batch *batch = w->batch;
    double *counts = out->counts, *probs = out->probs, *pooled = out->pooled;
    size K = batch->n_workers, C = batch->n_classes, shared = w->stride;
    size cells = K * shared;
    double *room = malloc(sizeof(double) * (size_t)(2 * cells + shared + (BLOCK + 4) * C + 8));
    if (!room)
        return 0;
    w->memory = room;
    double *known = room, *now = known + cells, *sum = now + cells;
    double *log_prior = sum + shared, *inferred = log_prior + C, *spare = inferred + C;
    if (w->kind == HIERARCHICAL)
        transpose(before, known, K, C);
    else
        memcpy(known, before, sizeof(double) * (size_t)cells);
    memcpy(now, known, sizeof(double) * (size_t)cells);
    memcpy(inferred, class_counts, sizeof(double) * (size_t)C);
    memset(probs, 0, sizeof(double) * (size_t)(batch->n_items * C));
    w->counts = now;
    w->theta = out->theta;
    exp_all(w->theta, w->factors, K * w->params);
    double moved = INFINITY, evidence = 0, rounds = 0, items = 0;
    while (rounds <= w->recipe->inner_steps && moved >= w->recipe->tolerance) {
        /* P' and G with N + dN, then a step of theta */
        if (w->kind == HIERARCHICAL)
            transpose(others, sum, 1, C);
        else
            memcpy(sum, others, sizeof(double) * (size_t)shared);
        add_pooled(now, K, C, w->kind, w->recipe, sum, spare);
        find_crowd(w, sum);
        fill_table(w, 1, NULL);
        /* pi with f' and nu + sum_i q_i, then q, and dN by it */
        log_class_prior(label_shares, inferred, C, w->recipe, log_prior);
        memcpy(now, known, sizeof(double) * (size_t)cells);
        memcpy(inferred, class_counts, sizeof(double) * (size_t)C);
        moved = encode_items(w, log_prior, probs, now, inferred, &evidence, spare);
        rounds++;
    }
    for (size i = 0; i < batch->n_items; i++)
        items += batch->counted_item[i];
    if (!find_unexplained(w, log_prior, probs, out->sums))
        return 0;
    /* P with these counts */
    if (w->kind == HIERARCHICAL) {
        transpose(others, sum, 1, C);
        add_pooled(now, K, C, w->kind, w->recipe, sum, spare);
        transpose(sum, pooled, 1, C);
        transpose(now, counts, K, C);
    } else {
        memcpy(pooled, others, sizeof(double) * (size_t)shared);
        add_pooled(now, K, C, w->kind, w->recipe, pooled, spare);
        memcpy(counts, now, sizeof(double) * (size_t)cells);
    }
    if (out->scores) {
        find_crowd(w, w->kind == HIERARCHICAL ? sum : pooled);
        log_class_prior(label_shares, inferred, C, w->recipe, log_prior);
        fill_table(w, 0, NULL);
        score_items(w, log_prior, out->scores, NULL);
    }
    out->numbers[0] = -evidence / fmax(items, 1);
    out->numbers[1] = rounds;
    return 1;
}

/* scores, evidence and sums of a settled model: what `score` and `unexplained` share */
static int settle(Work *w, const Settled *settled, double *log_prior)
{
    const Batch *batch = w->batch;
    size K = batch->n_workers, C = batch->n_classes, cells = K * w->stride;
    double *room = malloc(sizeof(double) * (size_t)(cells + K * w->params + w->stride + 1));
    if (!room)
        return 0;
    w->memory = room;
    w->counts = room;
    w->theta = room + cells;
    double *sum = w->theta + K * w->params;
    memcpy(w->theta, settled->theta, sizeof(double) * (size_t)(K * w->params));
    exp_all(w->theta, w->factors, K * w->params);
    if (w->kind == HIERARCHICAL) {
        transpose(settled->counts, w->counts, K, C);
        transpose(settled->pooled, sum, 1, C);
    } else {
        memcpy(w->counts, settled->counts, sizeof(double) * (size_t)cells);
        memcpy(sum, settled->pooled, sizeof(double) * (size_t)w->stride);
    }
    find_crowd(w, sum);
    log_class_prior(settled->label_shares, settled->class_counts, C, w->recipe, log_prior);
    return 1;
}

/* log pi + sum_k w log m, (N, C), and what each label says times its weight, (B, C) float32 or NULL */
INLINED void score_each(const Work *w, const double *log_prior, double *scores, float *evidence,
                        int kind, size C)
{
    const Batch *batch = w->batch;
    size b = 0;
    for (size i = 0; i < batch->n_items; i++) {
        double *row = scores + i * C, common = 0;
        for (size c = 0; c < C; c++)
            row[c] = log_prior[c];
        for (; b < batch->n_labels && batch->item[b] == i; b++) {
            double weight = batch->weight[b];
            add_label(w, b, weight, row, &common, kind, C);
            for (size c = 0; evidence && c < C; c++) {
                double said = kind == HIERARCHICAL
                                  ? w->table[(size)w->cell[b] * C + c]
                                  : w->table[2 * (size)batch->worker[b] + (batch->label[b] != c)];
                evidence[b * C + c] = (float)(weight * said);
            }
        }
        add_common(row, common, C);
    }
}

static void score_items(const Work *w, const double *log_prior, double *scores, float *evidence)
{
#define SCORE(N)                                                 \
    if (w->kind == HIERARCHICAL)                                 \
        score_each(w, log_prior, scores, evidence, HIERARCHICAL, N); \
    else                                                         \
        score_each(w, log_prior, scores, evidence, ONE_COIN, N)
    BY_CLASSES(w->batch->n_classes, SCORE)
}

/* ── what a chunk is asked for ──────────────────────────────────────────────────────────── */

int fit_chunk(const Batch *batch, const Recipe *recipe, int kind, const double *before,
              const double *others, const double *class_counts, const double *label_shares,
              const Fitted *out)
{
    Work work = {0};
    int done = start_work(&work, batch, recipe, kind) &&
               fit_batch(&work, before, others, class_counts, label_shares, out);
    end_work(&work);
    return done;
}

/* scores or, where q is given, sums */
static int look(const Batch *batch, const Recipe *recipe, int kind, const Settled *settled,
                const double *probs, double *out, float *evidence)
{
    Work work = {0};
    double *log_prior = malloc(sizeof(double) * (size_t)(batch->n_classes + 1));
    int done = log_prior && start_work(&work, batch, recipe, kind) &&
               settle(&work, settled, log_prior);
    if (done && evidence) {
        fill_table(&work, 0, NULL);
        score_items(&work, log_prior, out, evidence);
    } else if (done) {
        done = find_unexplained(&work, log_prior, probs, out);
    }
    free(log_prior);
    end_work(&work);
    return done;
}

int score_chunk(const Batch *batch, const Recipe *recipe, int kind, const Settled *settled,
                double *scores, float *evidence)
{
    return look(batch, recipe, kind, settled, NULL, scores, evidence);
}

int unexplained_chunk(const Batch *batch, const Recipe *recipe, int kind, const Settled *settled,
                      const double *probs, double *sums)
{
    return look(batch, recipe, kind, settled, probs, sums, NULL);
}

int count_chunk(const Batch *batch, int kind, const double *probs, double *counts)
{
    size K = batch->n_workers, C = batch->n_classes, stride = stride_of(kind, C);
    double *inside = counts;
    if (kind == HIERARCHICAL)
        inside = malloc(sizeof(double) * (size_t)(K * stride + 1));
    if (!inside)
        return 0;
    Work work = {.batch = batch, .kind = kind, .stride = stride};
    memset(inside, 0, sizeof(double) * (size_t)(K * stride));
    for (size b = 0; b < batch->n_labels; b++)
        count_label(&work, b, probs + batch->item[b] * C, inside, kind, C);
    if (kind == HIERARCHICAL) {
        transpose(inside, counts, K, C);
        free(inside);
    }
    return 1;
}

/* ── workers alone ──────────────────────────────────────────────────────────────────────── */

/* P of counts (K, ...) */
int pool_workers(const double *given, double *out, size K, size C, int kind, const Recipe *r)
{
    size stride = stride_of(kind, C);
    double *sum = calloc((size_t)(2 * stride + C + 1), sizeof(double)), *own = sum + stride;
    if (!sum)
        return 0;
    for (size k = 0; k < K; k++) {
        const double *counts = given + k * stride;
        if (kind == HIERARCHICAL)
            transpose(counts, own, 1, C);
        add_pooled(kind == HIERARCHICAL ? own : counts, 1, C, kind, r, sum, own + stride);
    }
    if (kind == HIERARCHICAL)
        transpose(sum, out, 1, C);
    else
        memcpy(out, sum, sizeof(double) * (size_t)stride);
    free(sum);
    return 1;
}

/* theta (K, D) at the maximum of J, from 0 */
int solve_workers(const double *given, const double *pooled, double *out, size K, size C, int kind,
                  const Recipe *r)
{
    size stride = stride_of(kind, C), D = params_of(kind, C);
    double *own = malloc(sizeof(double) * (size_t)(LANES * (stride + 2 * D) + 2 * stride + 1));
    Block block = {.memory = NULL};
    int newton = (double)C <= r->newton_classes;
    if (!own || (kind == HIERARCHICAL && !start_block(&block, C, newton))) {
        free(own);
        free(block.memory);
        return 0;
    }
    double *theta = own + LANES * stride, *factors = theta + LANES * D;
    double *crowd = factors + LANES * D, *sum = crowd + stride, odds = 0;
    if (kind == HIERARCHICAL) {
        transpose(pooled, sum, 1, C);
        crowd_matrix(sum, C, r, crowd);
    } else {
        odds = crowd_odds(pooled, C, r);
    }
    for (size first = 0; first < K; first += LANES) {
        size n = K - first < LANES ? K - first : LANES;
        double moved = INFINITY;
        memset(theta, 0, sizeof(double) * (size_t)(LANES * D));
        if (kind == HIERARCHICAL) {
            transpose(given + first * stride, own, n, C);
            choose_workers(&block, 0, n);
            find_totals(&block, own, C);
        }
        for (int step = 0; step < MAX_STEPS && moved > STEP_TOLERANCE; step++) {
            exp_all(theta, factors, n * D);
            if (kind == HIERARCHICAL) {
                find_matrices(&block, crowd, factors, C);
                moved = step_block(&block, theta, own, C, r);
                continue;
            }
            moved = 0;
            for (size l = 0; l < n; l++)
                moved = fmax(moved, one_coin_step(theta + l, factors[l],
                                                  given + (first + l) * stride, odds, C, r));
        }
        memcpy(out + first * D, theta, sizeof(double) * (size_t)(n * D));
    }
    free(own);
    free(block.memory);
    return 1;
}

