/* messages.h - the messages between the ranks of an island and a server: kinds of frames (comm/frame.h), and the JSON
 * of control messages. An island is a training job, and x are the weights that all islands train.
 *
 *   kind     from               payload, and what it means
 *   HELLO    each rank          Hello: who joins, with which model, config and data
 *   WELCOME  server, to each    Welcome: the island's number, the open round, the server's part of the model
 *   REFUSE   server             Refuse: the island ends with this code and sentence
 *   OPEN     server, to rank 0  Open: a lease of samples to train on
 *   GET      each rank          nothing; the header has the range of x of its round that the rank wants
 *   X        server             f32: answers a GET, in order, at most MESSAGE_ELEMS each
 *   GET_CHANGE each rank        as GET, of one frame: by how much the last round has changed x, or how far x is from
 *                               what the island holds (rule.h)
 *   CHANGE   server             bf16 or int8: answers a GET_CHANGE
 *   DELTA    each rank          f32, bf16 or int8: x of the round - master (outer.send=deltas), or the mean gradient
 *   END      each rank          End: all its deltas of the round are sent
 *   CLOSED   server, to each    Closed: x of the next round can be fetched
 *   PING     either side        nothing; rank 0 of an island sends at most one a second, the server answers
 *   BYE      rank 0             Bye: leaves in order; the rest of its lease is free
 *
 * Several servers have a part of the model each. The first one leads, and the others follow it. A follower takes all
 * messages of ranks except BYE, and sends ranks only WELCOME, X, PING and REFUSE. Between a follower and the leader:
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
 * JSON of all kinds is written and read by one table of fields (messages.c). The reader trusts nothing and checks the
 * range of each number.
 */
#ifndef TRAIN_GPT_RUN_OUTER_MESSAGES_H
#define TRAIN_GPT_RUN_OUTER_MESSAGES_H

#include "comm/channel.h"
#include "core/error.h"
#include "core/exact.h"
#include "core/json.h"
#include "data/dataset.h"

typedef enum {
    MESSAGE_HELLO = 1, MESSAGE_WELCOME, MESSAGE_REFUSE, MESSAGE_OPEN, MESSAGE_GET, MESSAGE_X, MESSAGE_GET_CHANGE,
    MESSAGE_CHANGE, MESSAGE_DELTA, MESSAGE_END, MESSAGE_CLOSED, MESSAGE_PING, MESSAGE_BYE, MESSAGE_FOLLOW,
    MESSAGE_STATE, MESSAGE_PART_IN, MESSAGE_COUNT, MESSAGE_DROP, MESSAGE_STEP, MESSAGE_STEPPED, MESSAGE_COLLECT,
    MESSAGE_OVER,
    MESSAGE_KINDS
} MessageKind;

enum {
    MESSAGE_ELEMS = FRAME_PAYLOAD_LIMIT / 4,   /* most values in one frame of any type: 1 Mi */
    MESSAGE_JSON_LIMIT = 1 << 20,              /* most bytes of JSON in one message */
    MESSAGE_FAULT_BYTES = 1024,                /* bytes of the buffer for the reason of a fault */
    MESSAGE_RANKS = 1 << 20,                   /* most ranks of a training job */
    MESSAGE_ISLANDS = 1 << 20,
    MESSAGE_PARTS = 4096
};
#define MESSAGE_COUNT_LIMIT ((int64_t)1 << 53) /* limit of numbers of steps, samples, tokens and elements; JSON numbers
                                                * up to it are exact */

typedef enum { FROM_SERVER, FROM_ISLAND, FROM_FOLLOWER, FROM_LEADER } MessageFrom;

/* End of a sentence that complains about a message. Only another version of the program sends such a message. */
#define OTHER_VERSION "; start the server and all training jobs with the same version of this program"

/* Writes the reason for a refusal to fault. Returns 0, so that a check can return it. */
#define message_fault(fault, ...) fault_text(fault, MESSAGE_FAULT_BYTES, 0, __VA_ARGS__)

