/* memory_copies.h - copies of the state in host memory, taken every checkpoint.memory_every steps: a killed process
 * leaves them, a lost host's are on its neighbour. memory_rescue.h brings them back.
 *
 * Training waits only for the copy itself, which goes straight into a file's map. Then a thread hashes it, and on more
 * than one host it travels to the rank at the same place of the next host, while training goes on. Two slots: there is
 * always a whole one on every rank.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPIES_H
#define TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPIES_H

#include "run/checkpoint/checkpoint.h"

typedef struct MemoryCopies MemoryCopies; /* NULL: there are none, and every call does nothing */

/* Collective, once, before the first step; takes all memory there will be, and removes what an earlier job has left.
 * NULL where checkpoint.memory_every is 0, and where a rank cannot have them: one warning says why. state is borrowed. */
MemoryCopies *memory_copies_create(const CheckpointState *state);
/* Collective: waits for the one before, then copies. */
void   memory_copies_start(MemoryCopies *m, int64_t step);
/* After every step. 1: a copy has become whole, here and on the next host, since the last call. */
typedef struct {
    int64_t step;
    double  ms;       /* from its start until it was whole */
    double  wait_ms;  /* of them, training waited */
} MemoryCopied;
int    memory_copies_next(MemoryCopies *m, MemoryCopied *copied);
/* Collective: those so far are not to be used, as after a rollback. */
void   memory_copies_forget(MemoryCopies *m);
/* Collective: when the state is saved, or must not be used: removes them. */
void   memory_copies_end(MemoryCopies *m);

/* Collective, of a job that has no step to take: removes what an earlier one has left. */
void   memory_copies_sweep(const CheckpointState *state);

const char *memory_copies_folder(const MemoryCopies *m); /* of this host */
/* Of the files of a rank's copies: two slots of its own, and two of a neighbour's where there is another host. */
size_t memory_copies_bytes(const Layout *layout, const OptimizerKind *optimizer, int hosts);

#endif
