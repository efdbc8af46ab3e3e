/* messages.h - the messages between the ranks of an island and a server: kinds of frames (comm/frame.h), and the JSON
 * in those that control.
 *
 *   kind     from               payload, and what it means
 *   HELLO    each rank          Hello: who joins, with which model, config and data
 *   WELCOME  server, to each    Welcome: its number, the round that is open, the server's part of the model
 *   REFUSE   server             Refuse: the island ends with this code and sentence
 *   OPEN     server, to rank 0  Open: a lease of samples; train on these
 *   GET      each rank          nothing; offset and elems of x of the header's round that it wants
 *   X        server             f32: answers a GET, in order, at most MESSAGE_ELEMS each
 *   GET_CHANGE each rank        as GET, of one frame: by how much the last round has changed x (round_change.h), or how
 *                               far x is from what the island holds (held_weights.h)
 *   CHANGE   server             bf16 or int8: answers a GET_CHANGE
 *   DELTA    each rank          f32, bf16 or int8: x of the round - master (send=deltas), or the mean gradient
 *   END      each rank          End: all its deltas of the round are sent
 *   CLOSED   server, to each    Closed: x of the next round can be fetched
 *   FRAGMENT each rank          f32, bf16 or int8: outer.stream: x - master of a fragment (run/outer/fragments.h)
 *   TURN     each rank          Turn: all its values of a fragment are sent; after DELTAs, of the whole model
 *   TURNED   server, to each    Turned: x of that fragment can be fetched
 *   PING     either side        nothing; rank 0 of an island sends one at most a second; the server answers
 *   BYE      rank 0             Bye: leaves in order, its unused lease goes back
 *
 * outer.moments=peer: an OPEN asks one island to give its optimizer's moments, and another to take them. The second
 * waits for MOMENTS.
 *   M, V     either side        f32: a giver's moments; to a taker: answers a GET_M or GET_V, as X does a GET
 *   GIVEN    each rank          Given: all its M and V are sent
 *   MOMENTS  server, to rank 0  Moments: they can be fetched, or there are none
 *   GET_M    each rank          as GET
 *   GET_V    each rank          as GET
 *
 * Several servers have a part of the model each. The first one leads, and the others follow it. They take the messages
 * of ranks, too, but for BYE, and give WELCOME, X, PING and REFUSE alone. Between a follower and the leader:
 *
 *   FOLLOW   follower           Follow: which part it has, of which model and config
 *   STATE    either             f32: the part's x, then m, then v, each in order: at the start, and for a checkpoint
 *   PART_IN  follower           PartIn: its part of a lease's delta is whole, with the squares of it
 *   COUNT    leader             Count: this lease's delta counts in the next STEP, with this weight
 *   DROP     leader             Drop: this lease's delta does not count
 *   STEP     leader             Step: what to do with the deltas that were counted
 *   STEPPED  follower           Stepped: that is done
 *   COLLECT  leader             nothing; STATE is the answer
 *   OVER     leader             Over: the run ends, with this code
 *   PING     either             nothing; the follower sends one at most a second
 *   REFUSE   leader             Refuse: the follower ends with this code and sentence
 *
 * The header's round is the round of the message; its offset and elems are 0 but where values are asked for or sent.
 * The writers make JSON; the readers are pure functions over (bytes, length), believe nothing and check each number's
 * range.
 */
#ifndef TRAIN_GPT_RUN_OUTER_MESSAGES_H
#define TRAIN_GPT_RUN_OUTER_MESSAGES_H

#include "comm/channel.h"
#include "core/exact.h"
#include "core/json.h"
#include "run/outer/fragments.h"

typedef enum {
    MESSAGE_HELLO = 1, MESSAGE_WELCOME, MESSAGE_REFUSE, MESSAGE_OPEN, MESSAGE_GET, MESSAGE_X, MESSAGE_DELTA,
    MESSAGE_END, MESSAGE_CLOSED, MESSAGE_PING, MESSAGE_BYE, MESSAGE_M, MESSAGE_V, MESSAGE_GIVEN, MESSAGE_MOMENTS,
    MESSAGE_GET_M, MESSAGE_GET_V, MESSAGE_FRAGMENT, MESSAGE_TURN, MESSAGE_TURNED, MESSAGE_FOLLOW, MESSAGE_STATE,
    MESSAGE_PART_IN, MESSAGE_COUNT, MESSAGE_DROP, MESSAGE_STEP, MESSAGE_STEPPED, MESSAGE_COLLECT, MESSAGE_OVER,
    MESSAGE_GET_CHANGE, MESSAGE_CHANGE,
    MESSAGE_KINDS
} MessageKind;

