/* A batch norm in training: its output with the statistics of the batch, and its gradients.

   A thread works on one channel at a time. It reads the channel two or three times, from its cache after the first time.
   Sums over a plane are in single precision, one for each lane of a vector, and sums over the images in double precision.
   So the bits are the same for every number of threads.

   This file is compiled for each instruction set, and exports one symbol, whose name is INSTRUCTIONS. */
#include "norm.h"

#include <math.h>
#include <stddef.h>

#include "parallel.h"
#include "vectors.h"

static float sum_of(Vector vector) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += vector[i];
    return sum;
}

static float sum_of_plane(const float *plane, int64_t pixels) {
    Vector one = ALL(0), other = one;
    int64_t i = 0;
    for (; i + 2 * WIDTH <= pixels; i += 2 * WIDTH) {
        one += LOAD(plane + i);
        other += LOAD(plane + i + WIDTH);
    }
    float sum = sum_of(one + other);
    for (; i < pixels; i++) sum += plane[i];
    return sum;
}

static float squares_of_plane(const float *plane, float mean, int64_t pixels) {
    Vector one = ALL(0), other = one;
    int64_t i = 0;
    for (; i + 2 * WIDTH <= pixels; i += 2 * WIDTH) {
        Vector a = LOAD(plane + i) - mean, b = LOAD(plane + i + WIDTH) - mean;
        one += a * a;
        other += b * b;
    }
    float sum = sum_of(one + other);
    for (; i < pixels; i++) sum += (plane[i] - mean) * (plane[i] - mean);
    return sum;
}

static float products_of_planes(const float *plane, float mean, const float *gradient, int64_t pixels) {
    Vector one = ALL(0), other = one;
    int64_t i = 0;
    for (; i + 2 * WIDTH <= pixels; i += 2 * WIDTH) {
        one += (LOAD(plane + i) - mean) * LOAD(gradient + i);
        other += (LOAD(plane + i + WIDTH) - mean) * LOAD(gradient + i + WIDTH);
    }
    float sum = sum_of(one + other);
    for (; i < pixels; i++) sum += (plane[i] - mean) * gradient[i];
    return sum;
}

/* The planes of a channel are `step` numbers apart. */

static void find_output(const void *context, int64_t channel) {
    const Norm *norm = context;
    int64_t pixels = norm->pixels, first = channel * pixels, step = norm->channels * pixels, end = norm->images * step;
    double count = (double)(norm->images * pixels), sum = 0, squares = 0;
    const float *input = norm->input + first;
    for (int64_t at = 0; at < end; at += step) sum += sum_of_plane(input + at, pixels);
    float mean = (float)(sum / count);
    for (int64_t at = 0; at < end; at += step) squares += squares_of_plane(input + at, mean, pixels);
    double rest = sum / count - mean, variance = squares / count - rest * rest; /* around the mean that was rounded */
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
    for (int64_t at = 0; at < end; at += step) {
        sum += sum_of_plane(gradient + at, pixels);
        products += products_of_planes(input + at, mean, gradient + at, pixels);
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
