/* The functions that are called from Python. */
#include "kernels.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "parallel.h"

/* layer.c, compiled for each instruction set. */
extern const Kernels plain;
#ifdef HAS_X86
extern const Kernels avx2, avx512;
#endif

static const struct {
    const char *name;
    const Kernels *kernels;
} all[] = {
#ifdef HAS_X86
    {"avx512", &avx512},
    {"avx2", &avx2},
#endif
    {"plain", &plain},
};

static int runs_here(const char *name) {
#ifdef HAS_X86
    __builtin_cpu_init();
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx2")) return has_avx2;
    if (!strcmp(name, "avx512"))
        return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
    return !strcmp(name, "plain");
}

static const Kernels *chosen = NULL;

/* Choose an instruction set by name, or the best one if that is null; return its name, or null if it does not run here. */
const char *flipout_instructions(const char *name) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (runs_here(all[i].name) && (name == NULL || !strcmp(name, all[i].name))) {
            chosen = all[i].kernels;
            return all[i].name;
        }
    return NULL;
}

int64_t flipout_scratch_size(const Call *call) { return chosen->scratch_size(call); }

void flipout_run(const Call *call) { chosen->run(call); }

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