enum {
    MESSAGE_ELEMS = FRAME_PAYLOAD_LIMIT / 4,   /* the most values of a frame: 1 Mi, whatever their type */
    MESSAGE_JSON_LIMIT = 1 << 20,              /* bytes of JSON in one message */
    MESSAGE_TEXT = 4096,                       /* room for the JSON of any message but HELLO */
    MESSAGE_FAULT_BYTES = 320,
    MESSAGE_RANKS = 1 << 20,                   /* limits of counts */
    MESSAGE_ISLANDS = 1 << 20,
    MESSAGE_PARTS = 4096
};
#define MESSAGE_COUNT_LIMIT ((int64_t)1 << 53) /* of steps, samples, tokens, elements: as JSON holds integers */

typedef enum { FROM_SERVER, FROM_ISLAND, FROM_FOLLOWER, FROM_LEADER } MessageFrom;

/* "HELLO"; "?" for a number that is no kind. */
const char *message_name(int kind);
/* X of GET, M of GET_M, V of GET_V, CHANGE of GET_CHANGE; 0 of a kind that asks for no values. */
MessageKind message_answer(int kind);

/* Whether a frame of this header may come from there: a kind of that side, its type, its payload, its offset and elems.
 * Returns 1, or 0 with the rest of a sentence in fault: "sent a DELTA of type ...". */
int message_check(const FrameHeader *h, MessageFrom from, char fault[MESSAGE_FAULT_BYTES]);

/* Sends JSON, or nothing (text NULL). As channel_send: 1, 0: no room now, -1: broken. */
int message_send(Channel *c, MessageKind kind, int64_t round, const char *text, size_t bytes);

/* --- the JSON of each kind -----------------------------------------------------------------------------------------
 * X_write: returns the bytes of the JSON in out [MESSAGE_TEXT] (a NUL follows).
 * X_read: 1, or 0 with the rest of a sentence in fault: "sent an OPEN whose samples is -1: ...". Nothing is to be freed
 * after a 0. A number that is not finite is written as null, and null is read as NaN. */

enum { ISLAND_ID_BYTES = 17 };    /* 16 hex digits, random, of an island's run folder; and a NUL */

typedef struct {
    char   *name;                 /* of the Json below, when it was read */
    int64_t tokens;
    char    fingerprint[65];      /* hex digits */
} HelloData;

typedef struct {
    int        protocol;          /* CHANNEL_PROTOCOL */
    char       island[ISLAND_ID_BYTES];
    int        rank, ranks;
    cJSON     *config;            /* the resolved config; of the Json below, when it was read */
    HelloData *data;              /* [data_files]; owned, when it was read */
    int        data_files;
    int64_t    elems;             /* parameters of the model */
    int64_t    samples;           /* of an epoch */
    int64_t    updates;           /* that its moments have seen; 0: they are zero */
    int        wants_moments;     /* "wants": another island's, instead of zeros */
    Json       json;              /* owned: what the above was read from */
} Hello;

/* malloc'ed text, for free(); NULL without memory, or (then *bytes is what it takes) over MESSAGE_JSON_LIMIT. */
char *hello_write(const Hello *m, size_t *bytes);
int   hello_read(const char *text, size_t bytes, Hello *m, char fault[MESSAGE_FAULT_BYTES]);
void  hello_free(Hello *m);       /* of one that was read */

typedef struct {
    int     number;               /* of the island, from 0 */
    int64_t round;                /* the open one */
    int64_t elems;                /* parameters of the model */
    int     part, parts;          /* of the model that this server has: outer_part_begin() of outer_rule.h */
    int     changes;              /* it answers GET_CHANGE */
} Welcome;
size_t welcome_write(const Welcome *m, char out[MESSAGE_TEXT]);
int    welcome_read(const char *text, size_t bytes, Welcome *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int  code;                    /* an exit code of core/error.h, over 0 */
    char why[1024];               /* with both values; cut where it is longer */
} Refuse;
size_t refuse_write(const Refuse *m, char out[MESSAGE_TEXT]);
int    refuse_read(const char *text, size_t bytes, Refuse *m, char fault[MESSAGE_FAULT_BYTES]);

/* Before its first step an island sends its moments, or waits for MOMENTS. */
typedef enum { OPEN_KEEP, OPEN_GIVE, OPEN_TAKE } OpenMoments;

