/* algorithms.c - the table of algorithms of matrix products (algorithms.h). The table is this file's only state; it
 * belongs to the main thread, like every op. */
#include "layers/algorithms.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static struct {
    MatmulAlgorithm *record; /* owned */
    int              count, room, frozen;
    uint64_t         version;
} algorithms;

int matmul_algorithms_count(void) { return algorithms.count; }
int matmul_algorithms_frozen(void) { return algorithms.frozen; }
uint64_t matmul_algorithms_version(void) { return algorithms.version; }
void matmul_algorithms_freeze(void) { algorithms.frozen = 1; }

MatmulAlgorithm matmul_algorithms_get(int i) {
    CHECK(i >= 0 && i < algorithms.count, "algorithm %d of %d", i, algorithms.count);
    return algorithms.record[i];
}

int matmul_algorithms_find(const char *key) {
    for (int i = 0; i < algorithms.count; i++)
        if (strcmp(algorithms.record[i].key, key) == 0) return i;
    return -1;
}

void matmul_algorithms_set(MatmulAlgorithm a) {
    a.key[ALGORITHM_KEY_ROOM - 1] = 0;
    int at = matmul_algorithms_find(a.key);
    if (at < 0 && algorithms.count == algorithms.room) {
        algorithms.room = algorithms.room ? 2 * algorithms.room : 64;
        algorithms.record = xrealloc(algorithms.record, sizeof a * (size_t)algorithms.room,
                                     "the table of matrix products");
    }
    algorithms.record[at < 0 ? algorithms.count++ : at] = a;
    algorithms.version++;
}

void matmul_algorithms_clear(void) {
    free(algorithms.record);
    algorithms.record = NULL;
    algorithms.count = algorithms.room = algorithms.frozen = 0;
    algorithms.version++;
}
