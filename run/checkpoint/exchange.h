/* exchange.h - the runs of a checkpoint's files that a rank writes. For checkpoint_*.c.
 *
 * A rank holds spans of its pieces (core/layout.h). Where tensor ranks cut the columns of a matrix, a span lies in the
 * file in many short runs, one in each row. Its ranks hold the same rows of it, so before a save they exchange: each
 * gets some of the rows whole, and a span becomes a few long runs. Of a row that all tensor ranks hold, each writes a
 * part.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_EXCHANGE_H
#define TRAIN_GPT_RUN_CHECKPOINT_EXCHANGE_H

#include "model/shards.h"

typedef struct {
    FileRun *run;    /* owned, in the order of the copied elements */
    int64_t  runs, room;
    int64_t  elems;  /* of all runs */
} FileRuns;

/* Returns the runs of the masters' file that this rank writes. The file of an AdamW moment has the same runs. Free with
 * free(runs.run). */
FileRuns exchange_runs(const Shards *z);

/* The part of a span of bucket `bucket` that stays here without an exchange: all of it, or this rank's share of rows
 * that all tensor ranks hold. */
Span exchange_kept(const Shards *z, Span span);
int  exchange_is_needed(const Shards *z, Span span);
/* Collective over the tensor ranks, for a span that needs it: `mine` [span.elems] are its values here, and this rank's
 * share of all ranks' goes to `out` in the order of the runs. Returns how many. */
int64_t exchange_rows(const Shards *z, Span span, const float *mine, float *out);
int64_t exchange_rows_elems(const Shards *z, Span span); /* how many, without an exchange */

/* Floats that a rank writes at most, and those that an exchange takes beside them. */
int64_t exchange_most_elems(const Layout *layout);
int64_t exchange_scratch_elems(const Layout *layout);

#endif
