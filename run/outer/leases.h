/* leases.h - which island has which samples of the one global order, and where each island stands in its round. No
 * sockets. Each sample counts once in the server's weights, whichever islands join and leave.
 */
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

/* --- members: the islands, as a state machine ----------------------------------------------------------------------
 *   GATHERS   some of its ranks have sent HELLO
 *   WAITS     all have: it gets a lease when the next round opens (wait=none: at once)
 *   TRAINS    it has a lease
 *   ENDED     all its ranks have sent their deltas, which count when the round closes, even if the island is lost
 *   GONE      it left, is lost, was silent or was refused; it keeps its number for a return
 *
 * wait=all: a round opens when no island trains and one waits. Before the first round, outer.least_islands must wait. A
 * round closes when no island trains any more and one has ended. wait=none: each delta counts at once, and a round is
 * as many deltas as there are islands then. */

typedef enum { MEMBER_GONE, MEMBER_GATHERS, MEMBER_WAITS, MEMBER_TRAINS, MEMBER_ENDED } MemberState;
enum { MEMBERS_MOST = 1 << 16 };
#define MEMBERS_FAR 100.0 /* a delta is refused if its norm is more than this many times the median of the others'
                           * norms */

typedef struct {
    char        id[ISLAND_ID_BYTES]; /* 16 hex digits of the island's run folder */
    int         number;            /* index in Members, from 0: the order of sums over islands */
    MemberState state;
    int         ranks, joined, ended; /* ranks of the island; those that sent HELLO; those that sent END */
    char       *received;          /* [ranks] 0: nothing received; 1: HELLO; 2: END of this round, too; owned */
    int         leaves;            /* it sent BYE or is lost: it becomes GONE when its deltas have counted */
    int         knows_end;         /* it was informed that run.steps is reached */
    double      heard_ms;          /* when a frame of it last arrived */
    Lease       lease;             /* in TRAINS and ENDED */
    int64_t     arrivals;          /* wait=none: deltas that had counted when it got its lease */
    End         end;               /* the END of its rank 0 */
    double      norm;              /* norm of its delta, in ENDED */
    double      last_norm;         /* norm of its last delta that counted, which was in last_round */
    int64_t     last_round;        /* -1 if none of its deltas has counted */
    float      *delta;             /* [elements of the part] by offset in the part; NULL until a rank sends some of it;
                                    * owned */
    int64_t     elems;             /* elements of delta that have arrived */
    int         takes_changes;     /* 1 if its config has outer.compress */
    HeldWeights held;              /* wait=none with outer.compress: the weights that it has fetched */
    int         parts_in;          /* several servers: how many have their part of its delta complete */
    Exact       squares;           /* sum of squares of its delta, over those parts */
} Member;

typedef struct {
    Member  **member;              /* [count] list and members; owned */
    int       count;               /* islands that have connected, gone or not */
    OuterWait wait;                /* outer.wait */
    int64_t   least;               /* islands that must wait before the first round */
    int64_t   step_samples, seq_len; /* samples of an optimizer step; tokens of a sample */
    int       parts;               /* number of servers; 1 on a follower */
    int64_t   round;               /* the open round */
    int64_t   arrivals;            /* wait=none: deltas that have counted, in all */
    int64_t   of_round;            /* wait=none: deltas that have counted in this round */
    int       has_begun;           /* 1 once this process has opened a round */
} Members;

Members members_create(const Config *config, int64_t round);
void    members_destroy(Members *ms);

/* Takes a HELLO. Returns the member, or NULL with the rest of a sentence in fault. An island that is already connected,
 * by its id, has lost its connections. Then *was is the number of its old lease, which the caller returns; otherwise
 * -1. The caller closes the old connections if joined is 1: the member was GONE for a moment. */
Member *members_join(Members *ms, const Hello *hello, double now_ms, int64_t *was, char fault[MESSAGE_FAULT_BYTES]);

/* Records that an island has left or is lost. Returns the number of a lease to be returned, or -1. */
int64_t members_lose(Member *m);

int members_count(const Members *ms, MemberState state);
int members_here(const Members *ms);               /* islands whose ranks are all connected, and that do not leave */
int members_may_open(const Members *ms);           /* every island in WAITS can get a lease now */
int members_may_close(const Members *ms);          /* wait=all: the round can close now */
void members_give(Members *ms, Member *m, Lease lease);

/* Takes an END of a rank. `elems` is how many elements all its ranks must have sent. Returns
 *   1    it was the last rank: the member has ENDED, unless another server lacks its part. An END of no samples puts
 *        it into WAITS, and the caller returns its lease
 *   0    other ranks have not sent END
 *   -1   the END is refused; fault has the reason
 */
int members_end(Members *ms, Member *m, int rank, const End *end, int64_t elems, char fault[MESSAGE_FAULT_BYTES]);

/* Records that another server has its whole part of this lease's delta. Returns 0 if no island has such a lease. */
int members_part_in(Members *ms, int64_t lease, const Exact *squares);
/* Returns the island that trains on the lease or has ENDED with it, or NULL. */
Member *members_of_lease(const Members *ms, int64_t lease);

/* Judges the norm of an ENDED member. Returns 1, or 0 with the reason in fault: the norm is not finite, or too far from
 * the other islands' norms of this round and the last. */
int members_judge(const Members *ms, const Member *m, char fault[MESSAGE_FAULT_BYTES]);

/* Records that the delta of a member has counted. It waits again, or is GONE if it leaves. */
void members_counted(Members *ms, Member *m);
/* wait=none, after members_counted: returns 1 if that was the last arrival of the round. */
int  members_round_is_full(const Members *ms);
void members_next_round(Members *ms);
int64_t members_staleness(const Members *ms, const Member *m); /* wait=none: age of its lease, in rounds */

/* Returns an island that has been silent for longer than patience_ms and is not GONE, or NULL. */
Member *members_silent(const Members *ms, double now_ms, double patience_ms);

#endif
