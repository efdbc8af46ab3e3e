/* leases.h - which samples of the one global order are whose: each counts once in the server's weights, whatever comes
 * and goes.
 *
 * A lease is a range of samples that an island trains on in a round. RUN/leases.jsonl has a line for each that is given,
 * done or returned:
 *   {"lease":4,"first":960,"samples":240,"island":"0f1e2d3c4b5a6978","round":2,"is":"given","used":0}
 * done: the first `used` samples count in the weights of that round, the others are free again; returned: all of the
 * line's samples are. The lowest free samples are given first, then new ones. A line is on the disk before an island
 * hears of it (leases_sync). A server that starts again at the round of its checkpoint takes back what was given, and
 * what was done since.
 */
#ifndef TRAIN_GPT_RUN_OUTER_LEASES_H
#define TRAIN_GPT_RUN_OUTER_LEASES_H

#include "run/outer/messages.h"

typedef struct { int64_t first, samples; } SampleRange;

typedef struct {
    int64_t     number;
    SampleRange range;
    char        island[ISLAND_ID_BYTES];
    int64_t     round;     /* in which it was given; of a done one, in which it counted */
    int         is_done;
} Lease;

typedef struct {
    char         path[4096];
    int          fd;
    uint64_t     bytes;    /* of whole lines */
    int64_t      next_number, next_sample;
    Lease       *given;    /* owned [givens]: with islands now; while the file is read, the done ones, too */
    int64_t      givens;
    SampleRange *free;     /* owned [frees]: ascending, none touches the next */
    int64_t      frees;
    int          is_dirty; /* lines that are not synced */
} Leases;

/* Opens, or makes, the file of a run whose weights are those of `round`, and which has had next_sample samples at most,
 * if the file is lost. A torn last line is cut. Ends the program: 65 where another line is none that fits, 74. */
Leases leases_open(const char *path, int64_t round, int64_t next_sample);
void   leases_close(Leases *l);

/* The next range of at most `samples`; fewer where a lease's rest is free. */
Lease  leases_give(Leases *l, int64_t samples, const char *island, int64_t round);
/* used 0: the same as leases_return. */
void   leases_done(Leases *l, int64_t number, int64_t used, int64_t round);
void   leases_return(Leases *l, int64_t number);
void   leases_sync(Leases *l); /* to the disk, if there are new lines. Exit 74 */

#endif
