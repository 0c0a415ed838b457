/* The elementwise work around an optimizer step, each in one loop over memory.

   The same equations are in Python: numerics.py (zero), statistics/flips.py (count), forms/hidden.py (enter, leave, limit,
   scale), runtime/noise.py (square, perturb) and random_numbers.py; latents.h has those of latent forms. Every operation
   rounds once: this file is compiled without fused multiply-adds. So elementwise results have the same bits as there, but
   for torch's square root, whose last bit can be wrong, exponentials and logarithms. Sums have an order of their own, which
   depends on the sizes alone: the bits are the same for every number of threads and every instruction set.

   This file is compiled for each instruction set, and exports one symbol, whose name is INSTRUCTIONS. */
#include "step.h"

#include <math.h>

#include "latents.h"
#include "parallel.h"
#include "random_numbers.h"

enum { ELEMENTS = 1 << 15, LANES = 16, PIECE = 128 };
/* The elements that one thread takes at once, the partial sums of a sum, and the elements that are masked before they are
   added. */

#define NOINLINE __attribute__((noinline)) /* so that the pointers of one loop are not those of another */

typedef void RowLoop(const Step *step, int64_t row, int64_t start, int64_t count);

typedef struct {
    const Step *step;
    RowLoop *loop;
    int64_t rows, columns, pieces; /* of a piece of work; a row has so many pieces */
} Plan;

static void work_on(const void *context, int64_t item) {
    const Plan *plan = context;
    const Step *step = plan->step;
    int64_t first = item / plan->pieces * plan->rows, start = item % plan->pieces * plan->columns;
    int64_t last = first + plan->rows < step->rows ? first + plan->rows : step->rows;
    int64_t count = start + plan->columns < step->columns ? plan->columns : step->columns - start;
    for (int64_t row = first; row < last; row++) plan->loop(step, row, row * step->columns + start, count);
}

/* Call loop(step, row, start, count) for all elements. A row is cut into pieces if `cut` is set and it is long. */
static void over_rows(const Step *step, RowLoop *loop, int cut) {
    if (step->rows <= 0 || step->columns <= 0) return;
    Plan plan = {step, loop, 1, step->columns, 1};
    if (step->columns <= ELEMENTS)
        plan.rows = ELEMENTS / step->columns;
    else if (cut) {
        plan.columns = ELEMENTS;
        plan.pieces = (step->columns + ELEMENTS - 1) / ELEMENTS;
    }
    int64_t items = (step->rows + plan.rows - 1) / plan.rows * plan.pieces;
    in_parallel(work_on, &plan, items, step->threads);
}

/* w <- 0 where pruned. */
static NOINLINE void zero_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    (void)row;
    int32_t *restrict bits = (int32_t *)step->values + start; /* also of NaN: 0.0 has all bits clear */
    const uint8_t *restrict mask = step->mask + start;
    for (int64_t i = 0; i < count; i++) bits[i] &= -(int32_t)mask[i];
}

/* w <- sgn(w) (w^4 + t^4)^(1/4) where it is kept and not 0, and the hidden value elsewhere. */
static NOINLINE void enter_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    float *restrict weight = step->values + start;
    const float *restrict hidden = step->hidden + start;
    const uint8_t *restrict mask = step->mask + start;
    float threshold = step->threshold[row * step->each], square = threshold * threshold, fourth = square * square;
    for (int64_t i = 0; i < count; i++) {
        float shown = weight[i], squared = shown * shown, size = sqrtf(sqrtf(squared * squared + fourth));
        weight[i] = (shown != 0) & (mask[i] != 0) ? copysignf(size, shown) : hidden[i];
    }
}

/* The way back; `hidden` keeps what the weights do not show. */
static NOINLINE void leave_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    float *restrict weight = step->values + start, *restrict hidden = step->hidden + start;
    const uint8_t *restrict mask = step->mask + start;
    float threshold = step->threshold[row * step->each], square = threshold * threshold, fourth = square * square;
    float ceiling = step->ceiling[row * step->each];
    for (int64_t i = 0; i < count; i++) {
        float full = weight[i], squared = full * full, rest = squared * squared - fourth;
        rest = rest < 0 ? 0 : rest;
        float shown = mask[i] ? copysignf(sqrtf(sqrtf(rest)), full) : 0;
        float limited = full > ceiling ? ceiling : full;
        limited = limited < -ceiling ? -ceiling : limited;
        hidden[i] = shown == 0 ? (mask[i] ? full : limited) : 0;
        weight[i] = shown;
    }
}

/* Count the signs that a step has changed. */
static NOINLINE void count_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    const float *restrict weight = step->values + start;
    const uint8_t *restrict mask = step->mask + start;
    uint8_t *restrict low = step->low + start, *restrict high = step->high + start;
    int32_t amount = step->amount, fade = step->fade, every = step->all_count;
    for (int64_t i = 0; i < count; i++) {
        int32_t sign = 1 + (weight[i] > 0) - (weight[i] < 0), before = high[i];
        int32_t flips = (before & 63) * 256 + low[i] + ((before >> 6 != sign) & (mask[i] | every)) * amount;
        flips = flips < 16383 ? flips : 16383;
        if (fade) flips = (flips * fade + 32768) >> 16;
        low[i] = (uint8_t)flips;
        high[i] = (uint8_t)(sign * 64 + (flips >> 8));
    }
}

/* The same, and then what follows, while the weights are in the cache. */
static void count_then_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    count_row(step, row, start, count);
    if (step->hidden)
        leave_row(step, row, start, count);
    else if (step->zeroes)
        zero_row(step, row, start, count);
}

