/* What `_kernel.c` computes of a chunk, and `_kernel_module.c` gives to Python. */

#ifndef LABELQUORUM_KERNEL_H
#define LABELQUORUM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

typedef ptrdiff_t size;

#define MISSING (-1)
#define N_SUMS 7
#define N_VOTE_SUMS 3

enum { HIERARCHICAL = 0, ONE_COIN = 1 };
enum { BLENDED = 0, RUNNING = 1, UNIFORM = 2 };

typedef struct {
    double tilt_scale, bias_scale, worker_cap, crowd_strength, crowd_accuracy, accuracy_strength;
    double class_prior, class_strength, prior_mix, inner_steps, step_limit, newton_classes;
    double own_weight, tolerance;
} Recipe;

typedef struct {
    size n_items, n_labels, n_workers, n_classes;
    const int32_t *item, *worker, *label; /* (B,) */
    const float *weight, *counted_weight; /* (B,) */
    const double *counted_item;           /* (N,) */
    const int32_t *gold;                  /* (N,) or NULL */
    const float *share;                   /* (B,) or NULL */
    const int32_t *first_vote;            /* (B,) or NULL */
} Batch;

/* numbers of a worker's counts, and of theta */
static inline size stride_of(int kind, size C) { return kind == HIERARCHICAL ? C * C : 2 * C; }
static inline size params_of(int kind, size C) { return kind == HIERARCHICAL ? C + 1 : 1; }

static inline size n_sums(const Batch *batch)
{
    return N_SUMS + (batch->first_vote ? N_VOTE_SUMS : 0);
}

/* A worker model as it is: counts (K, ...), theta (K, D), P, f (C,), nu (C,) */
typedef struct {
    const double *counts, *theta, *pooled, *label_shares, *class_counts;
} Settled;

/* What comes of a chunk: counts, theta (given where it starts), q (N, C), P, sums, loss and rounds,
   and the log scores of its items (N, C), or NULL where they are not asked for */
typedef struct {
    double *counts, *theta, *probs, *pooled, *sums, *numbers, *scores;
} Fitted;

/* Each returns 0 where there is no memory. */
int fit_chunk(const Batch *batch, const Recipe *recipe, int kind, const double *before,
              const double *others, const double *class_counts, const double *label_shares,
              const Fitted *out);
int score_chunk(const Batch *batch, const Recipe *recipe, int kind, const Settled *settled,
                double *scores, float *evidence);
int unexplained_chunk(const Batch *batch, const Recipe *recipe, int kind, const Settled *settled,
                      const double *probs, double *sums);
int count_chunk(const Batch *batch, int kind, const double *probs, double *counts);
int pool_workers(const double *given, double *out, size K, size C, int kind, const Recipe *r);
int solve_workers(const double *given, const double *pooled, double *out, size K, size C, int kind,
                  const Recipe *r);

#endif
