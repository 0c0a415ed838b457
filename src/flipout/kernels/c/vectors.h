/* Vectors of the instruction set that this file is compiled for. */
#ifndef VECTORS_H
#define VECTORS_H

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX2__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Truth __attribute__((vector_size(4 * WIDTH)));
typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourTruth __attribute__((vector_size(16)));

/* The same types at any address of a float. */
typedef float LooseVector __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef float LooseFour __attribute__((vector_size(16), aligned(4)));

#define LOAD(address) (*(const LooseVector *)(address))
#define STORE(address, vector) (*(LooseVector *)(address) = (vector))
#define LOAD_FOUR(address) (*(const LooseFour *)(address))
#define STORE_FOUR(address, vector) (*(LooseFour *)(address) = (vector))
#define ALL(number) ((Vector){0} + (number))

typedef float Eight __attribute__((vector_size(32)));
typedef float LooseEight __attribute__((vector_size(32), aligned(4)));

/* The numbers of two vectors at some positions. */
#ifdef __clang__
#define MIX(kind, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t FourPositions __attribute__((vector_size(16)));
typedef int32_t EightPositions __attribute__((vector_size(32)));
#define MIX(kind, a, b, ...) __builtin_shuffle(a, b, (kind##Positions){__VA_ARGS__})
#endif

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
