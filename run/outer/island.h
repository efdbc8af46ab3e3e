/* island.h - an island: a training job that trains one model together with other jobs through a server (`train_gpt
 * serve`).
 *
 * Between rounds all jobs hold the same weights x. In a round an island trains alone for `steps` optimizer steps, on
 * the samples that the server has given it (its lease). Then each rank sends its part of the delta, which is x minus
 * the trained masters (fp32 weights). It fetches the new x, which the server computes from the deltas of all islands
 * (run/outer/messages.h). The moments of the optimizer stay in the island.
 *
 * The ranks of an island act together. While they wait for the server they agree several times a second on what has
 * arrived, notice requests to stop, and tick the watchdog. If the connection of one rank breaks, all ranks connect
 * again and repeat the round from the server's x. After outer.patience_seconds without a server the island is lost
 * (ISLAND_LOST).
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_H

#include "data/dataset.h"
#include "model/optimizer.h"
#include "run/config/config.h"
#include "run/guard/requests.h"
#include "run/guard/watchdog.h"
#include "run/outer/messages.h"

/* Objects that an island works with; all borrowed. An island is a job that trains one model together with other
 * jobs. */
typedef struct {
    const Config  *config;
    Comm          *comm;       /* all ranks of the job */
    Optimizer     *optimizer;
    Stream        *stream;
    const Dataset *train;
    Watchdog      *watchdog;
    Requests      *requests;
    const char    *id;         /* run_id of the run: 16 hex digits */
} IslandParts;

typedef enum {
    ISLAND_TRAINS,             /* this job has samples to train on, which island_round() returns */
    ISLAND_STOPPED,            /* the job received a request to stop while it waited for the server */
    ISLAND_LOST,               /* no server answered for outer.patience_seconds; island_lost() has the reason */
    ISLAND_DONE                /* the server has reached run.steps; the weights are the final ones            */
} IslandState;

/* Totals of the training steps that an island (training job) has made with its lease, the samples that the server gave
 * it. */
typedef struct {
    int64_t samples, tokens;   /* numbers of samples and tokens that this job trained on */
    double  loss;              /* mean loss over these samples */
} IslandWork;

/* Numbers of a round that has ended, for the logs. In a round this job trains, then exchanges weights with the
 * server. */
typedef struct {
    Closed   closed;           /* the server's message that ended the round */
    double   ms;               /* milliseconds without training: the wait for the new weights and for new samples */
    int64_t  sent, received;   /* bytes sent to and received from the servers in the round, summed over all ranks */
} IslandExchange;

typedef struct Island Island;

/* Creates the state of an island, a job that trains one model with other jobs through a server. Allocates host memory
 * for the weights of a round. Ends the job if outer.key is not a key file. */
Island *island_create(IslandParts parts);
void    island_destroy(Island *s);
size_t  island_bytes(const Config *config, const Layout *layout); /* returns the bytes of host memory that island_create
                                                                   * allocates */

/* Collective. Connects to the server, and waits for samples to train on (a lease) and the weights x. Loads x into the
 * masters and working copies. If the server refuses this job, it ends with the exit code and the sentence that the
 * server sent. */
IslandState island_join(Island *s);

/* Tells the server that the island (this training job) is alive, and reads messages that have arrived. Each rank calls
 * it alone, between steps. Returns 1 if the connection is broken. When the ranks have agreed on that, all call
 * island_join. */
int island_keep(Island *s);

/* Collective, after the last step of a lease (samples to train on). Sends the deltas (weight changes), then waits for
 * the next lease and its weights. Sets *ended to 1 if the server has closed the round. Sets it to 0 if the connection
 * broke: then the round did not count, and training continues with a new lease. */
IslandState island_exchange(Island *s, IslandWork work, int *ended);

/* Collective, at the end of the job, whatever the state of the island. Sends the deltas of the samples that it has
 * trained on since the last exchange, and leaves the server. */
void island_leave(Island *s, IslandWork work);

const Open           *island_round(const Island *s);     /* the current lease: the samples to train on in this round */
const IslandExchange *island_ended(const Island *s);     /* returns the numbers of the round that island_exchange ended
                                                          * last */
int                   island_number(const Island *s);
const char           *island_lost(const Island *s);      /* returns why no server answered, with the server's address;
                                                          * valid after ISLAND_LOST */

#endif
