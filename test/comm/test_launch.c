/* test_launch.c - the launcher of this process, detected from the environment alone; and a communicator without a
 * launcher. */
#include "comm/comm.h" /* before cmocka.h, which defines fail() as a macro */

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "test/run/lib/child.h"

static const char *const VARIABLES[] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",  "PMI_SIZE",
                                        "PMIX_RANK", "PMIX_SERVER_URI2", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMIX_SERVER_URI41", "PMIX_SERVER_TMPDIR", "PMI_FD", "PMI_PORT", "PMI_CONTROL_PORT", "SLURM_STEP_ID",        "SLURM_PROCID", "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",        "SLURM_JOB_ID", "OMP_NUM_THREADS"};

typedef struct {
    const char *what;
    const char *set[13]; /* environment: name, value, ..., NULL */
    Launch      expected;
    const char *stale;   /* name of the variable that the warning must contain; NULL: no warning */
} Case;

static const Case CASES[] = {
    {"a shell", {NULL}, {0, 0, 1, 0}, NULL},
    {"a shell of a rank whose job is over", {"OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4", "PMIX_RANK", "3", "PMIX_SERVER_URI4", "x", "PMIX_SERVER_TMPDIR", "/nowhere/at/all"}, {0, 0, 1, 0}, "OMPI_COMM_WORLD_RANK=3"},
    {"its variables alone", {"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4"}, {0, 0, 1, 0}, "OMPI_COMM_WORLD_RANK=1"},
    {"MPICH's, whose socket is closed", {"PMI_RANK", "1", "PMI_SIZE", "4", "PMI_FD", "987"}, {0, 0, 1, 0}, "PMI_RANK=1"},
    {"PMIx's alone", {"PMIX_RANK", "2"}, {0, 0, 1, 0}, "PMIX_RANK=2"},
    {"a step of SLURM in a shell of a rank", {"PMI_RANK", "0", "PMI_SIZE", "2", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2"}, {1, 1, 2, 0}, "PMI_RANK=0"},
    {"Open MPI", {"OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "4", "PMIX_RANK", "2", "PMIX_SERVER_URI41", "x"}, {1, 2, 4, 1}, NULL},
    {"Open MPI in a batch script", {"OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4", "SLURM_PROCID", "0", "SLURM_NTASKS", "4", "PMIX_SERVER_URI4", "x"}, {1, 3, 4, 1}, NULL},
    {"mpirun -np 1", {"OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "1", "PMIX_SERVER_URI2", "x", "PMIX_SERVER_TMPDIR", "/tmp"}, {1, 0, 1, 1}, NULL},
    {"MPICH", {"PMI_RANK", "1", "PMI_SIZE", "2", "PMI_PORT", "host:5"}, {1, 1, 2, 1}, NULL},
    {"srun --mpi=pmix", {"PMIX_RANK", "1", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2", "PMIX_SERVER_URI3", "x"}, {1, 1, 0, 1}, NULL},
    {"MPICH in a batch script", {"PMI_RANK", "2", "PMI_SIZE", "4", "SLURM_PROCID", "0", "SLURM_NTASKS", "4", "PMI_CONTROL_PORT", "5"}, {1, 2, 4, 1}, NULL},
    {"mpirun in a shell of srun", {"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "PMIX_SERVER_URI4", "x"}, {1, 1, 2, 1}, NULL},
    {"srun without MPI", {"SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2"}, {1, 1, 2, 0}, NULL},
    {"srun of one task", {"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"}, {0, 0, 1, 0}, NULL},
    {"a batch script, no mpirun", {"SLURM_PROCID", "0", "SLURM_NTASKS", "8"}, {0, 0, 1, 0}, NULL},
};

static void clear(void) {
    for (size_t i = 0; i < sizeof VARIABLES / sizeof *VARIABLES; i++) unsetenv(VARIABLES[i]);
}

static void launchers_are_told_apart(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        const Case *c = &CASES[k];
        clear();
        for (int i = 0; c->set[i]; i += 2) setenv(c->set[i], c->set[i + 1], 1);
        Launch got = launch_detect(), want = c->expected;
        if (got.launched != want.launched || got.rank != want.rank || got.size != want.size || got.manager != want.manager)
            fail_msg("%s: launched %d rank %d size %d manager %d", c->what, got.launched, got.rank, got.size, got.manager);
    }
    clear();
}

static void explain(void *unused) {
    (void)unused;
    launch_detect();
    launch_explain_alone();
    launch_explain_alone();
}

/* If the environment has variables of a launcher that did not start this process, the program warns once and names a
 * variable. */
static void variables_without_their_launcher_are_named(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        clear();
        for (int i = 0; CASES[k].set[i]; i += 2) setenv(CASES[k].set[i], CASES[k].set[i + 1], 1);
        Child child = child_run(explain, NULL);
        if (child_lines(&child) != (CASES[k].stale != NULL) || (CASES[k].stale && !strstr(child.said, CASES[k].stale)))
            fail_msg("%s: \"%s\"", CASES[k].what, child.said);
    }
    clear();
}

/* mpirun starts the ranks of one job, which run a subcommand once, together. Tasks of srun may have different
 * arguments, so each runs its own subcommand. Tests how the two are told apart. */
static void mpirun_and_srun_are_told_apart(void **state) {
    (void)state;
    clear();
    assert_int_equal(launch_is_mpirun((Launch){0, 0, 1, 0}), 0);
    assert_int_equal(launch_is_mpirun((Launch){1, 1, 2, 1}), 1);
    setenv("SLURM_STEP_ID", "0", 1), setenv("SLURM_PROCID", "1", 1), setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    assert_int_equal(launch_is_mpirun((Launch){1, 1, 4, 0}), 0); /* not mpirun: a task of srun */
    assert_int_equal(launch_is_mpirun((Launch){1, 1, 4, 1}), 0); /* not mpirun: a task of srun --mpi=pmi2 */
    assert_int_equal(launch_is_mpirun((Launch){1, 6, 8, 1}), 1); /* MPICH's mpirun, whose proxies srun started */
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    assert_int_equal(launch_is_mpirun((Launch){1, 1, 4, 1}), 1); /* Open MPI's mpirun in a SLURM job */
    clear();
}

typedef struct {
    const char *what;
    const char *set[9];
    const char *warning; /* text that the warning contains; NULL: no warning */
} Advice;

static const Advice ADVICE[] = {
    {"a shell", {NULL}, NULL},
    {"a batch script without mpirun", {"SLURM_JOB_ID", "5", "SLURM_NTASKS", "8", "SLURM_PROCID", "0"}, "SLURM gave this job 8 tasks, but the program was started as one process: put mpirun or srun"},
    {"a batch script of one task", {"SLURM_JOB_ID", "5", "SLURM_NTASKS", "1", "SLURM_PROCID", "0", "OMP_NUM_THREADS", "1"}, NULL},
    {"one task by srun", {"SLURM_JOB_ID", "5", "SLURM_NTASKS", "8", "SLURM_STEP_ID", "0", "OMP_NUM_THREADS", "1"}, NULL},
};
static const Advice ONE_CORE[] = {
    {"bound by hand", {NULL}, NULL},
    {"a batch script", {"SLURM_JOB_ID", "5"}, " cores: sbatch --cpus-per-task=N gives each rank N"},
    {"a step", {"SLURM_JOB_ID", "5", "SLURM_STEP_ID", "0"}, " cores: srun --cpus-per-task=N gives each rank N"},
    {"one thread, as asked", {"SLURM_JOB_ID", "5", "OMP_NUM_THREADS", "1"}, NULL},
    {"more threads than the core has", {"SLURM_JOB_ID", "5", "OMP_NUM_THREADS", "8"}, "each rank has one of this host's "},
};

static void start_alone(void *core) {
    if (core) sched_setaffinity(0, sizeof(cpu_set_t), (cpu_set_t *)core);
    launch_explain_alone(); /* subcommands call this function; it must not advise about unused tasks of the job */
    launch_explain_tasks();
    Comm *c = world_all(world_join(launch_detect()));
    world_threads(comm_world(c));
    world_leave(comm_world(c));
}

static void expect_advice(const Advice *advice, size_t count, cpu_set_t *core) {
    for (size_t k = 0; k < count; k++) {
        clear();
        for (int i = 0; advice[k].set[i]; i += 2) setenv(advice[k].set[i], advice[k].set[i + 1], 1);
        Child child = child_run(start_alone, core);
        if (child.code != 0 || child_lines(&child) != (advice[k].warning != NULL) ||
            (advice[k].warning && !strstr(child.said, advice[k].warning)))
            fail_msg("%s: exit %d, said \"%s\"", advice[k].what, child.code, child.said);
    }
    clear();
}

static void a_job_that_wastes_its_tasks_is_told(void **state) {
    (void)state;
    expect_advice(ADVICE, sizeof ADVICE / sizeof *ADVICE, NULL);
}

static void read_line(const char *path, char line[32]) {
    FILE *file = fopen(path, "r");
    if (file && !fgets(line, 32, file)) line[0] = 0;
    if (file) fclose(file);
}

static void a_rank_of_one_core_is_told(void **state) {
    (void)state;
    cpu_set_t mine, one;
    int       first = 0;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) skip();
    while (!CPU_ISSET(first, &mine)) first++;
    CPU_SET(first, &one);
    char path[96], siblings[32] = "";
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", first);
    read_line(path, siblings);
    /* with one core there is nothing to advise */
    if (CPU_COUNT(&mine) < (strpbrk(siblings, ",-") ? 3 : 2)) skip();
    char quota[32] = "max";
    read_line("/sys/fs/cgroup/cpu.max", quota);
    /* in a container limited to one core there is nothing to advise */
    if (strncmp(quota, "max", 3) != 0) skip();
    expect_advice(ONE_CORE, sizeof ONE_CORE / sizeof *ONE_CORE, &one);
}

static void alone_everything_is_a_no_op(void **state) {
    (void)state;
    clear();
    Comm   *c = world_all(world_join(launch_detect()));
    float   x[128];
    double  sum = 2.5;
    int64_t count = 7;
    size_t *bytes;
    for (int i = 0; i < 128; i++) x[i] = (float)i;
    assert_int_equal(comm_size(c), 1);
    assert_int_equal(world_local_size(comm_world(c)), 1);
    assert_true(world_threads(comm_world(c)) >= 1);
    comm_reduce_scatter_start(c, tensor_1d(x, F32, 128));
    comm_all_gather_start(c, tensor_1d(x, F32, 128));
    comm_poll(c);
    comm_finish(c);
    comm_all_reduce(c, tensor_1d(x, F32, 128));
    comm_barrier(c);
    comm_broadcast(c, x, sizeof x, 0);
    comm_all_reduce_f64(c, &sum, 1, COMM_SUM);
    comm_all_reduce_i64(c, &count, 1, COMM_MAX);
    for (int i = 0; i < 128; i++) assert_true(x[i] == (float)i);
    assert_true(sum == 2.5 && count == 7);
    char *all = comm_gather(c, "abc", 3, 0, &bytes);
    assert_memory_equal(all, "abc", 3);
    assert_int_equal(bytes[0], 3);
    assert_true(comm_times(c).sends == 0 && comm_buffer_bytes(COMM_RING, 1) == 0);
    free(all), free(bytes);
    world_leave(comm_world(c));
}

/* Makes collectives of a 2 x 2 grid that only note the bytes that they would send, as `plan` does, and checks these
 * bytes. */
static void dry_collectives_note_their_bytes(void **state) {
    (void)state;
    clear();
    Ledger  l = {0};
    World  *w = world_dry(4, 3, &l);
    Mesh    grid = {{1, 1, 2, 2, 1}};
    Comm   *all = world_all(w), *shard = comm_group(all, grid, WITH_SHARD, "shard"),
         *alone = comm_group(all, grid, WITH_TENSOR, "tensor");
    Tensor  nothing = tensor_1d(NULL, BF16, 1024);
    double  number = 1.5;
    assert_true(comm_size(shard) == 2 && comm_rank(shard) == 1 && comm_size(alone) == 1 && comm_rank(all) == 3);
    comm_set_kind(all, COMM_NCCL);
    comm_all_gather_start(all, nothing);
    comm_all_gather(shard, nothing);
    comm_all_reduce_start(shard, nothing);
    comm_all_reduce(alone, nothing);
    comm_all_reduce_f64(all, &number, 1, COMM_SUM);
    comm_wait(all, 0);
    comm_finish(shard);
    assert_true(ledger_sent(&l, "all") == 2048 * 0.75 + 2 * 8 * 0.75 && ledger_sent(&l, "shard") == 2048 * 0.5 * 3 &&
                ledger_sent(&l, "tensor") == 0);
    assert_true(number == 1.5 && ledger_bytes(&l) == 0);
    comm_free(alone), comm_free(shard);
    world_leave(w);
    ledger_free(&l);
}

int main(void) {
    const struct CMUnitTest test_launch[] = {
        cmocka_unit_test(launchers_are_told_apart), cmocka_unit_test(variables_without_their_launcher_are_named), cmocka_unit_test(mpirun_and_srun_are_told_apart),
        cmocka_unit_test(a_job_that_wastes_its_tasks_is_told),
        cmocka_unit_test(a_rank_of_one_core_is_told),
        cmocka_unit_test(alone_everything_is_a_no_op),
        cmocka_unit_test(dry_collectives_note_their_bytes),
    };
    return cmocka_run_group_tests(test_launch, NULL, NULL);
}
