/* Where the pixels of a tensor lie in memory while a kernel works on them.

   A tensor (images, channels, height, width) is packed in groups of `lanes` images. A channel of a group becomes one plane
   for each phase of the stride: pixel (y, x) of the padded image lies in the plane of phase (y % step_y, x % step_x), in
   row y / step_y and column x / step_x, and the same pixel of all images of the group lies side by side. A plane is one
   long row of memory, so a tap of a convolution is one offset for all pixels, and the width of an image is irrelevant. */
#ifndef LAYOUT_H
#define LAYOUT_H

#include "vectors.h"

typedef struct {
    int64_t channels, height, width; /* of an image */
    int64_t step_y, step_x;          /* the phases of a channel */
    int64_t top, left;               /* the padding before the first row and column */
    int64_t rows, columns;           /* of a plane, with the padding */
    int64_t front;                   /* the zeros before the first pixel of a plane */
    int64_t plane;                   /* pixels from one plane to the next */
    int64_t tail;                    /* the zeros after the last plane, and what a block may read beyond them */
} Layout;

/* Whether an image is a vector of channels, as in a linear layer. */
static int is_matrix(const Layout *layout) { return layout->plane == 1 && layout->step_y * layout->step_x == 1; }

/* The floats of a packed group. */
static int64_t packed_size(const Layout *layout, int64_t lanes) {
    return (layout->channels * layout->step_y * layout->step_x * layout->plane + layout->tail) * lanes;
}

static inline void transpose_four(float *to, int64_t to_row, const float *from, int64_t from_row) {
    Four a = LOAD_FOUR(from), b = LOAD_FOUR(from + from_row);
    Four c = LOAD_FOUR(from + 2 * from_row), d = LOAD_FOUR(from + 3 * from_row);
    Four ab = MIX(Four, a, b, 0, 4, 1, 5), cd = MIX(Four, c, d, 0, 4, 1, 5);
    Four ab_high = MIX(Four, a, b, 2, 6, 3, 7), cd_high = MIX(Four, c, d, 2, 6, 3, 7);
    STORE_FOUR(to, MIX(Four, ab, cd, 0, 1, 4, 5));
    STORE_FOUR(to + to_row, MIX(Four, ab, cd, 2, 3, 6, 7));
    STORE_FOUR(to + 2 * to_row, MIX(Four, ab_high, cd_high, 0, 1, 4, 5));
    STORE_FOUR(to + 3 * to_row, MIX(Four, ab_high, cd_high, 2, 3, 6, 7));
}

