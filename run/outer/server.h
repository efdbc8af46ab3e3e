/* server.h - the server of a run of islands (training jobs that exchange weights through it). It holds the weights x,
 * and gives islands leases (ranges of samples to train on). It computes a new x from the deltas (weight changes) that
 * islands send (run/outer/messages.h, leases.h, rule.h).
 *
 * server_turn() does everything that can be done now, and then waits. It uses one thread and no MPI. Whatever a bad
 * peer sends ends only the connection of that peer, never the server. The caller owns the run's folder, its logs and
 * checkpoints.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_H
#define TRAIN_GPT_RUN_OUTER_SERVER_H

#include "data/dataset.h"
#include "model/optimizer.h"
#include "run/checkpoint/checkpoint.h"
#include "run/config/config.h"

typedef struct {
    const Config    *config;    /* all pointers of this struct are borrowed */
    const Dataset   *train;
    const Optimizer *weights;   /* optimizer of one rank in host memory, which holds the weights of the model; NULL on a
                                 * server other than the first */
    const Shards    *shards;    /* layout and shards of the whole model, as a job of one rank has them; without memory
                                 * on a server other than the first */
    float           *memory;    /* [WEIGHTS_TENSORS, elements of the part] memory for the part of the weights and their
                                 * momentum, all zero; NULL on the first server */
    int              part, parts; /* part of the model that this server has; number of parts. The server with part 0
                                   * leads */
    const char      *listen;    /* host:port on which the server listens */
    int64_t          step, tokens, samples; /* completed steps, their tokens, and first unused sample of the checkpoint
                                             * that the run continues from */
    void           (*note)(const char *fmt, ...) PRINTF_LIKE(1, 2); /* prints a line to the log when a training job
                                                                     * joins or leaves */
} ServerParts;

/* Numbers of a round that has ended. In a round islands (training jobs) train, and the server applies their weight
 * changes. */
typedef struct {
    int64_t round, step;        /* numbers of completed rounds and optimizer steps */
    int64_t tokens;             /* number of tokens of all training jobs since step 0 */
    int     islands;            /* number of training jobs whose deltas were applied in the round; with outer.wait=none
                                 * number of these deltas */
    int64_t staleness;          /* outer.wait=none: the greatest age of a delta (weight change) of the round, in
                                 * rounds */
    double  norm, loss, ms;     /* L2 norm of the mean delta (weight change); mean loss over the tokens; ms since the
                                 * last round ended */
    int64_t own_tokens;         /* number of tokens of this round */
} ServerRound;

typedef struct Server Server;

/* Creates a server. Makes the key file if it does not exist, opens the leases file (samples given to training jobs),
 * and listens. Ends the program if one of these fails. */
Server *server_create(ServerParts parts);
void    server_destroy(Server *s);
/* Writes the address that the server listens on to out [CHANNEL_PEER_BYTES]. */
void    server_address(const Server *s, char *out);

/* Serves all connections once, after a wait of at most ms. Returns 1 if a round has ended, and then writes its numbers
 * to *over. */
int     server_turn(Server *s, double ms, ServerRound *over);
/* outer.wait=none, before a checkpoint in the middle of a round. Ends the round with the deltas that have arrived, and
 * writes its numbers to *over. Returns 0 if no delta has arrived. */
int     server_end_round(Server *s, ServerRound *over);

/* --- several servers ---------------------------------------------------------------------------------------------- */

/* Fetches weights and optimizer states (x, m, v) from the other servers into the optimizer of the first, before a
 * checkpoint. */
void    server_collect(Server *s);
/* Sends the message OVER to the other servers. They end with this exit code. */
void    server_dismiss(Server *s, int code);
/* Tells this server, the first one, that the run is over and saved. It then continues if another server disconnects. */
void    server_linger(Server *s);
/* Runs a server other than the first. Waits for the first server, then serves it and islands until it ends the run.
 * Returns the exit code. Calls ready once, when the part of the weights has arrived and islands may connect. Ends the
 * program with 77 if the first server is lost. */
int     server_follow(Server *s, void (*ready)(const Server *s));
int64_t server_part_elems(const Server *s);

int64_t server_step(const Server *s);      /* number of completed optimizer steps */
/* Returns the completed steps, their tokens, and the first sample that was never given. */
Position server_position(const Server *s);
int     server_is_done(const Server *s);   /* 1 if run.steps is reached; training jobs learn it when they wait for a
                                            * round */
int     server_islands(const Server *s);   /* number of training jobs that are connected or still have a delta to
                                            * count */

#endif
