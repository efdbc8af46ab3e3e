/* blend.c - see blend.h. */
#include "data/blend.h"

#include <string.h>

#include "core/error.h"

enum { PART_BITS = 62 };

int blend_source(const char *const *path, int i) {
    int source = 0, first = 0;
    while (strcmp(path[first], path[i])) first++;
    for (int k = 0; k < first; k++) {
        int seen = 0;
        while (strcmp(path[seen], path[k])) seen++;
        source += seen == k;
    }
    return source;
}

int blend_sources(const char *const *path, int count) {
    int sources = 0;
    for (int i = 0; i < count; i++)
        if (blend_source(path, i) == sources) sources++; /* counts a source at its first share */
    return sources;
}

/* Returns how many of the first k samples that reach a node of the tree of sources go to its left child. */
static int64_t left_of(const BlendNode *node, int64_t k) {
    unsigned __int128 left = (unsigned __int128)(uint64_t)k * node->left_part;
    return (int64_t)((left + ((unsigned __int128)1 << (PART_BITS - 1))) >> PART_BITS);
}

/* --- making ------------------------------------------------------------------------------------------------------- */

typedef struct { double weight; int side; } Branch;

/* Removes the lightest branch (a source, or a subtree of sources) from the list and returns it. Among equally light
 * branches it is the first. */
static Branch take_lightest(Branch *list, int *count) {
    int at = 0;
    for (int i = 1; i < *count; i++)
        if (list[i].weight < list[at].weight) at = i;
    Branch lightest = list[at];
    memmove(list + at, list + at + 1, sizeof *list * (size_t)(--*count - at));
    return lightest;
}

void blend_make(Blend *b, const char *const *path, const BlendShare *share, int count, int64_t seq_len) {
    memset(b, 0, sizeof *b);
    b->sources = blend_sources(path, count);
    CHECK(count > 0 && count <= BLEND_SHARES && b->sources <= BLEND_SOURCES, "a blend of %d shares", count);
    for (int from = 0, to; from < count; from = to) {
        Branch     list[BLEND_SOURCES] = {{0}};
        int64_t    end = from ? share[from - 1].until_tokens : 0, first = end / seq_len + (end % seq_len != 0);
        BlendStage stage = {.first = first};
        for (to = from; to < count && share[to].until_tokens == share[from].until_tokens; to++) {
            CHECK(to - from < BLEND_SOURCES, "a source stands twice in a stage");
            list[to - from] = (Branch){share[to].weight, ~blend_source(path, to)};
        }
        for (int branches = to - from; branches > 1;) {
            Branch     left = take_lightest(list, &branches), right = take_lightest(list, &branches);
            double     weight = left.weight + right.weight;
            BlendNode *node = &stage.node[stage.nodes];
            node->left_part = (uint64_t)(left.weight / weight * (double)(1ull << PART_BITS));
            node->side[0] = left.side, node->side[1] = right.side;
            list[branches++] = (Branch){weight, stage.nodes++};
        }
        stage.root = list[0].side;
        if (from) blend_count(b, first, stage.before);
        b->stage[b->stages++] = stage;
    }
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

static const BlendStage *stage_of(const Blend *b, int64_t g) {
    int at = b->stages - 1;
    while (at > 0 && b->stage[at].first > g) at--;
    return &b->stage[at];
}

BlendPlace blend_at(const Blend *b, int64_t g) {
    const BlendStage *stage = stage_of(b, g);
    int64_t           k = g - stage->first;
    int               side = stage->root;
    while (side >= 0) {
        const BlendNode *node = &stage->node[side];
        int64_t          left = left_of(node, k);
        int              is_left = left_of(node, k + 1) > left;
        side = node->side[is_left ? 0 : 1];
        k = is_left ? left : k - left;
    }
    return (BlendPlace){~side, stage->before[~side] + k};
}

void blend_count(const Blend *b, int64_t g, int64_t *count) {
    const BlendStage *stage = stage_of(b, g);
    /* [nodes] how many of the samples before g in this stage reach each node of the tree of sources */
    int64_t           reach[BLEND_SOURCES];
    memcpy(count, stage->before, sizeof *count * (size_t)b->sources);
    if (stage->root < 0) count[~stage->root] += g - stage->first;
    else                 reach[stage->root] = g - stage->first;
    for (int n = stage->nodes - 1; n >= 0; n--) {
        int64_t left = left_of(&stage->node[n], reach[n]), part[2] = {left, reach[n] - left};
        for (int s = 0; s < 2; s++) {
            int side = stage->node[n].side[s];
            if (side < 0) count[~side] += part[s];
            else          reach[side] = part[s];
        }
    }
}