#if defined(__AVX2__)
static inline void transpose_eight(float *to, int64_t to_row, const float *from, int64_t from_row) {
    Eight rows[8], pairs[8], fours[8];
    for (int i = 0; i < 8; i++) rows[i] = *(const LooseEight *)(from + i * from_row);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = MIX(Eight, rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = MIX(Eight, rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = MIX(Eight, pairs[i + j], pairs[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            fours[i + 2 * j + 1] = MIX(Eight, pairs[i + j], pairs[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        *(LooseEight *)(to + i * to_row) = MIX(Eight, fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(LooseEight *)(to + (i + 4) * to_row) = MIX(Eight, fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
#endif

/* to[j][i] = from[i][j] */
static void transpose(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows, int64_t columns) {
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + 8 <= rows; i += 8) {
        int64_t j = 0;
        for (; j + 8 <= columns; j += 8)
            transpose_eight(to + j * to_row + i, to_row, from + i * from_row + j, from_row);
        for (; j + 4 <= columns; j += 4)
            for (int64_t k = i; k < i + 8; k += 4)
                transpose_four(to + j * to_row + k, to_row, from + k * from_row + j, from_row);
        for (; j < columns; j++)
            for (int64_t k = i; k < i + 8; k++) to[j * to_row + k] = from[k * from_row + j];
    }
#endif
    for (; i + 4 <= rows; i += 4) {
        int64_t j = 0;
        for (; j + 4 <= columns; j += 4)
            transpose_four(to + j * to_row + i, to_row, from + i * from_row + j, from_row);
        for (; j < columns; j++)
            for (int64_t k = i; k < i + 4; k++) to[j * to_row + k] = from[k * from_row + j];
    }
    for (; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * to_row + i] = from[i * from_row + j];
}

/* Rows are short: calls of memcpy and memset would take longer than the work. The last vector ends where the row ends. */
INLINE void copy(float *to, const float *from, int64_t count) {
    if (count >= WIDTH) {
        for (int64_t i = 0; i + WIDTH < count; i += WIDTH) STORE(to + i, LOAD(from + i));
        STORE(to + count - WIDTH, LOAD(from + count - WIDTH));
    } else if (count >= 4) {
        for (int64_t i = 0; i + 4 < count; i += 4) STORE_FOUR(to + i, LOAD_FOUR(from + i));
        STORE_FOUR(to + count - 4, LOAD_FOUR(from + count - 4));
    } else {
        for (int64_t i = 0; i < count; i++) to[i] = from[i];
    }
}

INLINE void clear(float *to, int64_t count) {
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) STORE(to + i, ALL(0));
    for (; i < count; i++) to[i] = 0;
}

static int64_t ceiling(int64_t a, int64_t b) { return a <= 0 ? 0 : b == 1 ? a : (a + b - 1) / b; }

/* The rows and columns of a plane that belong to the image, and where the first of them lies in a channel of it. */
typedef struct {
    int64_t first_row, last_row, first_column, last_column;
    int64_t start, stride;
} Inside;

static Inside inside(const Layout *layout, int64_t phase) {
    int64_t y_phase = phase / layout->step_x, x_phase = phase % layout->step_x;
    Inside part = {
        ceiling(layout->top - y_phase, layout->step_y),
        least(ceiling(layout->top + layout->height - y_phase, layout->step_y), layout->rows),
        ceiling(layout->left - x_phase, layout->step_x),
        least(ceiling(layout->left + layout->width - x_phase, layout->step_x), layout->columns),
        0,
        layout->step_y * layout->width,
    };
    int64_t y = part.first_row * layout->step_y + y_phase - layout->top;
    part.start = y * layout->width + part.first_column * layout->step_x + x_phase - layout->left;
    return part;
}

/* The first channel whose plane of this phase is not before a plane. */
static int64_t first_channel(int64_t plane, int64_t phase, int64_t phases) { return ceiling(plane - phase, phases); }

static void pack_plane(float *to, const float *channel, const Layout *layout, int64_t lanes, Inside part) {
    int64_t step = layout->step_x, size = layout->channels * layout->height * layout->width;
    int64_t count = part.last_column - part.first_column;
    int64_t done = 0; /* pixels of the plane that are written */
    for (int64_t row = part.first_row; count > 0 && row < part.last_row; row++) {
        int64_t start = layout->front + row * layout->columns + part.first_column;
        const float *from = channel + part.start + (row - part.first_row) * part.stride;
        float *pixels = to + start * lanes;
        clear(to + done * lanes, (start - done) * lanes);
        done = start + count;
        if (lanes == 1 && step == 1)
            copy(pixels, from, count);
        else if (lanes == 1)
            for (int64_t i = 0; i < count; i++) pixels[i] = from[i * step];
        else if (step == 1)
            transpose(pixels, lanes, from, size, lanes, count);
        else
            for (int64_t i = 0; i < count; i++)
                for (int64_t lane = 0; lane < lanes; lane++) pixels[i * lanes + lane] = from[lane * size + i * step];
    }
    clear(to + done * lanes, (layout->plane - done) * lanes);
}

/* Pack the planes [first, last) of the images that start at `images`, zeros around them included. */
static void pack(float *packed, const float *images, const Layout *layout, int64_t lanes, int64_t first, int64_t last) {
    int64_t phases = layout->step_y * layout->step_x, planes = layout->channels * phases;
    if (is_matrix(layout))
        transpose(packed + first * lanes, lanes, images + first, layout->channels, lanes, last - first);
    else
        for (int64_t phase = 0; phase < phases; phase++) {
            Inside part = inside(layout, phase);
            for (int64_t channel = first_channel(first, phase, phases); channel * phases + phase < last; channel++)
                pack_plane(packed + (channel * phases + phase) * layout->plane * lanes,
                           images + channel * layout->height * layout->width, layout, lanes, part);
        }
    if (last == planes) clear(packed + planes * layout->plane * lanes, layout->tail * lanes);
}

/* Write the pixels [start, start + count) of a plane to the channel of the images that starts at `channel`, without the
   padding. `part` is what is inside of the image in planes of that phase, and `row` the row of pixel `start`. */
INLINE void unpack(float *channel, const float *pixels, const Layout *layout, int64_t lanes, Inside part, int64_t row,
                   int64_t start, int64_t count) {
    int64_t step = layout->step_x, size = layout->channels * layout->height * layout->width;
    if (row < part.first_row) row = part.first_row;
    float *to_row = channel + part.start + (row - part.first_row) * part.stride;
    for (int64_t before = row * layout->columns - start; row < part.last_row && before < count; row++) {
        int64_t first = most(part.first_column, -before), last = least(part.last_column, count - before);
        float *to = to_row + (first - part.first_column) * step;
        const float *from = pixels + (before + first) * lanes;
        before += layout->columns;
        to_row += part.stride;
        if (first >= last) continue;
        if (lanes == 1 && step == 1)
            copy(to, from, last - first);
        else if (lanes == 1)
            for (int64_t i = 0; i < last - first; i++) to[i * step] = from[i];
        else if (step == 1)
            transpose(to, size, from, lanes, last - first, lanes);
        else
            for (int64_t i = 0; i < last - first; i++)
                for (int64_t lane = 0; lane < lanes; lane++) to[lane * size + i * step] = from[i * lanes + lane];
    }
}

/* Write `rows` whole rows of a matrix to images that are vectors of `channels` numbers. */
static void unpack_rows(float *images, const float *rows_of_images, int64_t channels, int64_t lanes, int64_t rows) {
    transpose(images, channels, rows_of_images, lanes, rows, lanes);
}

#endif
