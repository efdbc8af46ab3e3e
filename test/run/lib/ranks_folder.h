/* ranks_folder.h - a scratch folder that all ranks of a case share. Rank 0 makes it before the case and removes it
 * afterwards. */
#ifndef TRAIN_GPT_TEST_RUN_RANKS_FOLDER_H
#define TRAIN_GPT_TEST_RUN_RANKS_FOLDER_H

#include "test/comm/ranks.h"
#include "test/run/checkpoint/checkpoint_fixture.h"

static char dir[64];

static inline int enter(void **state) {
    (void)state;
    if (comm_rank(world) == 0 && fixture_folder(dir)) return -1;
    comm_broadcast(world, dir, sizeof dir, 0);
    return 0;
}

static inline int leave(void **state) {
    (void)state;
    comm_barrier(world);
    return comm_rank(world) == 0 ? fixture_folder_remove(dir) : 0;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, enter, leave)

#endif
