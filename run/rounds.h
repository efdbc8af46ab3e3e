/* rounds.h - the rounds of a job that is an island: it trains one model together with other jobs through a server
 * (outer.server). The server hands out leases (run/outer/island.h): ranges of samples to train on. The steps, samples
 * and logs of the job follow its leases. In other jobs these functions do nothing. All except rounds_keep are
 * collective. */
#ifndef TRAIN_GPT_RUN_ROUNDS_H
#define TRAIN_GPT_RUN_ROUNDS_H

#include "run/run.h"

/* Joins the server, and receives its weights and the first lease (a range of samples to train on). Returns the number
 * of completed steps, at which the lease begins. Sets r->between.stop after a request to stop, or if no server was
 * found. */
int64_t rounds_begin(Run *r, int64_t step);

/* Called after each step, with its loss. A round ends when the steps of its lease (the samples that the server
 * assigned) are done. Then this function sends the result to the server and gets the new weights. If the connection is
 * broken, begins the round again. Returns the number of completed steps: fewer if the round begins again, more if the
 * other islands are ahead. */
int64_t rounds_step(Run *r, int64_t step, double loss);

/* Called during long steps. Shows the server that this job is alive. */
void rounds_keep(Run *r);
/* Collective. Called between the parts of evaluations and samples, as a callback with a Run. Shows the server that this
 * job is alive. Returns 1 if the ranks have a request to stop (requests_agree). */
int  rounds_stop(void *run);

/* Returns 1 if outer.send=gradients. Then the server updates the weights, and this job does not. */
int rounds_send_gradients(const Run *r);

/* Called when training ends or stops. Sends the deltas (changes of the weights) of an unfinished round. */
void rounds_leave(Run *r, int64_t step);

/* Called after the last save. Exit 77 if the server is lost. */
void rounds_end(Run *r);

#endif
