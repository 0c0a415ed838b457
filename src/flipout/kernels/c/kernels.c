/* The functions that are called from Python. */
#include "kernels.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "norm.h"
#include "parallel.h"
#include "step.h"

/* layer.c, step.c and norm.c, compiled for each instruction set. */
extern const Kernels plain;
extern StepLoop *const plain_step[];
extern NormLoop *const plain_norm;
#ifdef HAS_X86
extern const Kernels avx2, avx512;
extern StepLoop *const avx2_step[], *const avx512_step[];
extern NormLoop *const avx2_norm, *const avx512_norm;
#endif

static const struct {
    const char *name;
    const Kernels *kernels;
    StepLoop *const *loops;
    NormLoop *const *norm;
} all[] = {
    {"plain", &plain, plain_step, &plain_norm},
#ifdef HAS_X86
    {"avx2", &avx2, avx2_step, &avx2_norm},
    {"avx512", &avx512, avx512_step, &avx512_norm},
#endif
};

static const Kernels *chosen = &plain;
static StepLoop *const *chosen_loops = plain_step;
static NormLoop *const *chosen_norm = &plain_norm;

/* Choose an instruction set by name; return whether the library was built for it. The caller knows what the machine has. */
int flipout_choose(const char *name) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i].name)) {
            chosen = all[i].kernels;
            chosen_loops = all[i].loops;
            chosen_norm = all[i].norm;
            return 1;
        }
    return 0;
}

int64_t flipout_scratch_size(const Call *call) { return chosen->scratch_size(call); }

void flipout_run(const Call *call) { chosen->run(call); }

/* Run one of the loops around a step, by its number in step.h. */
void flipout_step(Step *step, int loop) { chosen_loops[loop](step); }

/* The output of a batch norm, or its gradients. */
void flipout_norm(const Norm *norm) { (*chosen_norm)(norm); }

/* values[k] = dense[positions[k]]; return whether all are finite. */
int flipout_gather(float *values, const float *dense, const int64_t *positions, int64_t count) {
    int finite = 1;
    for (int64_t k = 0; k < count; k++) {
        values[k] = dense[positions[k]];
        finite &= isfinite(values[k]) != 0;
    }
    return finite;
}

void flipout_team(Team *team) { set_team(team); }

/* The sizes of the structures, so that a library of another version is recognized. */
int flipout_size_of(int number) {
    static const int sizes[] = {sizeof(Size), sizeof(Call), sizeof(Step), sizeof(Norm)};
    return sizes[number];
}
