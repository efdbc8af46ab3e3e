/* own_folder.h - for checkpoint tests in one process: a world of one rank, and a scratch folder for each case. Include
 * it last, because cmocka defines fail() as a macro. */
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

/* Runs the test cases with one OpenMP thread, because they fork children, which do not have the threads of a pool. */
#define RUN_ALONE(cases) (omp_set_num_threads(1), comm = world_all(world_join((Launch){0})), cmocka_run_group_tests(cases, NULL, NULL))

#endif
