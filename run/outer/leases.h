/* leases.h - which island has which samples of the one global order. Each sample counts once in the server's weights,
 * whichever islands join and leave.
 *
 * A lease is a range of samples that an island trains on in a round. RUN/leases.jsonl has a line for each lease that is
 * given, done or returned:
 *   {"lease":4,"first":960,"samples":240,"island":"0f1e2d3c4b5a6978","round":2,"is":"given","used":0}
 * "done": the first `used` samples count in the weights of that round, and the others are free again. "returned": all
 * samples of the line are free again. The lowest free samples are given first, then new ones. A line is on disk before
 * an island receives the lease (leases_sync). A server that restarts at the round of its checkpoint takes back every
 * lease that was given, and every lease done since that round.
 */
#ifndef TRAIN_GPT_RUN_OUTER_LEASES_H
#define TRAIN_GPT_RUN_OUTER_LEASES_H

#include "run/outer/messages.h"

typedef struct { int64_t first, samples; } SampleRange;

typedef struct {
    int64_t     number;    /* from 0, in the order in which leases are given */
    SampleRange range;     /* samples of the lease; once it is done, those that counted */
    char        island[ISLAND_ID_BYTES]; /* id of the island that has it */
    int64_t     round;     /* the round that it was given in; once it is done, the round that it counted in */
    int         is_done;   /* 1 if the samples count in x */
} Lease;

typedef struct {
    char         path[4096]; /* RUN/leases.jsonl */
    int          fd;       /* open for appending */
    uint64_t     bytes;    /* bytes of the file up to its last complete line */
    int64_t      next_number, next_sample; /* number of the next lease; first sample that was never given */
    Lease       *given;    /* [givens] leases that islands have; while the file is read, the done ones too; owned */
    int64_t      givens;   /* leases in given */
    SampleRange *free;     /* [frees] free ranges, ascending, no two adjacent; owned */
    int64_t      frees;    /* ranges in free */
    int          is_dirty; /* 1 if lines were written since the last sync */
} Leases;

/* Opens or creates the leases file of a run whose weights are those of `round`. next_sample is the first sample that
 * was never given, used if the file is lost. Cuts an incomplete last line. Ends the program with exit 65 if another
 * line does not fit those before it. Exit 74 if the file cannot be read or written. */
Leases leases_open(const char *path, int64_t round, int64_t next_sample);
void   leases_close(Leases *l);

/* Gives the next range of at most `samples`. It is shorter if the lowest free range is. */
Lease  leases_give(Leases *l, int64_t samples, const char *island, int64_t round);
/* Records that the first `used` samples of the lease count in `round`. With used 0 it calls leases_return. */
void   leases_done(Leases *l, int64_t number, int64_t used, int64_t round);
void   leases_return(Leases *l, int64_t number);
void   leases_sync(Leases *l); /* writes new lines to disk; exit 74 if that fails */

#endif
