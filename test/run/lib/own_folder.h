/* own_folder.h - shared by the checkpoint tests in one process: the one rank, and a scratch folder of each case.
 * Included last: cmocka takes the name fail() for a macro.
 */
#ifndef TRAIN_GPT_TEST_RUN_OWN_FOLDER_H
#define TRAIN_GPT_TEST_RUN_OWN_FOLDER_H

#include "test/run/checkpoint/checkpoint_fixture.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#undef fail
#include <cmocka.h>

static Comm *comm;
static char  dir[64];

static inline int enter(void **state) {
    (void)state;
    return fixture_folder(dir);
}

static inline int leave(void **state) {
    (void)state;
    return fixture_folder_remove(dir);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, enter, leave)

/* One thread: a forked child has no pool of them. */
#define RUN_ALONE(cases) (omp_set_num_threads(1), comm = world_all(world_join((Launch){0})), cmocka_run_group_tests(cases, NULL, NULL))

#endif
