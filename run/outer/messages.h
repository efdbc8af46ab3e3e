/* messages.h - the messages between the ranks of an island and a server: kinds of frames (comm/frame.h), and the JSON
 * of those that control.
 *
 *   kind     from               payload, and what it means
 *   HELLO    each rank          Hello: who joins, with which model, config and data
 *   WELCOME  server, to each    Welcome: the island's number, the open round, the server's part of the model
 *   REFUSE   server             Refuse: the island ends with this code and sentence
 *   OPEN     server, to rank 0  Open: a lease of samples to train on
 *   GET      each rank          nothing; the header has the range of x of its round that the rank wants
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
 *   PING     either side        nothing; rank 0 of an island sends at most one a second, the server answers
 *   BYE      rank 0             Bye: leaves in order; the rest of its lease is free
 *
 * With outer.moments=peer an OPEN asks one island to give its optimizer's moments, and another to take them. The second
 * waits for MOMENTS.
 *   M, V     either side        f32: moments, from an island that gives; to one that takes, the answer to GET_M, GET_V
 *   GIVEN    each rank          Given: all its M and V are sent
 *   MOMENTS  server, to rank 0  Moments: they can be fetched, or there are none
 *   GET_M    each rank          as GET
 *   GET_V    each rank          as GET
 *
 * Several servers have a part of the model each. The first one leads, and the others follow it. A follower takes all
 * messages of ranks but BYE, and sends ranks only WELCOME, X, PING and REFUSE. Between a follower and the leader:
 *
 *   FOLLOW   follower           Follow: which part it has, of which model and config
 *   STATE    either             f32: the part's x, then m, then v, each in order: at the start, and for a checkpoint
 *   PART_IN  follower           PartIn: its part of a lease's delta is complete, with the sum of its squares
 *   COUNT    leader             Count: this lease's delta counts in the next STEP, with this weight
 *   DROP     leader             Drop: this lease's delta does not count
 *   STEP     leader             Step: how to apply the deltas that were counted
 *   STEPPED  follower           Stepped: that is done
 *   COLLECT  leader             nothing; STATE is the answer
 *   OVER     leader             Over: the run ends, with this code
 *   PING     either             nothing; the follower sends at most one a second
 *   REFUSE   leader             Refuse: the follower ends with this code and sentence
 *
 * The header's round is the round of the message. Its offset and elems are 0 unless values are requested or sent. The
 * writers make JSON. The readers are pure functions over (bytes, length): they trust nothing and check the range of
 * each number.
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
    MESSAGE_ELEMS = FRAME_PAYLOAD_LIMIT / 4,   /* most values of a frame of any type: 1 Mi */
    MESSAGE_JSON_LIMIT = 1 << 20,              /* most bytes of JSON in one message */
    MESSAGE_TEXT = 4096,                       /* buffer for the JSON of any message but HELLO and FOLLOW */
    MESSAGE_FAULT_BYTES = 320,
    MESSAGE_RANKS = 1 << 20,                   /* limits of counts */
    MESSAGE_ISLANDS = 1 << 20,
    MESSAGE_PARTS = 4096
};
#define MESSAGE_COUNT_LIMIT ((int64_t)1 << 53) /* limit of steps, samples, tokens and elements: JSON numbers are exact
                                                * up to it */

typedef enum { FROM_SERVER, FROM_ISLAND, FROM_FOLLOWER, FROM_LEADER } MessageFrom;

/* Returns the name of a kind, "HELLO", or "?" for a number that is not a kind. */
const char *message_name(int kind);
/* Returns the kind that answers a request: X for GET, M for GET_M, V for GET_V, CHANGE for GET_CHANGE. Returns 0 for a
 * kind that requests no values. */
MessageKind message_answer(int kind);

/* Checks whether that sender may send a frame with this header: its kind, type, payload, offset and elems. Returns 1,
 * or 0 with the rest of a sentence in fault: "sent a DELTA of type ...". */
int message_check(const FrameHeader *h, MessageFrom from, char fault[MESSAGE_FAULT_BYTES]);

/* Sends JSON, or an empty payload if text is NULL. Returns 1, 0 if the buffer has no space for it now, -1 if the
 * channel is broken. */
int message_send(Channel *c, MessageKind kind, int64_t round, const char *text, size_t bytes);

