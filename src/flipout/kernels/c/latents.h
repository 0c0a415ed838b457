/* Loops of the latent forms. The same equations are in Python: forms/variational.py, forms/gates.py, forms/thresholds.py
   and `adam` in forms/latent.py. `values` and `latent_gradients` are results, where a comment says nothing else. */
#ifndef LATENTS_H
#define LATENTS_H

#include "functions.h"
#include "random_numbers.h"
#include "step.h"

/* The noise of each element, into `values`. */
#define NOISE_ROW(name, number)                                                                        \
    static void name(const Step *step, int64_t row, int64_t start, int64_t count) {                    \
        float *restrict values = step->values + start;                                                 \
        const int32_t *restrict offsets = step->offsets + (start - row * step->columns);               \
        uint32_t factor = (uint32_t)step->one_factor;                                                  \
        uint32_t base = (uint32_t)step->starts[row] * factor + (uint32_t)step->one_addend;             \
        for (int64_t i = 0; i < count; i++) values[i] = number(base + (uint32_t)offsets[i] * factor);  \
    }
NOISE_ROW(normal_row, normal)
NOISE_ROW(uniform_row, uniform)

/* A step of Adam: forms/latent.py. `bias` is 1 - 0.999^t. */
static void adam_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    (void)row;
    float *restrict latent = step->latent + start, *restrict first = step->first + start;
    float *restrict second = step->second + start;
    const float *restrict gradient = step->latent_gradients + start;
    float rate = step->rate, bias = step->bias;
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i];
        first[i] += 0.1f * (g - first[i]);
        second[i] = second[i] * 0.999f + 0.001f * g * g;
        latent[i] -= rate * first[i] / (sqrtf(second[i] / bias) + 1e-8f);
    }
}

/* log alpha of variational dropout, not clipped. */
static inline float noise_to_signal(float theta, float log_variance) {
    return log_variance - logarithm(theta * theta + 1e-8f);
}

static void variational_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    (void)row;
    float *restrict values = step->values + start;
    const float *restrict theta = step->theta + start, *restrict latent = step->latent + start;
    if (!step->noise) {
        for (int64_t i = 0; i < count; i++) values[i] = noise_to_signal(theta[i], latent[i]) < 3 ? theta[i] : 0;
        return;
    }
    const float *restrict noise = step->noise + start;
    for (int64_t i = 0; i < count; i++) {
        float sample = theta[i] + exponential(latent[i] / 2) * noise[i];
        values[i] = noise_to_signal(theta[i], latent[i]) < 3 ? sample : 0;
    }
}

/* `gradients` are those of the values; `values` get those of theta. */
static void variational_backward_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    (void)row;
    float *restrict own = step->values + start, *restrict through = step->latent_gradients + start;
    const float *restrict theta = step->theta + start, *restrict latent = step->latent + start;
    const float *restrict noise = step->noise ? step->noise + start : 0, *restrict gradient = step->gradients + start;
    float lambda = step->lambda;
    for (int64_t i = 0; i < count; i++) {
        float log = noise_to_signal(theta[i], latent[i]), given = gradient[i], g = log < 3 ? given : 0;
        float rising = sigmoid(1.8732f + 1.48695f * log);
        float slope = -0.63576f * 1.48695f * rising * (1 - rising) - sigmoid(-log) / 2;
        float pull = fabsf(log) < 8 ? lambda * slope : 0;
        own[i] = g - pull * 2 * theta[i] / (theta[i] * theta[i] + 1e-8f);
        through[i] = (noise ? g * noise[i] * exponential(latent[i] / 2) / 2 : 0) + pull;
    }
}

/* log(u / (1 - u)), for u not too near to 0 and 1. */
static inline float logit(float u) {
    u = u < 1e-6f ? 1e-6f : u;
    u = u > 1 - 1e-6f ? 1 - 1e-6f : u;
    return logarithm(u / (1 - u));
}

static inline float clipped(float gate) { return gate < 0 ? 0 : gate > 1 ? 1 : gate; }

