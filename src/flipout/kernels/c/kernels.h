/* What a caller asks for, and the functions that compute it. `library.py` has the same structures. */
#ifndef KERNELS_H
#define KERNELS_H

#include "layout.h"

/* A sparse matrix between planes. The weights of row i are [starts[i], starts[i + 1]). */
typedef struct {
    const int32_t *starts, *offsets;
    const float *values;
} Matrix;

/* The tensors of one call. */
typedef struct {
    Layout input, output;
    int64_t length; /* pixels of a plane of the output, up to its last */
    int64_t images, lanes, threads;
} Size;

typedef struct {
    const Size *size;
    Matrix forward, transposed;
    const int64_t *positions; /* in the dense weight, of each weight of `forward` */
    const float *input, *bias, *output_gradient;
    const float *addend; /* added to the output before `clip`; NULL: nothing */
    float *output, *input_gradient, *weight_gradient; /* NULL: not asked for */
    float *scratch;
    int64_t clip;
} Call;

typedef struct {
    int64_t (*scratch_size)(const Call *call); /* the floats of scratch memory that a call needs */
    void (*run)(const Call *call);             /* compute what the call asks for */
} Kernels;

#endif
