/* memory_copies.h - copies of the state in host memory, taken every checkpoint.memory_every steps. They outlive a
 * killed process. The next host holds those of a lost host. memory_rescue.h restores them.
 *
 * Training waits only for the copy itself, which goes into a mapped file. Then a thread hashes it while training
 * continues. With several hosts it is also sent to the rank at the same place of the next host. There are two slots, so
 * every rank always has one whole copy.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPIES_H
#define TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPIES_H

#include "run/checkpoint/checkpoint.h"

typedef struct MemoryCopies MemoryCopies; /* NULL: no copies, and every call does nothing */

/* Collective, called once before the first step. Allocates all memory, and removes the copies of an earlier job.
 * Returns NULL if checkpoint.memory_every is 0, or, with one warning, if a rank cannot have copies. state is
 * borrowed. */
MemoryCopies *memory_copies_create(const CheckpointState *state);
/* Collective. Waits for the copy in flight, then starts a new one. */
void   memory_copies_start(MemoryCopies *m, int64_t step);
/* Called after every step. memory_copies_next returns 1 if a copy has become whole since the last call, here and on the
 * next host. */
typedef struct {
    int64_t step;
    double  ms;       /* time from the start of the copy until it was whole */
    double  wait_ms;  /* time within ms that training waited */
} MemoryCopied;
int    memory_copies_next(MemoryCopies *m, MemoryCopied *copied);
/* Collective. Invalidates the copies so far, as after a rollback. */
void   memory_copies_forget(MemoryCopies *m);
/* Collective. Removes the copies, because the state is saved or must not be used. */
void   memory_copies_end(MemoryCopies *m);

/* Collective, for a job that has no step to take. Removes the copies of an earlier job. */
void   memory_copies_sweep(const CheckpointState *state);

const char *memory_copies_folder(const MemoryCopies *m); /* folder of this host */
/* Returns the bytes of the files of one rank: two slots of its own, and with several hosts two for a neighbour. */
size_t memory_copies_bytes(const Layout *layout, const OptimizerKind *optimizer, int hosts);

#endif