/* Gates of L0, before they are clipped. */
static void stretched_gates(const Step *step, int64_t start, int64_t count) {
    float *restrict gate = step->values + start;
    const float *restrict latent = step->latent + start, *restrict noise = step->noise ? step->noise + start : 0;
    if (noise)
        for (int64_t i = 0; i < count; i++) gate[i] = sigmoid((logit(noise[i]) + latent[i]) * 1.5f) * 1.2f - 0.1f;
    else
        for (int64_t i = 0; i < count; i++) gate[i] = sigmoid(latent[i]) * 1.2f - 0.1f;
}

/* Gates; with `theta`, times theta: then each weight has one. */
static void gate_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    (void)row;
    stretched_gates(step, start, count);
    float *restrict values = step->values + start;
    for (int64_t i = 0; i < count; i++) values[i] = clipped(values[i]);
    if (!step->theta) return;
    const float *restrict theta = step->theta + start;
    for (int64_t i = 0; i < count; i++) values[i] *= theta[i];
}

/* Gates, in `first` their slopes, and in `latent_gradients` the slopes of `lambda` times the probability that a gate is
   open. With `theta`, `values` and `latent_gradients` are the gradients that follow from `gradients`. */
static void gate_backward_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    (void)row;
    stretched_gates(step, start, count);
    float *restrict values = step->values + start, *restrict slope = step->first + start;
    float *restrict through = step->latent_gradients + start;
    const float *restrict latent = step->latent + start;
    float lambda = step->lambda, inner = step->noise ? 1.8f : 1.2f;
    for (int64_t i = 0; i < count; i++) {
        float gate = values[i], s = (gate + 0.1f) / 1.2f, open = sigmoid(latent[i] + 1.59859685f); /* 2/3 log 11 */
        values[i] = clipped(gate);
        slope[i] = (gate > 0) & (gate < 1) ? s * (1 - s) * inner : 0;
        through[i] = lambda * open * (1 - open);
    }
    if (!step->theta) return;
    const float *restrict theta = step->theta + start, *restrict gradient = step->gradients + start;
    for (int64_t i = 0; i < count; i++) {
        values[i] *= gradient[i];
        through[i] += gradient[i] * theta[i] * slope[i];
    }
}

/* What is above the threshold of its row. */
static void threshold_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    float *restrict values = step->values + start;
    const float *restrict theta = step->theta + start;
    float threshold = step->latent[row];
    for (int64_t i = 0; i < count; i++) values[i] = fabsf(theta[i]) - threshold > 0 ? theta[i] : 0;
}

/* The gradients of theta, from those of the values, of a few elements; `sums` get the terms of the threshold's. */
static inline void threshold_gradients(float *restrict own, const float *restrict theta, const float *restrict gradient,
                                       float threshold, float *restrict sums, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float above = fabsf(theta[i]) - threshold, size = fabsf(above);
        float surrogate = size <= 0.4f ? 2 - 4 * size : size <= 1 ? 0.4f : 0;
        float through = gradient[i] * theta[i] * surrogate;
        float signed_through = theta[i] < 0 ? -through : through; /* 0 where theta is 0 */
        own[i] = (above > 0 ? gradient[i] : 0) + signed_through;
        sums[i] += through;
    }
}

/* A row is not cut, because its threshold has one sum. */
static void threshold_backward_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    enum { PARTS = 16 };
    float *own = step->values + start, sums[PARTS] = {0}, threshold = step->latent[row], sum = 0;
    const float *theta = step->theta + start, *gradient = step->gradients + start;
    int64_t whole = count - count % PARTS;
    for (int64_t i = 0; i < whole; i += PARTS)
        threshold_gradients(own + i, theta + i, gradient + i, threshold, sums, PARTS);
    threshold_gradients(own + whole, theta + whole, gradient + whole, threshold, sums, count - whole);
    for (int64_t k = 0; k < PARTS; k++) sum += sums[k];
    step->latent_gradients[row] = -sum - step->lambda * exponential(-threshold);
}

#endif
