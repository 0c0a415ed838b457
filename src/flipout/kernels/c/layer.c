/* A sparse layer: its output, the gradient of its input, and the gradient of the weights that are kept.

   All three are sums over the same pairs of planes. The output adds planes of the input into planes of the output. The
   gradient of the input adds planes of the output's gradient into planes of the input, with the transposed weights. The
   gradient of a weight is the dot product of the two planes that it connects.

   This file is compiled for each instruction set, and exports one symbol, whose name is INSTRUCTIONS. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels.h"
#include "layout.h"
#include "parallel.h"
#include "products.h"

enum {
    MAX_LANES = 256,
    TILE = 1536, /* floats of a plane that are computed before they are written: they stay in the nearest cache */
    BAND = 16,   /* rows of a matrix that are computed before they are written, so that whole lines of memory are */
    PARTS = 4    /* parts of the work on one group, for each thread */
};

/* The memory of one chunk of the images: the packed group, and the gradients of the weights. */
typedef struct {
    float *input, *output, *sums, *row_sums;
} Memory;

typedef struct {
    int64_t first, last;
} Range;

static int64_t planes_of(const Layout *layout) { return layout->channels * layout->step_y * layout->step_x; }
static int64_t groups_of(const Size *size) { return (size->images + size->lanes - 1) / size->lanes; }
static Range part(int64_t count, int64_t number, int64_t parts) {
    return (Range){number * count / parts, (number + 1) * count / parts};
}

static int64_t lanes_of(const Size *size, int64_t group) {
    return least(size->lanes, size->images - group * size->lanes);
}

static int64_t first_of(const Size *size, const Layout *layout, int64_t group) {
    return group * size->lanes * layout->channels * layout->height * layout->width;
}

static int64_t tiles_of(int64_t length, int64_t lanes) {
    int64_t tile = TILE / lanes;
    return (length + tile - 1) / tile;
}

static Weights weights_of(const Matrix *matrix, int64_t row) {
    int64_t start = matrix->starts[row];
    return (Weights){matrix->offsets + start, matrix->values + start, matrix->starts[row + 1] - start};
}

static int64_t weights_in(const Call *call) { return call->forward.starts[call->size->output.channels]; }

static int64_t longest_row(const Call *call) {
    int64_t longest = 0;
    for (int64_t row = 0; row < call->size->output.channels; row++) {
        int64_t count = weights_of(&call->forward, row).count;
        if (count > longest) longest = count;
    }
    return longest;
}

static int64_t memory_size(const Call *call) {
    const Size *size = call->size;
    int64_t floats = packed_size(&size->input, size->lanes);
    if (call->output_gradient) floats += packed_size(&size->output, size->lanes);
    if (call->weight_gradient) floats += weights_in(call) + longest_row(call);
    return (floats + 15) / 16 * 16; /* whole lines of the cache, so that no two threads write to one */
}

static Memory memory_of(const Call *call, int64_t chunk) {
    const Size *size = call->size;
    float *start = call->scratch + chunk * memory_size(call);
    float *output = start + packed_size(&size->input, size->lanes);
    float *sums = output + (call->output_gradient ? packed_size(&size->output, size->lanes) : 0);
    return (Memory){start, output, sums, sums + (call->weight_gradient ? weights_in(call) : 0)};
}

/* Add `addend` to `count` numbers of each image, and clip the sums, just after they were written. */
static void add_to_channels(float *images, const float *addend, const Layout *layout, int64_t lanes, int64_t count,
                            int clip) {
    int64_t size = layout->channels * layout->height * layout->width;
    for (int64_t lane = 0; lane < lanes; lane++)
        for (int64_t i = lane * size; i < lane * size + count; i++) {
            float sum = images[i] + addend[i];
            images[i] = clip && sum < 0 ? 0 : sum;
        }
}

