/* Exponentials and logarithms that a compiler makes vectors of. They round the same way with every instruction set, and
   differ from those of torch in the last bits. The polynomials are those of Cephes. */
#ifndef FUNCTIONS_H
#define FUNCTIONS_H

#include <math.h>
#include <stdint.h>

static inline float from_bits(int32_t bits) {
    union { int32_t bits; float number; } both = {bits};
    return both.number;
}

static inline int32_t to_bits(float number) {
    union { float number; int32_t bits; } both = {number};
    return both.bits;
}

/* e^x, for x kept within [-87, 88]; NaN stays NaN. */
static inline float exponential(float x) {
    x = x < -87 ? -87 : x;
    x = x > 88 ? 88 : x;
    float shifted = x * 1.44269504f + 0x1.8p23f, whole = shifted - 0x1.8p23f; /* rounded: the last bits of `shifted` */
    float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float y = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * (rest * rest) + rest + 1;
    return y * from_bits((int32_t)(((uint32_t)to_bits(shifted) + 127) << 23)); /* any bits will do for NaN */
}

/* The natural logarithm of a positive number that is not subnormal; NaN and infinity stay what they are. */
static inline float logarithm(float x) {
    int32_t bits = to_bits(x) - 0x3F3504F3;                       /* the bits of sqrt(1/2) */
    float power = (float)(bits >> 23), rest = from_bits((bits & 0x7FFFFF) + 0x3F3504F3) - 1, square = rest * rest;
    float y = rest * 7.0376836292e-2f - 1.1514610310e-1f;
    y = y * rest + 1.1676998740e-1f;
    y = y * rest - 1.2420140846e-1f;
    y = y * rest + 1.4249322787e-1f;
    y = y * rest - 1.6668057665e-1f;
    y = y * rest + 2.0000714765e-1f;
    y = y * rest - 2.4999993993e-1f;
    y = y * rest + 3.3333331174e-1f;
    y = y * rest * square - power * 2.12194440e-4f - square * 0.5f;
    return x < INFINITY ? rest + y + power * 0.693359375f : x;
}

static inline float sigmoid(float x) { return 1 / (1 + exponential(-x)); }

#endif
