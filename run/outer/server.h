/* server.h - the server of a run of islands: it holds the weights x, gives out samples, and makes a new x of what the
 * islands send (run/outer/messages.h, members.h, outer_rule.h).
 *
 * server_turn() does all that can be done now, and waits for more: one thread, no MPI. What a bad peer sends costs that
 * peer, never the server. The caller owns the run's folder, its logs and checkpoints.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_H
#define TRAIN_GPT_RUN_OUTER_SERVER_H

#include "data/dataset.h"
#include "run/outer/server_peers.h"

typedef struct {
    const Config    *config;    /* all borrowed */
    const Dataset   *train;
    const Optimizer *weights;   /* of one rank, in host memory: server_weights.h; NULL: a follower's */
    const Shards    *shards;    /* of the model: of one rank, and of a follower without memory */
    float           *memory;    /* a follower's, zeros: [WEIGHTS_TENSORS, elements of its part] */
    int              part, parts; /* parts of the model, one for each server; part 0 leads */
    const char      *listen;    /* host:port */
    int64_t          step, tokens, samples; /* of the checkpoint that it goes on from */
    void           (*note)(const char *fmt, ...) PRINTF_LIKE(1, 2); /* who comes and goes */
} ServerParts;

/* A round that is over. */
typedef struct {
    int64_t round, step;        /* completed */
    int64_t tokens;             /* since step 0, of all islands */
    int     islands;            /* whose deltas counted */
    int64_t staleness;          /* wait=none: the greatest, in rounds */
    double  norm, loss, ms;     /* of the mean delta; mean by tokens; since the round before */
    int64_t own_tokens;         /* of this round */
} ServerRound;

typedef struct Server Server;

/* Makes the key where it is not there, opens the leases, listens. Ends the program where one of them fails. */
Server *server_create(ServerParts parts);
void    server_destroy(Server *s);
/* Where it listens: out [CHANNEL_PEER_BYTES]. */
void    server_address(const Server *s, char *out);

/* Waits for at most ms; returns 1 when a round is over, and *over says how it was. */
int     server_turn(Server *s, double ms, ServerRound *over);
/* wait=none, before a checkpoint in mid-round: the round is over with the arrivals that it has. 0: it has none. */
int     server_end_round(Server *s, ServerRound *over);

/* --- several servers ---------------------------------------------------------------------------------------------- */

/* What the followers have of x, m and v comes into the optimizer of the leader: before a checkpoint. */
void    server_collect(Server *s);
/* The leader's last words: its followers end with this code. */
void    server_dismiss(Server *s, int code);
/* The run is over and saved, so the leader goes on even if a follower is missing. */
void    server_linger(Server *s);
/* A follower: waits for the leader, then for what it and islands send, until the leader ends the run. Returns the exit
 * code. ready is called once, when the part has come and islands may. Ends the program with 77 where the leader is lost. */
int     server_follow(Server *s, void (*ready)(const Server *s));
int64_t server_part_elems(const Server *s);

int64_t server_step(const Server *s);      /* completed */
int64_t server_tokens(const Server *s);
int64_t server_next_sample(const Server *s);
int     server_is_done(const Server *s);   /* run.steps is reached: islands are told so when they ask */
int     server_fragments(const Server *s); /* outer.stream; else 0 */
int     server_islands(const Server *s);   /* that are there */

#endif