/* Write rows of the product of a matrix with packed planes to the images that start at `images`. */
static void multiply(float *images, const float *packed, const Layout *layout, const Matrix *matrix, int64_t lanes,
                     const float *bias, const float *addend, int clip, Range rows) {
    int64_t phases = layout->step_y * layout->step_x;
    if (is_matrix(layout)) {
        float band[BAND * MAX_LANES + WIDTH];
        for (int64_t start = rows.first; start < rows.last; start += BAND) {
            int64_t end = least(start + BAND, rows.last);
            for (int64_t row = start; row < end; row++)
                row_product(band + (row - start) * lanes, packed, weights_of(matrix, row), lanes, lanes,
                            bias ? bias[row] : 0, clip && !addend);
            unpack_rows(images + start, band, layout->channels, lanes, end - start);
            if (addend) add_to_channels(images + start, addend + start, layout, lanes, end - start, clip);
        }
        return;
    }
    float pixels[TILE + WIDTH];
    int64_t columns = layout->columns, channel_size = layout->height * layout->width;
    for (int64_t phase = 0; phase < phases; phase++) {
        Inside image = inside(layout, phase);
        int64_t begin = image.first_row * columns + image.first_column;
        int64_t length = (image.last_row - 1) * columns + image.last_column - begin, tiles = tiles_of(length, lanes);
        for (int64_t number = 0; number < tiles; number++) {
            Range tile = part(length, number, tiles);
            int64_t start = begin + tile.first, count = tile.last - tile.first, tile_row = start / columns;
            int64_t channel = first_channel(rows.first, phase, phases);
            for (int64_t row = channel * phases + phase; row < rows.last; row += phases, channel++) {
                float *to = images + channel * channel_size;
                row_product(pixels, packed + start * lanes, weights_of(matrix, row), lanes, count * lanes,
                            bias ? bias[channel] : 0, clip && !addend);
                unpack(to, pixels, layout, lanes, image, tile_row, start, count);
                if (addend && number == tiles - 1)
                    add_to_channels(to, addend + channel * channel_size, layout, lanes, channel_size, clip);
            }
        }
    }
}

/* The gradient of a weight over the pixels of the output alone. Between the rows of an image the gradient is zero, but an
   infinite input makes the product NaN there. */
static float exact_dot(const float *gradient, const float *input, const Layout *output, int64_t lanes, Range pixels) {
    float sum = 0;
    for (int64_t pixel = pixels.first; pixel < pixels.last; pixel++)
        if (pixel % output->columns < output->width)
            for (int64_t i = 0; i < lanes; i++) sum += gradient[pixel * lanes + i] * input[pixel * lanes + i];
    return sum;
}

/* Add the gradients of the weights of some rows over one group of images. */
static void correlate(const Memory *memory, const Size *size, const Matrix *matrix, int64_t lanes, Range rows,
                      float *row_sums) {
    const Layout *output = &size->output;
    int64_t tiles = tiles_of(size->length, lanes);
    for (int64_t number = 0; number < tiles; number++) {
        Range tile = part(size->length, number, tiles);
        for (int64_t row = rows.first; row < rows.last; row++) {
            const float *plane = memory->output + (row * output->plane + output->front) * lanes;
            Weights weights = weights_of(matrix, row);
            dot_products(row_sums, plane + tile.first * lanes, memory->input + tile.first * lanes, weights, lanes,
                           (tile.last - tile.first) * lanes);
            float *sums = memory->sums + matrix->starts[row];
            for (int64_t k = 0; k < weights.count; k++) {
                const float *input = memory->input + weights.offsets[k] * lanes;
                sums[k] += isfinite(row_sums[k]) ? row_sums[k] : exact_dot(plane, input, output, lanes, tile);
            }
        }
    }
}

/* The stages of the work on one group, each on a part of it. */

static void pack_input(const Call *call, const Memory *memory, int64_t group, int64_t number, int64_t parts) {
    const Layout *layout = &call->size->input;
    Range planes = part(planes_of(layout), number, parts);
    pack(memory->input, call->input + first_of(call->size, layout, group), layout, lanes_of(call->size, group),
         planes.first, planes.last);
}

static void pack_gradient(const Call *call, const Memory *memory, int64_t group, int64_t number, int64_t parts) {
    const Layout *layout = &call->size->output;
    Range planes = part(planes_of(layout), number, parts);
    pack(memory->output, call->output_gradient + first_of(call->size, layout, group), layout,
         lanes_of(call->size, group), planes.first, planes.last);
}

static void find_output(const Call *call, const Memory *memory, int64_t group, int64_t number, int64_t parts) {
    const Layout *layout = &call->size->output;
    multiply(call->output + first_of(call->size, layout, group), memory->input, layout, &call->forward,
             lanes_of(call->size, group), call->bias,
             call->addend ? call->addend + first_of(call->size, layout, group) : NULL, (int)call->clip,
             part(layout->channels, number, parts));
}

