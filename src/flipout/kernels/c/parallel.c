#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { MAX_THREADS = 256 };

static Team *team = NULL;

void set_team(Team *given) { team = given; }

typedef struct {
    Work *work;
    const void *context;
    int64_t items;
    atomic_llong next;
} Queue;

static void take_items(void *data) {
    Queue *queue = data;
    for (long long item; (item = atomic_fetch_add(&queue->next, 1)) < queue->items;) queue->work(queue->context, item);
}

static void *take_items_in_thread(void *data) {
    take_items(data);
    return NULL;
}

void in_parallel(Work *work, const void *context, int64_t items, int64_t threads) {
    Queue queue = {work, context, items, 0};
    if (threads > items) threads = items;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads <= 1) {
        take_items(&queue);
    } else if (team != NULL) {
        team(take_items, &queue, (unsigned)threads, 0);
    } else {
        pthread_t others[MAX_THREADS];
        int64_t started = 0; /* where no thread can be started, this one does the work */
        while (started < threads - 1 && !pthread_create(&others[started], NULL, take_items_in_thread, &queue)) started++;
        take_items(&queue);
        while (started > 0) pthread_join(others[--started], NULL);
    }
}
