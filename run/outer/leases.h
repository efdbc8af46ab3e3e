/* leases.h - decides which island (training job) trains on which samples of the one global order, and keeps the state
 * of each island. Opens no sockets. Each sample counts once in the server's weights, whichever islands join and
 * leave. */
#ifndef TRAIN_GPT_RUN_OUTER_LEASES_H
#define TRAIN_GPT_RUN_OUTER_LEASES_H

#include "run/config/config.h"
#include "run/outer/messages.h"
#include "run/outer/rule.h"

/* --- leases --------------------------------------------------------------------------------------------------------
 * A lease is a range of samples that an island trains on in a round. RUN/leases.jsonl has a line for each lease that is
 * given, done or returned:
 *   {"lease":4,"first":960,"samples":240,"island":"0f1e2d3c4b5a6978","round":2,"is":"given","used":0}
 * "done": the first `used` samples count in the weights of that round, and the others are free again. "returned": all
 * samples of the line are free again. The lowest free samples are given first, then new ones. A line is on disk before
 * an island receives the lease (leases_sync). A server that restarts at the round of its checkpoint takes back every
 * lease that was given, and every lease done since that round. */

typedef struct { int64_t first, samples; } SampleRange;

typedef struct {
    int64_t     number;    /* number of the lease (a range of samples given to a training job): from 0, in the order in
                            * which leases are given */
    SampleRange range;     /* samples of the lease; once it is done, only those whose training is in the server's
                            * weights */
    char        island[ISLAND_ID_BYTES]; /* id of the training job that has the lease */
    int64_t     round;     /* the round that the lease was given in; once it is done, the round that its samples counted
                            * in */
    int         is_done;   /* 1 if the samples of the lease count in the weights of the server */
} Lease;

typedef struct {
    char         path[4096]; /* path of leases.jsonl in the run folder */
    int          fd;       /* descriptor of the leases file, open for appending */
    uint64_t     bytes;    /* bytes of the leases file up to its last complete line */
    int64_t      next_number, next_sample; /* number of the next lease; index of the first sample that was never in a
                                            * lease */
    Lease       *given;    /* [givens] leases (ranges of samples) that training jobs have; owned. While leases_open
                            * reads the file, leases that are done, too */
    int64_t      givens;   /* number of leases in `given` */
    SampleRange *free;     /* [frees] ranges of samples that were returned, ascending, no two adjacent; owned */
    int64_t      frees;    /* number of ranges in `free` */
    int          is_dirty; /* 1 if lines of the leases file were written that leases_sync has not synced to disk */
} Leases;

/* Opens or creates the leases file of a run whose weights are those of `round`. next_sample is the first sample that
 * was never given; it is used if the file is lost. Cuts an incomplete last line. Ends the program with exit 65 if
 * another line contradicts those before it. Exit 74 if the file cannot be read or written. */
Leases leases_open(const char *path, int64_t round, int64_t next_sample);
void   leases_close(Leases *l);

/* Gives an island a lease of `samples` samples that were never given, for this round. If samples are free that were
 * given before, gives the lowest free range instead, at most `samples` of it. */
Lease  leases_give(Leases *l, int64_t samples, const char *island, int64_t round);
/* Records that the first `used` samples of a lease (range of samples) count in the weights of `round`. The other
 * samples of the lease are free again. With used 0 the lease is returned, as leases_return does. */
void   leases_done(Leases *l, int64_t number, int64_t used, int64_t round);
void   leases_return(Leases *l, int64_t number);
void   leases_sync(Leases *l); /* syncs new lines of the leases file to disk; exit 74 if that fails */

/* --- members: the islands, as a state machine ----------------------------------------------------------------------
 * A member is an island: a training job that sends its weight changes (deltas) to this server. It is in one state:
 *   GATHERS   some of its ranks have sent HELLO
 *   WAITS     all its ranks have: it gets a lease (samples) when the next round opens (outer.wait=none: at once)
 *   TRAINS    it has a lease
 *   ENDED     all its ranks have sent their deltas, which count when the round closes, even if the island is lost
 *   GONE      it left, is lost, was silent or was refused; its number is kept in case it returns
 *
 * outer.wait=all: a round opens when no island trains and one waits. Before the first round, outer.least_islands must
 * wait. A round closes when no island trains any more and one has ended. outer.wait=none: each delta counts at once,
 * and a round is as many deltas as there are islands then. */

typedef enum { MEMBER_GONE, MEMBER_GATHERS, MEMBER_WAITS, MEMBER_TRAINS, MEMBER_ENDED } MemberState;
enum { MEMBERS_MOST = 1 << 16 };
#define MEMBERS_FAR 100.0 /* a delta (weight change of a training job) is refused if its norm is more than this times
                           * the median norm of the other deltas */

