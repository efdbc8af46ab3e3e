/* test_tree.c - the order of additions that comm.h promises, compared with its plain definition: a recursion over the
 * leaves (micro-batches), padded to a power of two, for any number of ranks. */
#include "comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/rng.h"

enum { MOST_LEAVES = 160 };
static float leaf[MOST_LEAVES];

/* Fills the leaves with values of very different sizes, so that every order of additions rounds differently. */
static void fill(void) {
    for (int k = 0; k < MOST_LEAVES; k++)
        leaf[k] = (float)((rng_uniform(1, RNG_TEST, (uint64_t)k) - 0.5) * (k % 5 == 0 ? 1e4 : 1.0));
}

static float sum_by_definition(int64_t first, int64_t width, int64_t leaves) {
    if (width == 1) return leaf[first];
    float left = sum_by_definition(first, width / 2, leaves);
    return first + width / 2 < leaves ? left + sum_by_definition(first + width / 2, width / 2, leaves) : left;
}

typedef struct { TreeNodes nodes; float sum[TREE_MOST]; } Sums;

static void push(Sums *s, TreeNode node, float value) {
    s->sum[s->nodes.count] = value;
    int joined = tree_push(&s->nodes, node), last = s->nodes.count + joined - 1;
    for (; joined > 0; joined--, last--) s->sum[last - 1] = s->sum[last - 1] + s->sum[last];
}

static void the_same_sum_on_any_ranks(void **state) {
    (void)state;
    fill();
    int different = 0;
    for (int64_t leaves = 1; leaves <= MOST_LEAVES; leaves++) {
        int64_t width = 1;
        while (width < leaves) width *= 2;
        float want = sum_by_definition(0, width, leaves), in_order = leaf[0];
        for (int64_t k = 1; k < leaves; k++) in_order += leaf[k];
        different += want != in_order;
        for (int ranks = 1; ranks <= leaves; ranks++) {
            if (leaves % ranks) continue;
            Sums all = {0};
            for (int r = 0; r < ranks; r++) {
                Sums      own = {0};
                TreeNodes nodes = tree_of_rank(leaves, ranks, r);
                for (int64_t k = leaves / ranks * r; k < leaves / ranks * (r + 1); k++) push(&own, (TreeNode){k, 1}, leaf[k]);
                assert_int_equal(own.nodes.count, nodes.count);
                for (int i = 0; i < nodes.count; i++) {
                    assert_true(own.nodes.node[i].first == nodes.node[i].first && own.nodes.node[i].leaves == nodes.node[i].leaves);
                    push(&all, nodes.node[i], own.sum[i]);
                }
            }
            float got = all.sum[all.nodes.count - 1];
            for (int i = all.nodes.count - 2; i >= 0; i--) got = all.sum[i] + got;
            assert_true(got == want);
        }
    }
    /* most sums depend on the order of additions, so a wrong order would be noticed */
    assert_true(different > MOST_LEAVES / 2);
}

static int log2_up(int64_t n) {
    int log = 0;
    while ((int64_t)1 << log < n) log++;
    return log;
}

static void few_buffers(void **state) {
    (void)state;
    for (int64_t leaves = 1; leaves <= 1200; leaves++)
        for (int ranks = 1; ranks <= 16 && ranks <= leaves; ranks++) {
            if (leaves % ranks) continue;
            int powers = (leaves & (leaves - 1)) == 0 && (ranks & (ranks - 1)) == 0;
            assert_in_range(tree_buffers(leaves, ranks), 0, ranks == 1 || powers ? log2_up(leaves) : 2 * log2_up(leaves / ranks));
        }
    assert_int_equal(tree_buffers(8, 1), 3);
    assert_int_equal(tree_buffers(8, 8), 0); /* with one micro-batch for each rank no partial sum needs a buffer */
}

int main(void) {
    const struct CMUnitTest tree[] = {cmocka_unit_test(the_same_sum_on_any_ranks), cmocka_unit_test(few_buffers)};
    return cmocka_run_group_tests(tree, NULL, NULL);
}