/* --- the JSON of each kind -----------------------------------------------------------------------------------------
 *   X_write  returns the bytes of the JSON that it wrote to out [MESSAGE_TEXT]; a NUL follows them
 *   X_read   returns 1, or 0 with the rest of a sentence in fault: "sent an OPEN whose samples is -1: ...". After a 0
 *            nothing is to be freed
 * A number that is not finite is written as null, and null is read as NaN. */

enum { ISLAND_ID_BYTES = 17 };    /* 16 hex digits, random, from the run folder of an island, and a NUL */

typedef struct {
    char   *name;                 /* owned by `json` of a Hello that was read */
    int64_t tokens;
    char    fingerprint[65];      /* hex digits */
} HelloData;

typedef struct {
    int        protocol;          /* CHANNEL_PROTOCOL */
    char       island[ISLAND_ID_BYTES]; /* id of the island */
    int        rank, ranks;       /* the sender's rank; ranks of the island */
    cJSON     *config;            /* the resolved config; owned by `json` of a Hello that was read */
    HelloData *data;              /* [data_files] owned if the Hello was read */
    int        data_files;        /* files of data.train */
    int64_t    elems;             /* parameters of the model */
    int64_t    samples;           /* samples of an epoch */
    int64_t    updates;           /* optimizer updates behind the island's moments; 0 if they are zero */
    int        wants_moments;     /* "wants": it would take another island's moments */
    Json       json;              /* what the Hello was read from; owned */
} Hello;

/* Returns the text, from malloc; free it with free(). Returns NULL if there is no memory, or if the text has more than
 * MESSAGE_JSON_LIMIT bytes; then *bytes is its length. */
char *hello_write(const Hello *m, size_t *bytes);
int   hello_read(const char *text, size_t bytes, Hello *m, char fault[MESSAGE_FAULT_BYTES]);
void  hello_free(Hello *m);       /* frees a Hello that was read */

typedef struct {
    int     number;               /* number of the island, from 0 */
    int64_t round;                /* the open round */
    int64_t elems;                /* parameters of the model */
    int     part, parts;          /* the part of the model that this server has: outer_part_begin() of outer_rule.h */
    int     changes;              /* 1 if the server answers GET_CHANGE */
} Welcome;
size_t welcome_write(const Welcome *m, char out[MESSAGE_TEXT]);
int    welcome_read(const char *text, size_t bytes, Welcome *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int  code;                    /* an exit code of core/error.h, not 0 */
    char why[1024];               /* the reason, with both values; cut if it is longer */
} Refuse;
size_t refuse_write(const Refuse *m, char out[MESSAGE_TEXT]);
int    refuse_read(const char *text, size_t bytes, Refuse *m, char fault[MESSAGE_FAULT_BYTES]);

/* Tasks of an island before its first step. OPEN_KEEP: none. OPEN_GIVE: it sends its moments to the server.
 * OPEN_TAKE: it waits for the message MOMENTS. */
typedef enum { OPEN_KEEP, OPEN_GIVE, OPEN_TAKE } OpenMoments;

