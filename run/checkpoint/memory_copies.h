/* memory_copies.h - copies of the state in host memory, taken every checkpoint.memory_every steps. They outlive a
 * killed process. The next host keeps a second copy of each, for the case that a host is lost. memory_rescue turns them
 * into an ordinary checkpoint.
 *
 * Training waits only for the copy itself, which goes into a mapped file. Then a thread hashes it while training
 * continues. With several hosts it is also sent to the rank at the same place of the next host. There are two slots, so
 * every rank always has one whole copy.
 *
 * Each host has a folder DIR/train_gpt-UID-HASH-HOST of its own. HASH is the hash of run.dir. HOST separates hosts that
 * share DIR. The folder contains, for rank 2:
 *
 *   rank_00002.0, rank_00002.1               two slots, filled alternately
 *   rank_00002.0.next, rank_00002.1.next     copies of these on the next host
 *
 * A file begins with its head: a manifest as in state.json (manifest.h), which lists only the extents that the rank
 * would write. Zeros follow, up to a multiple of MEMORY_PAGE. Then the bytes of the extents come one after another, to
 * the end of the file. A slot that is being filled begins with a zero.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPIES_H
#define TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPIES_H

#include "run/checkpoint/checkpoint_write.h"

/* --- taking copies ------------------------------------------------------------------------------------------------ */

typedef struct MemoryCopies MemoryCopies; /* copies of this rank's state in host memory. NULL: no copies are made; every
                                           * call then does nothing */

/* Collective, called once before the first step. Allocates all memory for copies of the state, and removes the copies
 * of an earlier job. Returns NULL if checkpoint.memory_every is 0, or, with one warning, if a rank cannot have copies.
 * state is borrowed. */
MemoryCopies *memory_copies_create(const CheckpointState *state);
/* Collective. Waits until the last copy is whole, then copies the state of the run after `step` steps and starts to
 * hash and send the copy. */
void memory_copies_start(MemoryCopies *m, int64_t step);
/* A copy of the state in memory that has become whole, on this host and on the next. memory_copies_next is called after
 * every step. It returns 1 if a copy has become whole since the last call. */
typedef struct {
    int64_t step;
    double  ms;       /* milliseconds from the start of the copy until it was whole on this host and on the next */
    double  wait_ms;  /* part of `ms` in which training waited, in milliseconds */
} MemoryCopied;
int  memory_copies_next(MemoryCopies *m, MemoryCopied *copied);
/* Collective. Marks the copies in memory as invalid, because a rollback made their state obsolete. */
void memory_copies_forget(MemoryCopies *m);
/* Collective. Removes the copies in memory, because their state is saved on the disk or must not be used. */
void memory_copies_end(MemoryCopies *m);

/* Collective, for a job that has no step left to train. Removes the copies in memory of an earlier job. */
void memory_copies_sweep(const CheckpointState *state);

/* Returns the bytes of all copies that one rank needs: two of its own, and with several hosts two for a rank of another
 * host. */
size_t memory_copies_bytes(const Layout *layout, const OptimizerKind *optimizer, int hosts);

/* Place of a rank among the hosts: number of hosts, number of ranks on its own host, its index among them. next: rank
 * that keeps a second copy of its copies, at this place of the next host (-1 with one host). */
typedef struct { int hosts, ranks, place, next; } MemoryHost;
MemoryHost memory_host(Comm *c, int rank);

/* --- reading them after a loss ------------------------------------------------------------------------------------ */

/* Collective, called before anything is read. Rescues the state from copies in memory if they are newer than `newest`,
 * the step of the newest checkpoint on the disk (-1: none). Looks for a step of this run whose copies are whole for all
 * ranks, on their own host or on the next. Writes the newest such step as a checkpoint, which any number of ranks can
 * read. Returns 1 with the folder of that checkpoint in *at (rank 0), or 0 if there is no such step. Warns of each
 * damaged copy. Exit 64 if config and copies do not fit each other. Exit 74 if the checkpoint cannot be written; the
 * copies then stay. */
int memory_rescue(const CheckpointState *state, int64_t newest, StepFolder *at);

/* Writes the file RUN/run_id. Copies in memory name their run by this id. So a folder that was begun again or removed
 * does not use copies of an older run. Only rank 0 calls it. Returns 0 or -errno. */
int memory_write_run_id(const char *run_dir, const char *run_id);

/* --- the file of a copy ------------------------------------------------------------------------------------------- */

enum { MEMORY_SLOTS = 2, MEMORY_PAGE = 4096 };

/* The head (manifest) of a copy in memory, read from its file. */
typedef struct {
    char    *text;        /* text of the manifest; owned */
    size_t   text_bytes;
    Manifest manifest;    /* manifest that was parsed from `text`; owned */
    uint64_t data_offset; /* byte of the copy's file at which the elements of the state begin */
} MemoryCopy;

typedef struct { char text[40]; } MemoryName;
MemoryName memory_name(int rank, int slot, int is_next);
int        memory_is_name(const char *name);
/* Returns the folder for copies in memory on the host of this rank. */
Path memory_folder(const CheckpointState *state);

/* Parses the file of a copy in memory from its first bytes [count]. file_bytes: size of the file. Returns 1 and fills
 * *copy, to be freed by memory_free. Returns 0 with the reason in fault [MANIFEST_FAULT_BYTES] if the copy is not
 * whole. Trusts no value. fault is "" if the file is only being filled. */
int  memory_parse(const char *bytes, uint64_t count, uint64_t file_bytes, MemoryCopy *copy, char *fault);
/* Reads a file and parses it with memory_parse. Free *copy with memory_free. */
int  memory_read(const char *path, MemoryCopy *copy, char *fault);
void memory_free(MemoryCopy *copy);
/* Compares the bytes of every extent (range of file bytes) with its hash, and writes those that match to the save. With
 * save NULL it only compares. Returns 1, or 0 with the fault at the first extent that does not match. */
int  memory_each_extent(const char *path, const MemoryCopy *copy, Save *save, char *fault);

#endif
