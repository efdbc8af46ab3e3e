/* algorithms.c - the table of algorithms of matrix products (algorithms.h). */
#include "layers/algorithms.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

MatmulAlgorithms matmul_algorithms;

int matmul_algorithms_find(const char *key) {
    for (int i = 0; i < matmul_algorithms.count; i++)
        if (strcmp(matmul_algorithms.record[i].key, key) == 0) return i;
    return -1;
}

void matmul_algorithms_set(MatmulAlgorithm a) {
    MatmulAlgorithms *t = &matmul_algorithms;
    a.key[ALGORITHM_KEY_ROOM - 1] = 0;
    int at = matmul_algorithms_find(a.key);
    if (at < 0) t->record = xgrow(t->record, t->count, sizeof a, "the table of matrix products");
    t->record[at < 0 ? t->count++ : at] = a;
    t->version++;
}

void matmul_algorithms_clear(void) {
    free(matmul_algorithms.record);
    matmul_algorithms = (MatmulAlgorithms){.version = matmul_algorithms.version + 1};
}