typedef struct {
    char        id[ISLAND_ID_BYTES]; /* id of the training job: 16 hex digits */
    int         number;            /* index of the island (training job), from 0; sums over islands are in the order of
                                    * this index */
    MemberState state;
    int         ranks, joined, ended; /* number of ranks of the training job; number of them that sent HELLO; number
                                       * that sent END in this round */
    char       *received;          /* [ranks] messages received from each rank: 0: none; 1: HELLO; 2: also END of this
                                    * round. Owned */
    int         leaves;            /* 1 after a BYE message, or if the training job is lost: it becomes GONE when its
                                    * deltas (weight changes) have counted */
    int         knows_end;         /* 1 if the training job was informed that the run has reached run.steps */
    double      heard_ms;          /* time of clock_ms() when the last frame of the training job arrived */
    Lease       lease;             /* samples that the training job trains on; valid while it TRAINS or has ENDED */
    int64_t     arrivals;          /* outer.wait=none: value of Members.arrivals (deltas counted so far) when this
                                    * training job got its lease */
    End         end;               /* END message of rank 0 of the training job: samples, tokens and loss of its
                                    * round */
    double      norm;              /* L2 norm of the delta (weight change) of this training job, valid once the job has
                                    * ENDED */
    double      last_norm;         /* L2 norm of the last delta (weight change) of this training job that was applied to
                                    * the weights */
    int64_t     last_round;        /* number of the round in which the last delta of this training job was applied to
                                    * the weights; -1: none was */
    float      *delta;             /* [elements of the part] delta (weight change) of this training job, by offset; NULL
                                    * until a rank sends some of it; owned */
    int64_t     elems;             /* number of elements of `delta` that have arrived */
    int         takes_changes;     /* 1 if the training job can fetch changes of the weights: its config has
                                    * outer.compress */
    HeldWeights held;              /* outer.wait=none with outer.compress: the weights that the training job has
                                    * fetched */
    int         parts_in;          /* number of servers that have received their whole part of the delta (weight change)
                                    * of this training job */
    Exact       squares;           /* sum of squares of the delta (weight change) of this training job, over the parts
                                    * that are complete */
} Member;

typedef struct {
    Member  **member;              /* [count] the training jobs; list and entries are owned */
    int       count;               /* number of training jobs that have ever connected, including those that are GONE */
    OuterWait wait;                /* value of the key outer.wait */
    int64_t   least;               /* number of training jobs that must be connected before the first round opens */
    int64_t   step_samples, seq_len; /* number of samples of an optimizer step; number of tokens of a sample */
    int       parts;               /* number of servers that must receive their part of a delta before the delta can
                                    * count; 1 on a server other than the first */
    int64_t   round;               /* number of the open round */
    int64_t   arrivals;            /* outer.wait=none: number of deltas (weight changes of training jobs) that were
                                    * applied since the server started */
    int64_t   of_round;            /* outer.wait=none: number of deltas (weight changes of training jobs) that were
                                    * applied in the open round */
    int       has_begun;           /* 1 once this process of the server has opened a round */
} Members;

Members members_create(const Config *config, int64_t round);
void    members_destroy(Members *ms);

/* Handles the HELLO message of a rank. Returns its island, or NULL with the rest of a sentence in fault. If this rank
 * has sent HELLO before, the island has lost its connections and joins again. Then *was is the number of its old lease,
 * which the caller must return; otherwise -1. If `joined` of the returned island is 1, this is its first rank that
 * joins. The caller then closes the old connections of the island. */
Member *members_join(Members *ms, const Hello *hello, double now_ms, int64_t *was, char fault[MESSAGE_FAULT_BYTES]);

/* Records that an island has left or is lost. Returns the number of its lease if the caller must take the samples back,
 * otherwise -1. */
int64_t members_lose(Member *m);

int members_count(const Members *ms, MemberState state);
int members_here(const Members *ms);               /* returns the number of training jobs that are connected with all
                                                    * ranks and do not leave */
int members_may_open(const Members *ms);           /* returns 1 if every training job in the state WAITS can get a lease
                                                    * (samples to train on) now */
int members_may_close(const Members *ms);          /* outer.wait=all: returns 1 if the open round can close: no training
                                                    * job trains, and one has sent its deltas */
void members_give(Members *ms, Member *m, Lease lease);

/* Handles the END message of a rank of an island: the rank has sent its deltas. elems: number of elements that all
 * ranks of the island together must have sent. Returns
 *   1    it was the last rank: the island has ENDED, unless another server lacks its part of the delta. An END of no
 *        samples puts the island into WAITS, and the caller returns its lease
 *   0    other ranks of the island have not sent END
 *   -1   the END is refused; fault has the reason
 */
int members_end(Members *ms, Member *m, int rank, const End *end, int64_t elems, char fault[MESSAGE_FAULT_BYTES]);

/* Records that another server has received its whole part of a delta: the delta of the island that has this lease.
 * squares: sum of squares of that part. Returns 0 if no island has such a lease. */
int members_part_in(Members *ms, int64_t lease, const Exact *squares);
/* Returns the island that has this lease: it trains on it, or has sent the deltas. Returns NULL if there is none. */
Member *members_of_lease(const Members *ms, int64_t lease);

/* Judges the norm of the delta of an island that has ENDED. Returns 1, or 0 with the reason in fault. A norm is refused
 * if it is not finite, or too far from the other islands' norms of this round and the last. */
int members_judge(const Members *ms, const Member *m, char fault[MESSAGE_FAULT_BYTES]);

/* Records that the delta (weight change) of an island is now part of the server's weights. The island then waits for a
 * lease again, or is GONE if it leaves. */
void members_counted(Members *ms, Member *m);
/* outer.wait=none, called after members_counted. Returns 1 if as many deltas have been applied as make a round. */
int  members_round_is_full(const Members *ms);
void members_next_round(Members *ms);
int64_t members_staleness(const Members *ms, const Member *m); /* outer.wait=none: returns how many rounds ago the
                                                                * training job got its lease (samples) */

/* Returns an island that has been silent for longer than patience_ms and is not GONE, or NULL. */
Member *members_silent(const Members *ms, double now_ms, double patience_ms);

#endif
