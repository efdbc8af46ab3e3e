/* island.h - a training job that trains one model with others, by way of a server (`train_gpt serve`).
 *
 * Between rounds all jobs hold the same weights x. A round is a lease of samples: `steps` optimizer steps on the island
 * alone. Then each of its ranks sends x - master of its part, and fetches the x that the server makes of all islands'
 * (run/outer/messages.h). Moments stay in the island; one that has none may take another's (outer.moments=peer).
 *
 * With outer.stream they send and fetch the model in fragments, in turns during the round (run/outer/fragments.h),
 * while they train.
 *
 * The ranks of an island act together: they agree on what they wait for, several times a second, and meanwhile hear
 * requests to stop and tick the watchdog. When the connection of one breaks, all connect anew, and train the round anew
 * from the server's x: for outer.patience_seconds, then the island is lost (ISLAND_LOST).
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_H

#include "data/dataset.h"
#include "model/optimizer.h"
#include "run/config/config.h"
#include "run/guard/requests.h"
#include "run/guard/watchdog.h"
#include "run/outer/messages.h"

/* What an island is made of; all borrowed. */
typedef struct {
    const Config  *config;
    Comm          *comm;       /* all ranks of the job */
    Optimizer     *optimizer;
    Stream        *stream;
    const Dataset *train;
    Watchdog      *watchdog;
    Requests      *requests;
    const char    *id;         /* 16 hex digits: the run's run_id */
} IslandParts;

typedef enum {
    ISLAND_TRAINS,             /* on a lease: island_round */
    ISLAND_STOPPED,            /* while it waited it was asked to stop */
    ISLAND_LOST,               /* no server for outer.patience_seconds: island_lost says which */
    ISLAND_DONE                /* the server has reached run.steps; the weights are the last */
} IslandState;

/* Of the steps of a lease. */
typedef struct {
    int64_t samples, tokens;   /* used */
    int64_t updates;           /* that the moments have seen, in all */
    double  loss;              /* mean */
} IslandWork;

/* A round's end, for the logs. */
typedef struct {
    Closed   closed;
    double   ms;               /* that training waited: for the new weights, and the next lease */
    int64_t  sent, received;   /* bytes, of all ranks */
} IslandExchange;

typedef struct Island Island;

/* Takes the host copy of a round's weights. Ends the job where outer.key is no key. */
Island *island_create(IslandParts parts);
void    island_destroy(Island *s);
size_t  island_bytes(const Config *config, const Layout *layout); /* host memory it takes */

/* Collective. Connects, and waits for a lease and its x, which is then in the masters and working copies. Ends the job
 * with the server's code and sentence where it refuses the island. updates: that its moments have seen; 0: they are
 * zero. */
IslandState island_join(Island *s, int64_t updates);

/* Between steps, on each rank for itself: says that the island is alive, and reads what has come. Returns 1 when the
 * connection is broken; when the ranks have agreed on that, all call island_join. */
int island_keep(Island *s);

/* outer.stream, between steps. island_has_x: on each rank for itself, whether the fragment that was sent last has come
 * back. island_turn: collective, after each step of a lease: takes it back where all_have_x or the next one's turn has
 * come, and sends that. *is_anew: the connection broke, and the lease is a new one. */
int         island_has_x(Island *s);
IslandState island_turn(Island *s, IslandWork work, int all_have_x, int *is_anew);

/* Collective, after the last step of the lease: sends the deltas, waits for the next lease and its x. *ended: what was
 * sent and closed; 0: the connection broke, and the round counted for nothing: train on the new lease. */
IslandState island_exchange(Island *s, IslandWork work, int *ended);

/* Collective, at the end, whatever the state: of a lease that is not over the deltas so far are sent, then goodbye. */
void island_leave(Island *s, IslandWork work);

const Open           *island_round(const Island *s);     /* the lease */
const IslandExchange *island_ended(const Island *s);     /* of the last island_exchange */
int                   island_number(const Island *s);
int64_t               island_peer_updates(const Island *s); /* updates of moments that came with the lease; 0: none */
int                   island_fragments(const Island *s); /* outer.stream: of a round; else 0 */
const char           *island_lost(const Island *s);      /* of ISLAND_LOST: a sentence that names the address */

#endif
