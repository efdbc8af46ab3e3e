/* members.h - which islands are there, who is in which round, and when it closes: a state machine without sockets.
 *
 *   GATHERS   some of its ranks have said HELLO
 *   WAITS     all have: it gets a lease when the next round opens (wait=none: at once)
 *   TRAINS    on its lease
 *   ENDED     all its ranks have sent their deltas, which count when the round closes, whatever becomes of the island
 *   GONE      left, lost, silent or refused; it keeps its number for when it comes again
 *
 * wait=all: a round opens when nobody trains, and somebody waits; before the first, outer.least_islands wait. It closes
 * when nobody trains any more, and somebody has ended. wait=none: each delta counts at once, and a round is as many of
 * them as there are islands then.
 */
#ifndef TRAIN_GPT_RUN_OUTER_MEMBERS_H
#define TRAIN_GPT_RUN_OUTER_MEMBERS_H

#include "run/config/config.h"
#include "run/outer/held_weights.h"
#include "run/outer/leases.h"

typedef enum { MEMBER_GONE, MEMBER_GATHERS, MEMBER_WAITS, MEMBER_TRAINS, MEMBER_ENDED } MemberState;
enum { TURNS_AHEAD = FRAGMENTS_AHEAD }; /* fragments that an island sends before it has the first one's x */
enum { MEMBERS_MOST = 1 << 16, MEMBER_FAULT_BYTES = 320 };
#define MEMBERS_FAR 100.0 /* times the median of the others' norms: a delta that is refused */

typedef struct {
    char        id[ISLAND_ID_BYTES];
    int         number;            /* its place in Members, from 0: the order of sums */
    MemberState state;
    int         ranks, joined, ended;
    char       *said;              /* owned [ranks]: 0; 1: HELLO; 2: END of this round, too */
    int         leaves;            /* said BYE, or is lost: GONE when its deltas have counted */
    int         knows_end;         /* it has been told that run.steps is reached */
    double      heard_ms;
    Lease       lease;             /* TRAINS, ENDED */
    int64_t     arrivals;          /* wait=none: deltas that had counted when it got its lease */
    End         end;               /* of rank 0 */
    double      norm;              /* ENDED: of its delta */
    double      last_norm;         /* of the last delta that counted, in last_round */
    int64_t     last_round;
    float      *delta;             /* owned: by global offset; NULL until a rank sends some of it */
    int64_t     elems;             /* that have come */
    int         takes_changes;     /* it has outer.compress */
    HeldWeights held;              /* wait=none, where it takes changes: what it has fetched */
    int         parts_in;          /* of several servers: those that have their part of it whole */
    Exact       squares;           /* of those parts */
    int         has_moments;       /* of its optimizer, other than zero: it can give them */
    int         wants_moments;     /* of another island (outer.moments=peer), in its next lease */
    int         takes_moments;     /* its OPEN said so, and it has not got all of them */
    int64_t     taken;             /* elements of them that it has asked for */
    Arriving    turn[TURNS_AHEAD]; /* outer.stream: fragment f in f % TURNS_AHEAD */
    Arriving    rest;              /* the steps that no turn has had */
    double      turn_norm;         /* of a whole fragment, when it is judged */
    double      turn_squares;      /* of its turns in this round */
} Member;

typedef struct {
    Member  **member;              /* owned [count], and each */
    int       count;
    OuterWait wait;
    int64_t   least;               /* islands before the first round */
    int64_t   step_samples, seq_len;
    int       parts;               /* servers; 1 */
    int64_t   round;               /* the open one */
    int64_t   arrivals;            /* wait=none: deltas that have counted, in all */
    int64_t   of_round;            /* and of them, in this round */
    int       has_begun;           /* a round has been opened by this process */
} Members;

Members members_create(const Config *config, int64_t round);
void    members_destroy(Members *ms);

/* A HELLO. An island that is there already, by its id, has lost its connections: *was is then its old lease's number, to
 * be returned, else -1; the caller closes the old connections (its member has been GONE for a moment: joined is 1). NULL:
 * the rest of a sentence is in fault. */
Member *members_join(Members *ms, const Hello *hello, double now_ms, int64_t *was, char fault[MEMBER_FAULT_BYTES]);

/* It has left or is lost. Returns the number of a lease to be returned, or -1. */
int64_t members_lose(Member *m);

int members_count(const Members *ms, MemberState state);
int members_here(const Members *ms);               /* islands with all their ranks */
int members_may_open(const Members *ms);           /* every WAITS gets a lease now */
int members_may_close(const Members *ms);          /* wait=all */
void members_give(Members *ms, Member *m, Lease lease);

/* An END of a rank; `elems` are what must have come of all its ranks. Returns 1: it was the last, the member has ENDED
 * unless another server has not its part yet, or of no samples at all it WAITS, and its lease is to be returned; 0:
 * others are missing; -1: refused, and why stands in fault. */
int members_end(Members *ms, Member *m, int rank, const End *end, int64_t elems, char fault[MEMBER_FAULT_BYTES]);

/* Another server has the whole part of this lease's delta. Returns 0 where nobody has such a lease any more. */
int members_part_in(Members *ms, int64_t lease, const Exact *squares);
/* NULL: nobody trains on it, or has ENDED with it. */
Member *members_of_lease(const Members *ms, int64_t lease);

/* Of an ENDED member with its norm: 1, or 0 with why it is refused in fault: not finite, or too far from the others' of
 * this round and the last. */
int members_judge(const Members *ms, const Member *m, char fault[MEMBER_FAULT_BYTES]);

/* outer.stream: the same of fragment f, whose turn_norm is known, among those of other islands that are whole. */
int members_judge_turn(const Members *ms, const Member *m, int f, char fault[MEMBER_FAULT_BYTES]);

/* Whether all of fragment f has come from an island that has not gone. */
int  members_has_turn(const Member *m, int f);
void members_forget_turns(Member *m); /* and the rest */

/* Its delta has counted: it waits again, or is GONE. */
void members_counted(Members *ms, Member *m);
/* wait=none, after members_counted: 1 when that was the last arrival of a round. */
int  members_round_is_full(const Members *ms);
void members_next_round(Members *ms);
int64_t members_staleness(const Members *ms, const Member *m); /* wait=none: in rounds */

/* One that has been silent for longer, and is not GONE; NULL: none. */
Member *members_silent(const Members *ms, double now_ms, double patience_ms);

#endif