typedef struct {
    int64_t round;
    int64_t step;                 /* the schedule's, of its first step */
    int64_t steps;                /* to train; H */
    int64_t first, samples;       /* of the one global order */
    int     islands;              /* that have a lease in this round, this one counted */
    int64_t lease;                /* its number */
    OpenMoments moments;          /* "keep", "give" or "take" */
} Open;
size_t open_write(const Open *m, char out[MESSAGE_TEXT]);
int    open_read(const char *text, size_t bytes, Open *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;
    int64_t samples;              /* of the lease that were used */
    int64_t tokens;
    double  norm;                 /* sum of the squares of this rank's values */
    double  loss;                 /* mean of the round */
    int64_t lease;                /* of the OPEN */
} End;
size_t end_write(const End *m, char out[MESSAGE_TEXT]);
int    end_read(const char *text, size_t bytes, End *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;                /* the new one */
    int     islands;              /* that counted in the last */
    double  norm;                 /* of the mean delta */
    int64_t staleness;            /* in rounds */
    int     is_done;              /* "done": run.steps is reached */
} Closed;
size_t closed_write(const Closed *m, char out[MESSAGE_TEXT]);
int    closed_read(const char *text, size_t bytes, Closed *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t samples; /* of its lease that were used */ } Bye;
size_t bye_write(const Bye *m, char out[MESSAGE_TEXT]);
int    bye_read(const char *text, size_t bytes, Bye *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t updates; /* that the moments have seen */ } Given;
size_t given_write(const Given *m, char out[MESSAGE_TEXT]);
int    given_read(const char *text, size_t bytes, Given *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t updates;              /* 0: nobody gives any */
    int     is_later;             /* "later": the lease is another's; the next OPEN asks another island */
} Moments;
size_t moments_write(const Moments *m, char out[MESSAGE_TEXT]);
int    moments_read(const char *text, size_t bytes, Moments *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;
    int     fragment;             /* from 0; as many as there are: the whole model, the steps that no turn has sent */
    int64_t tokens;               /* that the island has trained on since it sent this fragment last */
} Turn;
size_t turn_write(const Turn *m, char out[MESSAGE_TEXT]);
int    turn_read(const char *text, size_t bytes, Turn *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;
    int     fragment;
    int     islands;              /* that its mean is of */
} Turned;
size_t turned_write(const Turned *m, char out[MESSAGE_TEXT]);
int    turned_read(const char *text, size_t bytes, Turned *m, char fault[MESSAGE_FAULT_BYTES]);

/* --- between servers ---------------------------------------------------------------------------------------------- */

typedef struct {
    int     protocol;             /* CHANNEL_PROTOCOL */
    int     part, parts;          /* part from 1 */
    int64_t elems;                /* parameters of the model */
    cJSON  *config;               /* the resolved config; of the Json below, when it was read */
    Json    json;                 /* owned: what the above was read from */
} Follow;
/* As hello_write. */
char  *follow_write(const Follow *m, size_t *bytes);
int    follow_read(const char *text, size_t bytes, Follow *m, char fault[MESSAGE_FAULT_BYTES]);
void   follow_free(Follow *m);    /* of one that was read */

/* A sum of squares travels whole, as the hex digits of its words, so that one server and several round it alike. */
typedef struct { int64_t lease; Exact squares; } PartIn;
size_t part_in_write(const PartIn *m, char out[MESSAGE_TEXT]);
int    part_in_read(const char *text, size_t bytes, PartIn *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t lease; double weight; } Count;
size_t count_write(const Count *m, char out[MESSAGE_TEXT]);
int    count_read(const char *text, size_t bytes, Count *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t lease; } Drop;
size_t drop_write(const Drop *m, char out[MESSAGE_TEXT]);
int    drop_read(const char *text, size_t bytes, Drop *m, char fault[MESSAGE_FAULT_BYTES]);

/* STEP_MEAN makes d of the deltas that were counted, and the others but STEP_MOMENTUM use it up. */
typedef enum { STEP_MEAN, STEP_NESTEROV, STEP_ARRIVAL, STEP_MOMENTUM, STEP_ADAMW, STEP_RULES } StepRule;
typedef struct {
    StepRule rule;
    double   learning_rate, momentum; /* STEP_ADAMW: lr and beta1 */
    double   scale;                   /* STEP_ARRIVAL: of d, its share; STEP_ADAMW: of d, for clipping */
    double   beta2, eps, weight_decay;
    int64_t  update;                  /* STEP_ADAMW: from 1 */
} Step;
size_t step_write(const Step *m, char out[MESSAGE_TEXT]);
int    step_read(const char *text, size_t bytes, Step *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { Exact squares; /* STEP_MEAN: of d; STEP_MOMENTUM: of what had waited */ } Stepped;
size_t stepped_write(const Stepped *m, char out[MESSAGE_TEXT]);
int    stepped_read(const char *text, size_t bytes, Stepped *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int code; /* EXIT_DONE or EXIT_STOPPED */ } Over;
size_t over_write(const Over *m, char out[MESSAGE_TEXT]);
int    over_read(const char *text, size_t bytes, Over *m, char fault[MESSAGE_FAULT_BYTES]);

#endif
