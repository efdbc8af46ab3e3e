/* blend.h - computes from which source of a blend each sample of the global order is read.
 *
 * A blend is a list of shares: a source, its weight, and the number of tokens until which the share holds. Shares with
 * the same end are a stage. Stages follow each other, and the weights of each stage sum to 1. The source of a sample
 * depends only on its global index. So it is the same for every grid of ranks, after every resume, and in every job
 * that trains the model.
 *
 * The sources of a stage are the leaves of a Huffman tree of their weights. Of the first k samples that reach a node,
 * round(k f) go left, where f is the left side's share of the node's weight. So the source of a sample is computed
 * without the earlier samples and without a table. Each node rounds by at most half a sample. An inner node weighs at
 * most 2/3 of its parent, which keeps these errors from adding up. Of the first k samples of a stage, a source of
 * weight w gives w k with an error below 2; with two sources the error is at most 1/2. Choosing the source with the
 * largest deficit would have an error of at most 1, but needs all earlier samples. */
#ifndef TRAIN_GPT_DATA_BLEND_H
#define TRAIN_GPT_DATA_BLEND_H

#include <stdint.h>

enum { BLEND_SOURCES = 32, BLEND_SHARES = 128 };

typedef struct {
    double  weight;       /* fraction of the samples that come from this source while the share holds, above 0 */
    int64_t until_tokens; /* number of trained tokens at which the share ends; 0: it holds until the end of the run */
} BlendShare;

typedef struct {
    uint64_t left_part;   /* fraction of the node's samples that go to its left child, in units of 2^-62 */
    int      side[2];     /* left and right child: an index in BlendStage.node, or ~s if the child is source s */
} BlendNode;

typedef struct {
    int64_t   first;                 /* global index of the stage's first sample */
    int64_t   before[BLEND_SOURCES]; /* samples that each source gave in earlier stages of the run */
    /* root: index of the root of the tree of sources, or ~s if s is the only source; nodes: number of nodes */
    int       root, nodes;
    BlendNode node[BLEND_SOURCES];   /* inner nodes of the tree of sources; children come before their parents */
} BlendStage;

typedef struct {
    int        sources, stages;
    BlendStage stage[BLEND_SHARES];
} Blend;

/* Returns the number of the source of share i. It counts the different paths before the first one that equals
 * path[i]. */
int blend_source(const char *const *path, int i);
int blend_sources(const char *const *path, int count); /* returns the number of different paths */

/* Makes a blend of `count` shares. Shares with equal until_tokens form a stage; they are adjacent, and stages follow
 * each other in time. path[i] is the path of the source of share[i]. A stage begins with the first sample of seq_len
 * tokens after the end of the previous stage. */
void blend_make(Blend *b, const char *const *path, const BlendShare *share, int count, int64_t seq_len);

/* place of a sample in its source; index: number of samples that the source gave before it */
typedef struct { int source; int64_t index; } BlendPlace;

/* returns the source of the sample with global index g, and its index in the source */
BlendPlace blend_at(const Blend *b, int64_t g);
/* writes to count [sources] how many of the samples before global index g come from each source */
void       blend_count(const Blend *b, int64_t g, int64_t *count);

#endif
