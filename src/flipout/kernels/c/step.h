/* The loops around an optimizer step. `step_loops.py` has the same structure. */
#ifndef STEP_H
#define STEP_H

#include <stdint.h>

/* The tensors of one call: matrices of rows x columns, except where a comment says otherwise. */
typedef struct {
    int64_t rows, columns, threads;
    float *values;       /* weights */
    float *gradients;
    const uint8_t *mask;
    uint8_t *low, *high; /* counts of flips and signs: see statistics/flips.py */
    float *hidden;       /* hidden values: see forms/hidden.py */
    const float *threshold, *ceiling, *faint;    /* a number for each row if `each` is set, or one for all */
    const float *unit_factors, *sigma;           /* a number for each row; NULL: one_unit_factor, one_sigma for all */
    const int32_t *factors, *addends;            /* a number for each row; NULL: one_factor, one_addend for all */
    const int32_t *starts, *offsets;             /* of each row; of each column */
    float *sums;                                 /* of each row */
    double total;                                /* of all rows */
    const float *theta, *noise;                       /* of latent forms, as are the following: see latents.h */
    float *latent, *latent_gradients, *first, *second; /* matrices, or a number for each row */
    int64_t each;
    float rate, trust, one_sigma, one_unit_factor;
    float lambda, bias;
    int32_t one_factor, one_addend;
    int32_t amount, fade; /* of flips; fade 0: no fading */
    int32_t all_count;    /* of flips: pruned weights count, too */
    int32_t zeroes;       /* of flips: zero the pruned weights in the same loop */
    int32_t keep_pruned;  /* of noise: pruned weights keep their gradient */
} Step;

/* The loops, in the order of `LOOPS` in step_loops.py. */
enum {
    ZERO, COUNT, ENTER, LEAVE, LIMIT, SCALE, SQUARE, PERTURB,
    NORMAL, UNIFORM, ADAM, VARIATIONAL, VARIATIONAL_BACKWARD, GATE, GATE_BACKWARD, THRESHOLD, THRESHOLD_BACKWARD,
    STEP_LOOPS
};

typedef void StepLoop(Step *step);

#endif
