/* A batch norm in training: its output with the statistics of the batch, and its gradients.

   A thread works on one channel at a time. It reads the channel two or three times, from its cache after the first time.
   Sums over a piece of a plane are in single precision, one for each lane of a vector, and sums over the pieces in double
   precision. The mean that they give is off by a share of itself, which may be more than the deviation of the channel. The
   sum of the differences from it, which are small, says by how much. The bits are the same for every number of threads.

   This file is compiled for each instruction set, and exports one symbol, whose name is INSTRUCTIONS. */
#include "norm.h"

#include <math.h>
#include <stddef.h>

#include "parallel.h"
#include "vectors.h"

enum { PIECE = 1 << 10 };

static float sum_of(Vector vector) {
    Four sum = {0};
    for (int i = 0; i < WIDTH; i += 4) sum += LOAD_FOUR((const float *)&vector + i);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static float sum_of_piece(const float *piece, int64_t pixels) {
    Vector one = ALL(0), other = one;
    int64_t i = 0;
    for (; i + 2 * WIDTH <= pixels; i += 2 * WIDTH) {
        one += LOAD(piece + i);
        other += LOAD(piece + i + WIDTH);
    }
    float sum = sum_of(one + other);
    for (; i < pixels; i++) sum += piece[i];
    return sum;
}

static void add_differences(const float *piece, float mean, int64_t pixels, double *differences, double *squares) {
    Vector one = ALL(0), other = one, one_square = one, other_square = one;
    int64_t i = 0;
    for (; i + 2 * WIDTH <= pixels; i += 2 * WIDTH) {
        Vector a = LOAD(piece + i) - mean, b = LOAD(piece + i + WIDTH) - mean;
        one += a;
        other += b;
        one_square += a * a;
        other_square += b * b;
    }
    float sum = sum_of(one + other), square = sum_of(one_square + other_square);
    for (; i < pixels; i++) {
        float difference = piece[i] - mean;
        sum += difference;
        square += difference * difference;
    }
    *differences += sum;
    *squares += square;
}

static float products_of_pieces(const float *piece, float mean, const float *gradient, int64_t pixels) {
    Vector one = ALL(0), other = one;
    int64_t i = 0;
    for (; i + 2 * WIDTH <= pixels; i += 2 * WIDTH) {
        one += (LOAD(piece + i) - mean) * LOAD(gradient + i);
        other += (LOAD(piece + i + WIDTH) - mean) * LOAD(gradient + i + WIDTH);
    }
    float sum = sum_of(one + other);
    for (; i < pixels; i++) sum += (piece[i] - mean) * gradient[i];
    return sum;
}

/* The planes of a channel are `step` numbers apart. */

static void find_output(const void *context, int64_t channel) {
    const Norm *norm = context;
    int64_t pixels = norm->pixels, first = channel * pixels, step = norm->channels * pixels, end = norm->images * step;
    double count = (double)(norm->images * pixels), sum = 0, differences = 0, squares = 0;
    const float *input = norm->input + first;
    for (int64_t at = 0; at < end; at += step)
        for (int64_t i = 0; i < pixels; i += PIECE) sum += sum_of_piece(input + at + i, least(PIECE, pixels - i));
    float near = (float)(sum / count);
    for (int64_t at = 0; at < end; at += step)
        for (int64_t i = 0; i < pixels; i += PIECE)
            add_differences(input + at + i, near, least(PIECE, pixels - i), &differences, &squares);
    double rest = differences / count, variance = squares / count - rest * rest;
    float mean = (float)(near + rest);
    variance = variance < 0 ? 0 : variance;
    double scale = 1 / sqrt(variance + norm->epsilon), factor = norm->weight ? scale * norm->weight[channel] : scale;
    norm->mean[channel] = mean;
    norm->variance[channel] = (float)variance;
    norm->scale[channel] = (float)scale;
    float times = (float)factor, plus = norm->bias ? norm->bias[channel] : 0;
    for (int64_t at = 0; at < end; at += step) {
        const float *restrict from = input + at;
        float *restrict to = norm->output + first + at;
        for (int64_t i = 0; i < pixels; i++) to[i] = (from[i] - mean) * times + plus;
    }
}

static void find_gradients(const void *context, int64_t channel) {
    const Norm *norm = context;
    int64_t pixels = norm->pixels, first = channel * pixels, step = norm->channels * pixels, end = norm->images * step;
    double count = (double)(norm->images * pixels), sum = 0, products = 0;
    const float *input = norm->input + first, *gradient = norm->output_gradient + first;
    float mean = norm->mean[channel];
    for (int64_t at = 0; at < end; at += step)
        for (int64_t i = 0; i < pixels; i += PIECE) {
            int64_t size = least(PIECE, pixels - i);
            sum += sum_of_piece(gradient + at + i, size);
            products += products_of_pieces(input + at + i, mean, gradient + at + i, size);
        }
    double scale = norm->scale[channel], factor = norm->weight ? scale * norm->weight[channel] : scale;
    norm->weight_gradient[channel] = (float)(products * scale);
    norm->bias_gradient[channel] = (float)sum;
    if (!norm->input_gradient) return;
    float times = (float)factor, less = (float)(sum / count), slope = (float)(scale * scale * products / count);
    for (int64_t at = 0; at < end; at += step) {
        const float *restrict from = input + at, *restrict change = gradient + at;
        float *restrict to = norm->input_gradient + first + at;
        for (int64_t i = 0; i < pixels; i++) to[i] = (change[i] - less - (from[i] - mean) * slope) * times;
    }
}

static void run(const Norm *norm) {
    in_parallel(norm->output_gradient ? find_gradients : find_output, norm, norm->channels, norm->threads);
}

NormLoop *const INSTRUCTIONS = run;
