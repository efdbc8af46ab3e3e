/* rounds.h - the rounds of a job that is an island (outer.server): its steps, samples and logs follow the leases of the
 * server (run/outer/island.h). In other jobs none of these functions does anything. Collective, all but rounds_keep. */
#ifndef TRAIN_GPT_RUN_ROUNDS_H
#define TRAIN_GPT_RUN_ROUNDS_H

#include "run/run.h"

/* Joins, and takes the server's weights and first lease. Returns the completed steps: those that the lease begins at.
 * Sets r->between.stop where it was asked to stop meanwhile, or has found no server. */
int64_t rounds_begin(Run *r, int64_t step);

/* After each step, with its loss: the exchange, where the round is over; where the connection is broken the round is
 * trained anew. Returns the completed steps: fewer then, or more where other islands have gone on. */
int64_t rounds_step(Run *r, int64_t step, double loss);

/* While a step, an evaluation or a sample takes long: the server hears that the island is alive. */
void rounds_keep(Run *r);

/* outer.send=gradients: the server updates, and this job does not. */
int rounds_send_gradients(const Run *r);

/* Training is over, or stops: the deltas of a round that is not over are sent. */
void rounds_leave(Run *r, int64_t step);

/* When all is saved: exit 77 where the server is lost. */
void rounds_end(Run *r);

#endif
