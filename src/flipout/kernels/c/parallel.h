/* Work on several threads. */
#ifndef PARALLEL_H
#define PARALLEL_H

#include <stdint.h>

typedef void Work(const void *context, int64_t item);

/* GOMP_parallel of the OpenMP library that torch has loaded, so that its threads do the work; threads that wait there for
   torch would otherwise compete with ours. NULL: threads of our own, for each call. */
typedef void Team(void (*body)(void *), void *data, unsigned threads, unsigned flags);
void set_team(Team *team);

/* Call work(context, item) for each item in [0, items), in any order, on at most `threads` threads. */
void in_parallel(Work *work, const void *context, int64_t items, int64_t threads);

#endif
