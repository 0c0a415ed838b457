/* The two sums that a sparse layer needs, over rows of a packed tensor.

   `row_product`: a block of up to BLOCK vectors of the output stays in registers while all weights of the row are added, so
   each weight costs one load and one multiply-add per vector. `dot_products`: WEIGHTS sums stay in registers, so a vector
   of the gradient is loaded once for all of them. */
#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "vectors.h"

enum { BLOCK = 12, WEIGHTS = 8 };

/* The weights of one row of a sparse matrix: where each finds its input, and its value. */
typedef struct {
    const int32_t *offsets; /* in pixels of `lanes` floats */
    const float *values;
    int64_t count;
} Weights;

/* Add `ways` weights, from number k on, to sums of their own, so that no addition waits for the one before it. */
#define ADD(k, ways)                                                                              \
    for (int way = 0; way < ways; way++) {                                                        \
        const float *from = in + weights.offsets[k + way] * lanes;                                \
        Vector value = ALL(weights.values[k + way]);                                              \
        for (int i = 0; i < size; i++) sums[way][i] += value * LOAD(from + i * WIDTH);            \
        if (tail) tails[way] += weights.values[k + way] * LOAD_FOUR(from + size * WIDTH);         \
    }

/* `size` vectors of a row, and with `tail` four more numbers. */
INLINE void block(float *out, const float *in, Weights weights, int64_t lanes, float start, int clip, const int size,
                  const int ways, const int tail) {
    Vector sums[4][BLOCK];
    Four tails[4];
    for (int way = 0; way < ways; way++) {
        for (int i = 0; i < size; i++) sums[way][i] = ALL(way ? 0 : start);
        tails[way] = (Four){0} + (way ? 0 : start);
    }
    int64_t k = 0;
    for (; k + ways <= weights.count; k += ways) ADD(k, ways)
    for (; k < weights.count; k++) ADD(k, 1)
    for (int way = 1; way < ways; way++) {
        for (int i = 0; i < size; i++) sums[0][i] += sums[way][i];
        tails[0] += tails[way];
    }
    for (int i = 0; i < size; i++) /* a comparison with NaN is false, so it stays, as by torch.relu */
        STORE(out + i * WIDTH, clip ? (Vector)((Truth)sums[0][i] & ~(Truth)(sums[0][i] < 0)) : sums[0][i]);
    if (tail) STORE_FOUR(out + size * WIDTH, clip ? (Four)((FourTruth)tails[0] & ~(FourTruth)(tails[0] < 0)) : tails[0]);
}

/* out[i] = start + sum over k of values[k] * in[offsets[k] * lanes + i], for i in [0, length); with `clip`, the larger of
   that and 0. */
static void row_product(float *out, const float *in, Weights weights, int64_t lanes, int64_t length, float start,
                        int clip) {
    int64_t whole = length / WIDTH, rest = length - whole * WIDTH;
    if (WIDTH > 4 && whole <= 2 && rest > 0 && rest <= 4) { /* a short row: a whole vector more would take half as long again */
        switch (whole) {
#define CASE(size, ways) \
    case size: block(out, in, weights, lanes, start, clip, size, ways, 1); break;
            CASE(0, 4) CASE(1, 4) CASE(2, 4)
#undef CASE
        }
        return;
    }
    int64_t vectors = whole + (rest > 0), blocks = (vectors + BLOCK - 1) / BLOCK;
    for (int64_t number = 0; number < blocks; number++) {
        int64_t first = number * vectors / blocks, size = (number + 1) * vectors / blocks - first;
        float *to = out + first * WIDTH;
        const float *from = in + first * WIDTH;
        switch (size) { /* the size is a constant of the code, so that the sums are registers */
#define CASE(size, ways) \
    case size: block(to, from, weights, lanes, start, clip, size, ways, 0); break;
            CASE(1, 4) CASE(2, 4) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 1)
            CASE(7, 1) CASE(8, 1) CASE(9, 1) CASE(10, 1) CASE(11, 1) CASE(12, 1)
#undef CASE
        }
    }
}

#undef ADD

INLINE float total(Vector sum) {
    float numbers[WIDTH];
    STORE(numbers, sum);
    Four four = LOAD_FOUR(numbers);
    for (int i = 4; i < WIDTH; i += 4) four += LOAD_FOUR(numbers + i);
    return (four[0] + four[1]) + (four[2] + four[3]);
}

INLINE void some_dots(float *sums, const float *gradient, const float *in, const int32_t *offsets, int64_t lanes,
                      int64_t length, const int count) {
    Vector partial[WEIGHTS];
    const float *from[WEIGHTS];
    for (int k = 0; k < count; k++) partial[k] = ALL(0), from[k] = in + offsets[k] * lanes;
    int64_t whole = length / WIDTH * WIDTH;
    for (int64_t i = 0; i < whole; i += WIDTH) {
        Vector each = LOAD(gradient + i);
        for (int k = 0; k < count; k++) partial[k] += each * LOAD(from[k] + i);
    }
    for (int k = 0; k < count; k++) {
        float sum = total(partial[k]);
        for (int64_t i = whole; i < length; i++) sum += gradient[i] * from[k][i];
        sums[k] = sum;
    }
}

/* sums[k] = sum over i in [0, length) of gradient[i] * in[offsets[k] * lanes + i] */
static void dot_products(float *sums, const float *gradient, const float *in, Weights weights, int64_t lanes,
                         int64_t length) {
    int64_t k = 0;
    for (; k + WEIGHTS <= weights.count; k += WEIGHTS)
        some_dots(sums + k, gradient, in, weights.offsets + k, lanes, length, WEIGHTS);
    for (; k + 2 <= weights.count; k += 2)
        some_dots(sums + k, gradient, in, weights.offsets + k, lanes, length, 2);
    if (k < weights.count) some_dots(sums + k, gradient, in, weights.offsets + k, lanes, length, 1);
}

#endif