/* Returns the name of a kind, "HELLO", or "?" for a number that is not a kind. */
const char *message_name(int kind);
/* Returns the kind of message that answers a request: X for GET, CHANGE for GET_CHANGE. Returns 0 for a kind that
 * requests no values. */
MessageKind message_answer(int kind);

/* Checks whether a peer with this role may send a frame with this header. Checks the kind, type, payload, offset and
 * elems of the frame. Returns 1, or 0 with the rest of a sentence in fault: "sent a DELTA of type ...". */
int message_check(const FrameHeader *h, MessageFrom from, char fault[MESSAGE_FAULT_BYTES]);

/* Sends a message: as JSON if m is the struct of its kind, with an empty payload if m is NULL. Waits for nothing
 * (channel_queue). A broken channel drops it. Ends the program if it is longer than MESSAGE_JSON_LIMIT. */
void message_send(Channel *c, MessageKind kind, int64_t round, const void *m);

/* Writes m, the struct of a message of this kind, as JSON. Returns the text, from malloc; free it with free(). Returns
 * NULL if the text has more than MESSAGE_JSON_LIMIT bytes; then *bytes is its length. Only HELLO and FOLLOW can be so
 * long. Exit 71 if there is no memory. A number that is not finite is written as null. */
char *message_write(MessageKind kind, const void *m, size_t *bytes);
/* Reads the JSON of a message into m, the struct of its kind. Returns 1, or 0 with the rest of a sentence in fault:
 * "sent the message OPEN whose samples is -1: ...". After a 0 nothing is to be freed. null is read as NaN. */
int   message_read(MessageKind kind, const char *text, size_t bytes, void *m, char fault[MESSAGE_FAULT_BYTES]);
/* Frees the memory that message_read allocated for a HELLO or FOLLOW. Other kinds have none. */
void  message_free(MessageKind kind, void *m);

/* --- the struct of each kind -------------------------------------------------------------------------------------- */

enum { ISLAND_ID_BYTES = 17 };    /* id of a training job: 16 random hex digits from its run folder, and a NUL */

typedef struct {
    const char *name;             /* name of a data file, without folder; in a received Hello a pointer into
                                   * Hello.json */
    int64_t     tokens;
    char        fingerprint[65];  /* hex digits of one hash over all data files */
} HelloData;

/* Returns one entry for each file of the training data, in order [train->shards]; free it with free(). The names have
 * no folder and are borrowed from train. Each entry has the fingerprint of all files together (dataset_fingerprint). */
HelloData *hello_data(const Dataset *train);

typedef struct {
    int        protocol;          /* version of the protocol: CHANNEL_PROTOCOL */
    char       island[ISLAND_ID_BYTES]; /* id of the sender's training job: 16 hex digits */
    int        rank, ranks;       /* the sender's rank; number of ranks of the training job */
    int64_t    elems;             /* number of parameters of the model */
    int64_t    samples;           /* number of samples in an epoch of the data */
    cJSON     *config;            /* the sender's config with every option; in a received Hello a pointer into `json` */
    HelloData *data;              /* [data_files] files of the training data; owned if the Hello was received */
    int        data_files;        /* number of files of data.train */
    Json       json;              /* owned: the JSON that the Hello was read from */
} Hello;

typedef struct {
    int     number;               /* number that the server gives the training job, from 0 */
    int64_t round;                /* number of the open round */
    int64_t elems;                /* number of parameters of the model */
    int     part, parts;          /* the part of the model that this server has, from 0; number of parts */
    int     changes;              /* 1 if the server answers GET_CHANGE, a request for how much the weights have
                                   * changed */
} Welcome;

typedef struct {
    int  code;                    /* exit code for the program that is refused, not 0. JSON key: "exit" */
    char why[1024];               /* the reason, with the values of both sides; cut if it is longer */
} Refuse;