typedef struct {
    int64_t round;
    int64_t step;                 /* step of the schedule at which the lease begins */
    int64_t steps;                /* optimizer steps to train; H */
    int64_t first, samples;       /* the lease's range in the one global order of samples */
    int     islands;              /* islands with a lease in this round, this one included */
    int64_t lease;                /* number of the lease */
    OpenMoments moments;          /* "keep", "give" or "take" */
} Open;
size_t open_write(const Open *m, char out[MESSAGE_TEXT]);
int    open_read(const char *text, size_t bytes, Open *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;
    int64_t samples;              /* samples of the lease that were trained on */
    int64_t tokens;               /* tokens of those samples */
    double  norm;                 /* sum of the squares of this rank's deltas */
    double  loss;                 /* mean over the round */
    int64_t lease;                /* number of the lease, from its OPEN */
} End;
size_t end_write(const End *m, char out[MESSAGE_TEXT]);
int    end_read(const char *text, size_t bytes, End *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;                /* the new round */
    int     islands;              /* islands that counted in the last round */
    double  norm;                 /* norm of the mean delta */
    int64_t staleness;            /* in rounds */
    int     is_done;              /* "done": run.steps is reached */
} Closed;
size_t closed_write(const Closed *m, char out[MESSAGE_TEXT]);
int    closed_read(const char *text, size_t bytes, Closed *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t samples; /* samples of the lease that were trained on */ } Bye;
size_t bye_write(const Bye *m, char out[MESSAGE_TEXT]);
int    bye_read(const char *text, size_t bytes, Bye *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t updates; /* optimizer updates behind the moments */ } Given;
size_t given_write(const Given *m, char out[MESSAGE_TEXT]);
int    given_read(const char *text, size_t bytes, Given *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t updates;              /* optimizer updates behind the moments; 0 if no island gives any */
    int     is_later;             /* "later": the server takes the lease back; another island gives, with the next
                                   * OPEN */
} Moments;
size_t moments_write(const Moments *m, char out[MESSAGE_TEXT]);
int    moments_read(const char *text, size_t bytes, Moments *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;
    int     fragment;             /* number of the fragment, from 0; the number of fragments means the steps that no
                                   * fragment has sent */
    int64_t tokens;               /* tokens that the island has trained on since it last sent this fragment */
} Turn;
size_t turn_write(const Turn *m, char out[MESSAGE_TEXT]);
int    turn_read(const char *text, size_t bytes, Turn *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct {
    int64_t round;
    int     fragment;
    int     islands;              /* islands in the mean of the fragment */
} Turned;
size_t turned_write(const Turned *m, char out[MESSAGE_TEXT]);
int    turned_read(const char *text, size_t bytes, Turned *m, char fault[MESSAGE_FAULT_BYTES]);

/* --- messages between servers ------------------------------------------------------------------------------------- */

typedef struct {
    int     protocol;             /* CHANNEL_PROTOCOL */
    int     part, parts;          /* part from 1 */
    int64_t elems;                /* parameters of the model */
    cJSON  *config;               /* the resolved config; owned by `json` of a Follow that was read */
    Json    json;                 /* what the Follow was read from; owned */
} Follow;
/* Returns the text as hello_write does. */
char  *follow_write(const Follow *m, size_t *bytes);
int    follow_read(const char *text, size_t bytes, Follow *m, char fault[MESSAGE_FAULT_BYTES]);
void   follow_free(Follow *m);    /* frees a Follow that was read */

/* A sum of squares is sent whole, as the hex digits of its words, so that one server and several round it alike. */
typedef struct { int64_t lease; Exact squares; } PartIn;
size_t part_in_write(const PartIn *m, char out[MESSAGE_TEXT]);
int    part_in_read(const char *text, size_t bytes, PartIn *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t lease; double weight; } Count;
size_t count_write(const Count *m, char out[MESSAGE_TEXT]);
int    count_read(const char *text, size_t bytes, Count *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int64_t lease; } Drop;
size_t drop_write(const Drop *m, char out[MESSAGE_TEXT]);
int    drop_read(const char *text, size_t bytes, Drop *m, char fault[MESSAGE_FAULT_BYTES]);

/* How a STEP applies deltas. STEP_MEAN makes d, the mean of the deltas that were counted. The other rules but
 * STEP_MOMENTUM use the counted deltas up. */
typedef enum { STEP_MEAN, STEP_NESTEROV, STEP_ARRIVAL, STEP_MOMENTUM, STEP_ADAMW, STEP_RULES } StepRule;
typedef struct {
    StepRule rule;                    /* how d changes x */
    double   learning_rate, momentum; /* STEP_ADAMW: lr and beta1 */
    double   scale;                   /* factor of d: STEP_ARRIVAL its share, STEP_ADAMW the clipping */
    double   beta2, eps, weight_decay; /* STEP_ADAMW */
    int64_t  update;                  /* STEP_ADAMW: number of the update, from 1 */
} Step;
size_t step_write(const Step *m, char out[MESSAGE_TEXT]);
int    step_read(const char *text, size_t bytes, Step *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { Exact squares; /* STEP_MEAN: sum of squares of d; STEP_MOMENTUM: of the waiting arrivals */ } Stepped;
size_t stepped_write(const Stepped *m, char out[MESSAGE_TEXT]);
int    stepped_read(const char *text, size_t bytes, Stepped *m, char fault[MESSAGE_FAULT_BYTES]);

typedef struct { int code; /* EXIT_DONE or EXIT_STOPPED */ } Over;
size_t over_write(const Over *m, char out[MESSAGE_TEXT]);
int    over_read(const char *text, size_t bytes, Over *m, char fault[MESSAGE_FAULT_BYTES]);

#endif
