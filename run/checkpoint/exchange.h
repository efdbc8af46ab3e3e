/* exchange.h - the file runs of a checkpoint that a rank writes. A file run is a range of bytes of a file. For
 * checkpoint_*.c.
 *
 * A rank holds spans of its pieces (core/layout.h). If tensor ranks cut the columns of a matrix, a span covers many
 * short file runs, one in each row. The tensor ranks hold columns of the same rows, so they exchange them before a
 * save. Each rank gets some of the rows whole, and a span becomes a few long file runs. Rows that all tensor ranks hold
 * are divided among them for writing.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_EXCHANGE_H
#define TRAIN_GPT_RUN_CHECKPOINT_EXCHANGE_H

#include "model/shards.h"

typedef struct {
    FileRun *run;    /* owned, in the order of the copied elements */
    int64_t  runs, room; /* file runs; capacity of run */
    int64_t  elems;  /* elements of all file runs */
} FileRuns;

/* Returns the file runs that this rank writes to the file of the masters. The file of an AdamW moment has the same
 * ones. Free with free(runs.run). */
FileRuns exchange_runs(const Shards *z);

/* Returns the elements of a span that this rank writes without an exchange: all of them, or its share if all tensor
 * ranks hold the span. */
Span exchange_kept(const Shards *z, Span span);
int  exchange_is_needed(const Shards *z, Span span);
/* Collective over the tensor ranks, for a span that needs an exchange. mine [span.elems]: values of the span on this
 * rank. out: gets the elements of the rows that this rank writes, in the order of its file runs. Returns their
 * number. */
int64_t exchange_rows(const Shards *z, Span span, const float *mine, float *out);
int64_t exchange_rows_elems(const Shards *z, Span span); /* the number that exchange_rows returns */

/* Return the most floats that a rank writes, and the floats of scratch that an exchange needs. */
int64_t exchange_most_elems(const Layout *layout);
int64_t exchange_scratch_elems(const Layout *layout);

#endif