static void find_input_gradient(const Call *call, const Memory *memory, int64_t group, int64_t number, int64_t parts) {
    const Layout *layout = &call->size->input;
    multiply(call->input_gradient + first_of(call->size, layout, group), memory->output, layout, &call->transposed,
             lanes_of(call->size, group), NULL, NULL, 0, part(planes_of(layout), number, parts));
}

static void add_weight_gradient(const Call *call, const Memory *memory, int64_t group, int64_t number, int64_t parts) {
    Range rows = part(call->size->output.channels, number, parts);
    float *row_sums = memory->row_sums;
    if (parts > 1) row_sums = memory->sums + weights_in(call) + number * longest_row(call);
    correlate(memory, call->size, &call->forward, lanes_of(call->size, group), rows, row_sums);
}

typedef void Stage(const Call *call, const Memory *memory, int64_t group, int64_t number, int64_t parts);

static int stages_of(const Call *call, Stage **stages) {
    int count = 0;
    if (call->output || call->weight_gradient) stages[count++] = pack_input;
    if (call->output) stages[count++] = find_output;
    if (call->output_gradient) stages[count++] = pack_gradient;
    if (call->input_gradient) stages[count++] = find_input_gradient;
    if (call->weight_gradient) stages[count++] = add_weight_gradient;
    return count;
}

/* All stages for a chunk of the groups: each thread works on images of its own, which stay in its cache. */
static void run_chunk(const void *context, int64_t chunk) {
    const Call *call = context;
    Memory memory = memory_of(call, chunk);
    Stage *stages[5];
    int count = stages_of(call, stages);
    if (call->weight_gradient) memset(memory.sums, 0, (size_t)weights_in(call) * sizeof(float));
    Range groups = part(groups_of(call->size), chunk, call->size->threads);
    for (int64_t group = groups.first; group < groups.last; group++)
        for (int i = 0; i < count; i++) stages[i](call, &memory, group, 0, 1);
}

typedef struct {
    const Call *call;
    Memory memory;
    Stage *stage;
    int64_t group, parts;
} Step;

static void run_part(const void *context, int64_t number) {
    const Step *step = context;
    step->stage(step->call, &step->memory, step->group, number, step->parts);
}

/* Stage by stage for one group after another: all threads work on the same images. */
static void run_together(const Call *call) {
    Stage *stages[5];
    int count = stages_of(call, stages);
    Memory memory = memory_of(call, 0);
    if (call->weight_gradient) memset(memory.sums, 0, (size_t)weights_in(call) * sizeof(float));
    for (int64_t group = 0; group < groups_of(call->size); group++)
        for (int i = 0; i < count; i++) {
            Step step = {call, memory, stages[i], group, PARTS * call->size->threads};
            in_parallel(run_part, &step, step.parts, call->size->threads);
        }
}

/* Whether each thread gets groups of its own: if there are enough of them for all threads to end at about the same time. */
static int is_chunked(const Size *size) {
    int64_t groups = groups_of(size);
    return size->threads == 1 || groups % size->threads == 0 || groups >= 4 * size->threads;
}

static int64_t scratch_size(const Call *call) {
    if (is_chunked(call->size)) return call->size->threads * memory_size(call);
    return memory_size(call) + (call->weight_gradient ? PARTS * call->size->threads * longest_row(call) : 0);
}

/* Write the gradients of the kept weights to their places in the dense weight. The others stay as they are. */
static void scatter_weight_gradient(const Call *call, int64_t chunks) {
    const float *sums = memory_of(call, 0).sums;
    int64_t weights = weights_in(call), stride = memory_size(call);
    for (int64_t k = 0; k < weights; k++) {
        float sum = sums[k];
        for (int64_t chunk = 1; chunk < chunks; chunk++) sum += sums[chunk * stride + k];
        call->weight_gradient[call->positions[k]] = sum;
    }
}

static void run(const Call *call) {
    int chunked = is_chunked(call->size);
    if (chunked)
        in_parallel(run_chunk, call, call->size->threads, call->size->threads);
    else
        run_together(call);
    if (call->weight_gradient) scatter_weight_gradient(call, chunked ? call->size->threads : 1);
}

const Kernels INSTRUCTIONS = {scratch_size, run};
