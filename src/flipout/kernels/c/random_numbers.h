/* Random numbers without state: see random_numbers.py. They have the same bits as there. */
#ifndef RANDOM_NUMBERS_H
#define RANDOM_NUMBERS_H

#include <stdint.h>

static inline uint32_t hash(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

/* A standard normal number. */
static inline float normal(uint32_t x) {
    x = hash(x);
    int32_t total = ((int32_t)x >> 18) + (int32_t)((x >> 4 & 0x3F00) + (x << 2 & 0x3F00) + (x << 8 & 0x3F00));
    float z = ((float)total - 24191.5f) * 0x1p-15f, square = z * z;
    float y = square * 31.699367f - 76.259804f;
    y = y * square + 71.387824f;
    y = y * square - 30.867949f;
    y = y * square + 6.4963187f;
    y = y * square - 0.060223565f;
    y = y * square + 3.3434541f;
    return y * z;
}

/* A multiple of 2^-24 in (0, 1]. */
static inline float uniform(uint32_t x) { return (float)((int32_t)(hash(x) >> 8) + 1) * 0x1p-24f; }

#endif
