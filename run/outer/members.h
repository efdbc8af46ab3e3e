/* members.h - which islands are connected, which round each is in, and when a round closes. A state machine without
 * sockets.
 *
 *   GATHERS   some of its ranks have sent HELLO
 *   WAITS     all have: it gets a lease when the next round opens (wait=none: at once)
 *   TRAINS    it has a lease
 *   ENDED     all its ranks have sent their deltas, which count when the round closes, even if the island is lost
 *   GONE      it left, is lost, was silent or was refused; it keeps its number for a return
 *
 * wait=all: a round opens when no island trains and one waits. Before the first round, outer.least_islands must wait. A
 * round closes when no island trains any more and one has ended. wait=none: each delta counts at once, and a round is
 * as many deltas as there are islands then.
 */
#ifndef TRAIN_GPT_RUN_OUTER_MEMBERS_H
#define TRAIN_GPT_RUN_OUTER_MEMBERS_H

#include "run/config/config.h"
#include "run/outer/held_weights.h"
#include "run/outer/leases.h"

typedef enum { MEMBER_GONE, MEMBER_GATHERS, MEMBER_WAITS, MEMBER_TRAINS, MEMBER_ENDED } MemberState;
enum { TURNS_AHEAD = FRAGMENTS_AHEAD }; /* fragments that an island sends before it has the x of the first */
enum { MEMBERS_MOST = 1 << 16, MEMBER_FAULT_BYTES = 320 };
#define MEMBERS_FAR 100.0 /* a delta is refused if its norm is more than this many times the median of the others'
                           * norms */

typedef struct {
    char        id[ISLAND_ID_BYTES]; /* 16 hex digits of the island's run folder */
    int         number;            /* index in Members, from 0: the order of sums over islands */
    MemberState state;
    int         ranks, joined, ended; /* ranks of the island; those that sent HELLO; those that sent END */
    char       *said;              /* [ranks] 0: nothing received; 1: HELLO; 2: END of this round, too; owned */
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
    int         has_moments;       /* 1 if its optimizer has moments to give: they are not zero */
    int         wants_moments;     /* 1 if it wants another island's moments with its next lease (outer.moments=peer) */
    int         takes_moments;     /* 1 if its OPEN promised it moments that it does not have completely */
    int64_t     taken;             /* elements of those moments that it has requested */
    Arriving    turn[TURNS_AHEAD]; /* outer.stream: fragment f is in turn[f % TURNS_AHEAD] */
    Arriving    rest;              /* outer.stream: the steps that no fragment has sent */
    double      turn_norm;         /* norm of a complete fragment, for members_judge_turn */
    double      turn_squares;      /* sum of squares of its fragments in this round */
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
Member *members_join(Members *ms, const Hello *hello, double now_ms, int64_t *was, char fault[MEMBER_FAULT_BYTES]);

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
int members_end(Members *ms, Member *m, int rank, const End *end, int64_t elems, char fault[MEMBER_FAULT_BYTES]);

/* Records that another server has its whole part of this lease's delta. Returns 0 if no island has such a lease. */
int members_part_in(Members *ms, int64_t lease, const Exact *squares);
/* Returns the island that trains on the lease or has ENDED with it, or NULL. */
Member *members_of_lease(const Members *ms, int64_t lease);

/* Judges the norm of an ENDED member. Returns 1, or 0 with the reason in fault: the norm is not finite, or too far from
 * the other islands' norms of this round and the last. */
int members_judge(const Members *ms, const Member *m, char fault[MEMBER_FAULT_BYTES]);

/* outer.stream: judges turn_norm of fragment f against that of other islands whose fragment f is complete. Returns as
 * members_judge does. */
int members_judge_turn(const Members *ms, const Member *m, int f, char fault[MEMBER_FAULT_BYTES]);

/* Returns 1 if fragment f of this island is complete and the island is not gone. */
int  members_has_turn(const Member *m, int f);
void members_forget_turns(Member *m); /* clears fragments and rest */

/* Records that the delta of a member has counted. It waits again, or is GONE if it leaves. */
void members_counted(Members *ms, Member *m);
/* wait=none, after members_counted: returns 1 if that was the last arrival of the round. */
int  members_round_is_full(const Members *ms);
void members_next_round(Members *ms);
int64_t members_staleness(const Members *ms, const Member *m); /* wait=none: age of its lease, in rounds */

/* Returns an island that has been silent for longer than patience_ms and is not GONE, or NULL. */
Member *members_silent(const Members *ms, double now_ms, double patience_ms);

#endif
