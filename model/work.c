/* work.c - see work.h. */
#include "model/work.h"

#include <stdlib.h>

#include "core/error.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns the k-th forward of a stage. Each part in order computes P micro-batches, then the first part the next P. */
static Work forward_at(int64_t P, int64_t V, int64_t k) {
    return (Work){WORK_FORWARD, (int)(k % (P * V) / P), 0, V == 1 ? k : k / (P * V) * P + k % P};
}
static Work backward_at(int64_t P, int64_t V, int64_t k) {
    Work w = forward_at(P, V, k);
    return (Work){WORK_BACKWARD, (int)(V - 1 - w.part), 0, w.micro};
}

/* Returns the number of forwards before the first backward. */
static int64_t warmup(int64_t P, int64_t V, int64_t M, int64_t p) {
    return V == 1 ? least(M, P - 1 - p) : least(M * V, 2 * (P - p - 1) + (V - 1) * P);
}

/* Assigns tapes. A forward uses the lowest free tape of its part; its backward frees it. */
static void give_tapes(WorkList *w, int parts, int64_t micro_batches) {
    int *tape_of = xmalloc(sizeof *tape_of * (size_t)(parts * micro_batches), "a list of works");
    char *taken = xcalloc((size_t)(parts * micro_batches), 1, "a list of works");
    int64_t begun = 0, ended = 0;
    for (int64_t i = 0; i < w->count; i++) {
        Work *one = &w->work[i];
        char *mine = taken + one->part * micro_batches;
        int  *tape = &tape_of[one->part * micro_batches + one->micro];
        if (one->kind == WORK_FORWARD) {
            for (*tape = 0; mine[*tape]; ++*tape) {}
            mine[*tape] = 1;
            if (*tape >= w->tapes[one->part]) w->tapes[one->part] = *tape + 1;
            if (one->part == 0 && one->micro >= begun) begun = one->micro + 1;
        } else {
            mine[*tape] = 0;
            /* the last backward of a micro-batch; micro-batches end in order */
            if (one->part == 0) ended = one->micro + 1;
        }
        one->tape = *tape;
        if (begun - ended > w->micros) w->micros = begun - ended;
        if (i + 1 < w->count && begun + 1 - ended > w->micros && w->work[i + 1].kind == WORK_FORWARD && w->work[i + 1].part == 0)
            w->micros = begun + 1 - ended;
    }
    free(tape_of);
    free(taken);
}

WorkList work_list(int stages, int parts, int64_t micro_batches, int stage) {
    CHECK(stages > 0 && parts > 0 && stage >= 0 && stage < stages && (parts == 1 || micro_batches % stages == 0),
          "stage %d of %d with %d parts, %lld micro-batches",
          stage, stages, parts, (long long)micro_batches);
    int64_t  all = micro_batches * parts, ahead = warmup(stages, parts, micro_batches, stage), forwards = 0, backwards = 0;
    WorkList w = {.count = 2 * all};
    w.work = xmalloc(sizeof *w.work * (size_t)(2 * all + 1), "a list of works");
    w.tapes = xcalloc((size_t)parts, sizeof *w.tapes, "a list of works");
    for (int64_t i = 0; i < w.count; i++) {
        w.work[i] = forwards < all && forwards <= backwards + ahead ? forward_at(stages, parts, forwards++)
                                                                    : backward_at(stages, parts, backwards++);
    }
    give_tapes(&w, parts, micro_batches);
    return w;
}

void work_list_free(WorkList *w) {
    free(w->work);
    free(w->tapes);
    *w = (WorkList){0};
}

double work_idle(int stages, int parts, int64_t micro_batches) {
    double idle = stages - 1, busy = (double)micro_batches * parts;
    return idle / (busy + idle);
}

BlockRange work_blocks(int64_t blocks, int parts, double head_blocks, int part) {
    CHECK(parts > 0 && parts <= blocks && part >= 0 && part < parts, "part %d of %d of %lld blocks", part, parts,
          (long long)blocks);
    if (parts == 1) return (BlockRange){0, blocks};
    int64_t last = (int64_t)((double)(blocks + head_blocks) / parts - head_blocks + 0.5), most = blocks - (parts - 1);
    last = last < 1 ? 1 : last > most ? most : last;
    int64_t others = parts - 1, rest = blocks - last;
    if (part == parts - 1) return (BlockRange){rest, blocks};
    return (BlockRange){rest * part / others, rest * (part + 1) / others};
}
