/* Batch norms of images whose channels lie one after the other. `batch_norms.py` has the same structure. */
#ifndef NORM_H
#define NORM_H

#include <stdint.h>

/* The tensors of one call: the input, the output and their gradients have images x channels x pixels numbers, the others
   one for each channel. */
typedef struct {
    int64_t images, channels, pixels, threads;
    const float *input, *weight, *bias; /* weight, bias NULL: 1 and 0 */
    float *output;
    float *mean, *variance, *scale; /* of each channel; scale: 1 / sqrt(variance + epsilon) */
    double epsilon;
    const float *output_gradient; /* NULL: the output is asked for, and not the gradients */
    float *input_gradient;        /* NULL: not asked for */
    float *weight_gradient, *bias_gradient;
} Norm;

typedef void NormLoop(const Norm *norm);

#endif
