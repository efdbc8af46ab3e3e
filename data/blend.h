/* blend.h - which source of a blend each sample of the global order comes from.
 *
 * A blend is a list of shares: a source, its weight, and the tokens until which it holds. Shares with the same end are a
 * stage; stages follow each other, and the weights of each sum to 1. The rule is a function of the global index alone,
 * so that any grid, any resume and any island see the same.
 *
 * The sources of a stage are the leaves of a Huffman tree of their weights. Of the first k samples that reach a node
 * round(k f) go left, where f is the left side's part of the node's weight. So a sample's way down needs no sample
 * before it, and no table. Each node rounds by at most half a sample, and the tree's shape (an inner node weighs at most
 * 2/3 of its parent) keeps these from adding up: of the first k samples of a stage a source of weight w gives w k within
 * less than 2, of two sources within 1/2. Largest deficit would give w k within 1, but needs all samples before.
 */
#ifndef TRAIN_GPT_DATA_BLEND_H
#define TRAIN_GPT_DATA_BLEND_H

#include <stdint.h>

enum { BLEND_SOURCES = 32, BLEND_SHARES = 128 };

typedef struct {
    double  weight;       /* above 0 */
    int64_t until_tokens; /* of the run; 0: to its end */
} BlendShare;

typedef struct {
    uint64_t left_part;   /* f in units of 2^-62 */
    int      side[2];     /* left and right: a node of the stage, or ~source */
} BlendNode;

typedef struct {
    int64_t   first;                 /* global index of its first sample */
    int64_t   before[BLEND_SOURCES]; /* samples that each source gave before it */
    int       root, nodes;           /* root ~source: there is but one */
    BlendNode node[BLEND_SOURCES];   /* parents after their children */
} BlendStage;

typedef struct {
    int        sources, stages;
    BlendStage stage[BLEND_SHARES];
} Blend;

/* The source of share i: the number of different paths before the first that is path[i]. */
int blend_source(const char *const *path, int i);
int blend_sources(const char *const *path, int count); /* how many there are */

/* count shares of paths, stages in order. A stage begins with the first sample of seq_len tokens that lies behind the
 * end of the one before. */
void blend_make(Blend *b, const char *const *path, const BlendShare *share, int count, int64_t seq_len);

typedef struct { int source; int64_t index; } BlendPlace; /* index: samples that this source gave before */

BlendPlace blend_at(const Blend *b, int64_t g);               /* of global index g */
void       blend_count(const Blend *b, int64_t g, int64_t *count); /* [sources]: samples of each before global index g */

#endif