typedef struct {
    int64_t round;
    int64_t step;                 /* step of the learning-rate schedule at which the training on these samples begins */
    int64_t steps;                /* number of optimizer steps to train with these samples */
    int64_t first, samples;       /* first sample to train on, in the global order; number of samples */
    int     islands;              /* number of training jobs that train in this round, including the receiver */
    int64_t lease;                /* number of the lease, the range of samples that is given; the END message of the
                                   * training job must repeat it */
} Open;

typedef struct {
    int64_t round;
    int64_t samples;              /* number of samples of the round that the training job trained on */
    int64_t tokens;               /* number of tokens of the samples that were trained on */
    double  norm;                 /* sum of the squares of this rank's deltas (weight changes) */
    double  loss;                 /* mean loss of the training job over the round */
    int64_t lease;                /* number of the lease (range of samples), from the OPEN message that gave it */
} End;

typedef struct {
    int64_t round;                /* number of the new round */
    int     islands;              /* outer.wait=all: number of islands (training jobs) whose deltas were applied in the
                                   * last round. outer.wait=none: number of connected islands */
    double  norm;                 /* outer.wait=all: L2 norm of the mean delta (weight change) of the last round.
                                   * outer.wait=none: of the receiver's delta */
    int64_t staleness;            /* age of the last delta (weight change) of the receiver, in rounds since it fetched
                                   * the weights that the delta began from */
    int     is_done;              /* 1 if the run has reached run.steps. JSON key: "done" */
} Closed;

typedef struct { int64_t samples; /* number of samples of the round that the training job trained on */ } Bye;

/* --- messages between servers */

typedef struct {
    int     protocol;             /* version of the protocol: CHANNEL_PROTOCOL */
    int     part, parts;          /* part of the model that the server has, from 1; number of parts */
    int64_t elems;                /* number of parameters of the model */
    cJSON  *config;               /* the sender's config with every option; in a received Follow a pointer into
                                   * `json` */
    Json    json;                 /* owned: the JSON that the Follow was read from */
} Follow;

/* Message of a follower (server other than the first) to the leader (first server): its part of the delta of the island
 * (training job) with this lease has arrived. The sum of squares of that part is sent exactly, as the hex digits of its
 * words. So one server and several servers round the sum in the same way. */
typedef struct { int64_t lease; Exact squares; } PartIn;

typedef struct { int64_t lease; double weight; } Count;

typedef struct { int64_t lease; } Drop;

/* Rules by which a server applies the counted deltas (weight changes of training jobs) to its weights. STEP_MEAN only
 * computes d, the mean of the counted deltas. STEP_NESTEROV applies d with momentum, STEP_ADAMW applies d as a
 * gradient. STEP_ARRIVAL applies one delta, STEP_MOMENTUM the momentum after the last delta of a round. All rules
 * except STEP_MEAN and STEP_MOMENTUM clear the list of counted deltas. */
typedef enum { STEP_MEAN, STEP_NESTEROV, STEP_ARRIVAL, STEP_MOMENTUM, STEP_ADAMW, STEP_RULES } StepRule;
typedef struct {
    int      rule;                    /* a StepRule: how d, the mean delta, changes the weights x */
    double   learning_rate, momentum; /* rate and momentum of the rule. STEP_ADAMW: learning rate and beta1 */
    double   scale;                   /* STEP_ARRIVAL: weight of the delta. STEP_ADAMW: factor by which clipping scales
                                       * the gradient. Unused by other rules */
    double   beta2, eps, weight_decay; /* options of AdamW; unused by other rules */
    int64_t  update;                  /* STEP_ADAMW: number of the AdamW update, from 1 */
} Step;

/* Answer to a STEP message. squares: for STEP_MEAN, sum of squares of the mean delta (weight change). For
 * STEP_MOMENTUM, sum of squares of the weighted sum of the deltas that wait for momentum. 0 for other rules. */
typedef struct { Exact squares; } Stepped;

typedef struct { int code; /* exit code of the run: EXIT_DONE or EXIT_STOPPED. JSON key: "exit" */ } Over;

#endif
