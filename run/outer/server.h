/* server.h - the server of a run of islands. It holds the weights x, gives leases of samples, and makes a new x of the
 * deltas that islands send (run/outer/messages.h, leases.h, rule.h).
 *
 * server_turn() does everything that can be done now, and then waits: one thread, no MPI. Whatever a bad peer sends
 * costs that peer its connection, never the server. The caller owns the run's folder, its logs and checkpoints.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_H
#define TRAIN_GPT_RUN_OUTER_SERVER_H

#include "data/dataset.h"
#include "model/optimizer.h"
#include "run/config/config.h"

typedef struct {
    const Config    *config;    /* every pointer of this struct is borrowed */
    const Dataset   *train;
    const Optimizer *weights;   /* optimizer of one rank in host memory (rule.h); NULL on a follower */
    const Shards    *shards;    /* shards of the whole model on one rank; on a follower without memory */
    float           *memory;    /* on a follower: zeros [WEIGHTS_TENSORS, elements of its part] */
    int              part, parts; /* part of this server, parts of the model; part 0 leads */
    const char      *listen;    /* host:port to listen on */
    int64_t          step, tokens, samples; /* counts of the checkpoint that the run continues from */
    void           (*note)(const char *fmt, ...) PRINTF_LIKE(1, 2); /* logs that an island joins or leaves */
} ServerParts;

/* A round that has ended. */
typedef struct {
    int64_t round, step;        /* completed rounds and steps */
    int64_t tokens;             /* since step 0, of all islands */
    int     islands;            /* islands whose deltas counted */
    int64_t staleness;          /* wait=none: the greatest of the round, in rounds */
    double  norm, loss, ms;     /* norm of the mean delta; mean loss by tokens; time since the round before */
    int64_t own_tokens;         /* tokens of this round */
} ServerRound;

typedef struct Server Server;

/* Makes the key file if it does not exist, opens the leases file, listens. Ends the program if one of them fails. */
Server *server_create(ServerParts parts);
void    server_destroy(Server *s);
/* Writes the address that the server listens on to out [CHANNEL_PEER_BYTES]. */
void    server_address(const Server *s, char *out);

/* Serves all connections once, after a wait of at most ms. Returns 1 if a round has ended; *over describes it. */
int     server_turn(Server *s, double ms, ServerRound *over);
/* wait=none, before a checkpoint in mid-round: ends the round with the arrivals that it has. Returns 0 if it has
 * none. */
int     server_end_round(Server *s, ServerRound *over);

/* --- several servers ---------------------------------------------------------------------------------------------- */

/* Fetches x, m and v of the followers' parts into the optimizer of the leader, before a checkpoint. */
void    server_collect(Server *s);
/* Sends OVER: the followers end with this code. */
void    server_dismiss(Server *s, int code);
/* Lets the leader continue without a follower, because the run is over and saved. */
void    server_linger(Server *s);
/* Runs a follower: waits for the leader, then serves it and islands until the leader ends the run. Returns the exit
 * code. Calls ready once, when the part has arrived and islands may connect. Ends the program with 77 if the leader is
 * lost. */
int     server_follow(Server *s, void (*ready)(const Server *s));
int64_t server_part_elems(const Server *s);

int64_t server_step(const Server *s);      /* completed */
int64_t server_tokens(const Server *s);
int64_t server_next_sample(const Server *s);
int     server_is_done(const Server *s);   /* run.steps is reached; islands learn it when they wait for a round */
int     server_islands(const Server *s);   /* islands that are not GONE */

#endif