/* A gradient at full size: faint ones of pruned weights times `faint`, others of pruned weights times `rate`. */
static inline float restored(float gradient, uint8_t kept, float faint, float rate) {
    float more = gradient * (fabsf(gradient) < 0x1p-66f ? faint : rate);
    more = fabsf(more) < INFINITY ? more : 0;
    return kept ? gradient : more;
}

static NOINLINE void scale_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    float *restrict gradient = step->gradients + start;
    const uint8_t *restrict mask = step->mask + start;
    float faint = step->faint[row * step->each], rate = step->rate;
    for (int64_t i = 0; i < count; i++) gradient[i] = restored(gradient[i], mask[i], faint, rate);
}

/* Add the squares of `count` numbers, a multiple of LANES. */
static inline void add_squares(float *restrict sums, const float *restrict x, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES)
        for (int64_t k = 0; k < LANES; k++) sums[k] += x[i + k] * x[i + k];
}

/* The sum of the squares of what a mask keeps; without a mask, of everything. */
static float squares(const float *x, const uint8_t *mask, int64_t count) {
    float sums[LANES] = {0};
    int64_t start = mask ? 0 : count - count % LANES;
    add_squares(sums, x, start);
    for (; start < count; start += PIECE) {
        int32_t kept[PIECE] = {0};
        int64_t length = count - start < PIECE ? count - start : PIECE;
        const int32_t *bits = (const int32_t *)x + start;
        for (int64_t i = 0; i < length; i++) kept[i] = bits[i] & -(int32_t)(mask ? mask[start + i] : 1);
        add_squares(sums, (const float *)kept, PIECE);
    }
    for (int64_t half = LANES / 2; half > 0; half /= 2)
        for (int64_t k = 0; k < half; k++) sums[k] += sums[k + half];
    return sums[0];
}

/* Restore the gradient of a unit, shorten it to `trust` times the length of its weights, and multiply it with the factor of
   the unit. */
static void limit_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    scale_row(step, row, start, count);
    float *restrict gradient = step->gradients + start;
    float size = sqrtf(squares(step->values + start, 0, count)), length = sqrtf(squares(gradient, 0, count));
    float allowed = step->trust * (size < 1e-3f ? 1e-3f : size);
    float factor = step->unit_factors ? step->unit_factors[row] : step->one_unit_factor;
    if (length > allowed) factor *= allowed / length;
    if (factor == 1) return;
    for (int64_t i = 0; i < count; i++) gradient[i] *= factor;
}

static void square_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    step->sums[row] = squares(step->values + start, step->mask + start, count);
}

/* g <- m (g + sigma eps), or g + m sigma eps. */
static void perturb_row(const Step *step, int64_t row, int64_t start, int64_t count) {
    float *restrict gradient = step->gradients + start;
    const uint8_t *restrict mask = step->mask + start;
    const int32_t *restrict offsets = step->offsets + (start - row * step->columns);
    uint32_t factor = (uint32_t)(step->factors ? step->factors[row] : step->one_factor);
    uint32_t addend = (uint32_t)(step->addends ? step->addends[row] : step->one_addend);
    uint32_t base = (uint32_t)step->starts[row] * factor + addend;
    float sigma = step->sigma ? step->sigma[row] : step->one_sigma;
    int32_t keep_pruned = step->keep_pruned;
    for (int64_t i = 0; i < count; i++) {
        float noise = normal(base + (uint32_t)offsets[i] * factor) * sigma, old = gradient[i];
        gradient[i] = mask[i] ? noise + old : keep_pruned ? old : 0;
    }
}

static void zero(Step *step) { over_rows(step, zero_row, 1); }
static void count(Step *step) { over_rows(step, count_then_row, 1); }
static void enter(Step *step) { over_rows(step, enter_row, 1); }
static void leave(Step *step) { over_rows(step, leave_row, 1); }
static void limit(Step *step) { over_rows(step, limit_row, 0); }
static void scale(Step *step) { over_rows(step, scale_row, 1); }
static void square(Step *step) {
    over_rows(step, square_row, 0);
    step->total = 0;
    for (int64_t row = 0; row < step->rows && step->columns > 0; row++) step->total += step->sums[row];
}
static void perturb(Step *step) { over_rows(step, perturb_row, 1); }
static void normals(Step *step) { over_rows(step, normal_row, 1); }
static void uniforms(Step *step) { over_rows(step, uniform_row, 1); }
static void adam(Step *step) { over_rows(step, adam_row, 1); }
static void variational(Step *step) { over_rows(step, variational_row, 1); }
static void variational_backward(Step *step) { over_rows(step, variational_backward_row, 1); }
static void gate(Step *step) { over_rows(step, gate_row, 1); }
static void gate_backward(Step *step) { over_rows(step, gate_backward_row, 1); }
static void threshold(Step *step) { over_rows(step, threshold_row, 1); }
static void threshold_backward(Step *step) { over_rows(step, threshold_backward_row, 0); }

StepLoop *const INSTRUCTIONS[STEP_LOOPS] = {
    [ZERO] = zero,
    [COUNT] = count,
    [ENTER] = enter,
    [LEAVE] = leave,
    [LIMIT] = limit,
    [SCALE] = scale,
    [SQUARE] = square,
    [PERTURB] = perturb,
    [NORMAL] = normals,
    [UNIFORM] = uniforms,
    [ADAM] = adam,
    [VARIATIONAL] = variational,
    [VARIATIONAL_BACKWARD] = variational_backward,
    [GATE] = gate,
    [GATE_BACKWARD] = gate_backward,
    [THRESHOLD] = threshold,
    [THRESHOLD_BACKWARD] = threshold_backward,
};
