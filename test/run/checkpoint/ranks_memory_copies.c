/* ranks_memory_copies.c - copies of the state in memory, on one host and on several simulated ones. After the loss of a
 * job the newest complete step is restored with all its bits. Copies that are damaged, lost, older or of another run
 * are not used.
 * Runs on 1 2 4 ranks.
 */
#include "core/failpoints.h"
#include "core/io.h"

#include "test/run/checkpoint/memory_fixture.h"

#include <fcntl.h>
#include <math.h>
#include <omp.h>

#include "test/run/lib/ranks_folder.h"

/* A capture of this rank's stderr. before: a duplicate of the original descriptor. path: the file that gets the
 * output. */
typedef struct { int before; Path path; } Caught;

static Caught catch_stderr(void) {
    Caught c = {dup(STDERR_FILENO), path_of("%s/stderr.%d", dir, comm_rank(world))};
    fflush(stderr);
    int fd = open(c.path.text, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(fd, STDERR_FILENO);
    close(fd);
    return c;
}

/* Ends the capture of stderr. Returns on how many ranks the captured output contains the words. */
static int64_t said(Caught c, const char *words) {
    char *text;
    fflush(stderr);
    dup2(c.before, STDERR_FILENO);
    close(c.before);
    CHECK(io_read_file(c.path.text, 1 << 20, &text) >= 0, "cannot read %s", c.path.text);
    int64_t all = strstr(text, words) != NULL;
    free(text);
    comm_all_reduce_i64(world, &all, 1, COMM_SUM);
    return all;
}

static int is_first(void) { return comm_rank(world) == 0; }

/* Creates a run with a checkpoint of step 5 on disk and copies of steps 6 and 7 in memory. Then ends its job as a crash
 * would, which keeps the copies. */
static void lose(Fixture *f, int on_hosts) {
    hosts = on_hosts;
    memory_fixture(f, world, dir);
    EXPECT_ON_ALL(checkpoint_resume(&f->state).step == 0);
    fixture_fill(f, 5);
    checkpoint_save(&f->state, 5);
    take_and_lose(f, 6, 7);
}

static void expect_resume(Fixture *f, int64_t step) {
    Resumed resumed = checkpoint_resume(&f->state);
    EXPECT_ON_ALL(resumed.step == step);
    EXPECT_ON_ALL(fixture_differences(f, step) == 0);
    fixture_destroy(f);
}

static void test_newest_comes_back(void **state) {
    (void)state;
    for (int n = 1; n <= comm_size(world); n++) {
        Fixture f;
        lose(&f, n);
        Resumed resumed = checkpoint_resume(&f.state);
        EXPECT_ON_ALL(resumed.step == 7 && resumed.ranks == comm_size(world) && !resumed.is_copy);
        EXPECT_ON_ALL(fixture_differences(&f, 7) == 0);
        EXPECT_ON_ALL(f.train_state.start.step == 7 && f.train_state.start.tokens == 7 * 480);
        /* uses the checkpoint of step 7 that the first resume made, because the copies are not newer */
        expect_resume(&f, 7);
        if (is_first()) fixture_folder_remove(dir), mkdir(dir, 0700);
        comm_barrier(world);
    }
}

static void test_disk_is_newer(void **state) {
    (void)state;
    Fixture f;
    lose(&f, 1);
    fixture_fill(&f, 8);
    checkpoint_save(&f.state, 8);
    expect_resume(&f, 8);
    EXPECT_ON_ALL(access(path_of("%s/checkpoints/step_00000007", dir).text, F_OK) != 0);
}

/* A resume uses the in-memory copies of step 7 if there is no checkpoint on disk. It uses them again if the only
 * checkpoint is damaged. */
static void test_without_a_checkpoint(void **state) {
    (void)state;
    Fixture f;
    lose(&f, 1);
    if (is_first()) CHECK(system(path_of("rm -r '%s/checkpoints'", dir).text) == 0, "rm");
    comm_barrier(world);
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 7);
    comm_barrier(world);
    if (is_first()) flip(path_of("%s/checkpoints/step_00000007/model.safetensors", dir).text, 3000);
    comm_barrier(world);
    expect_resume(&f, 7);
}

/* A byte in the in-memory copy of step 7 is flipped, so the resume uses the copy of step 6. If that is damaged too, it
 * uses the checkpoint of step 5. Each damaged copy is named in a warning. */
static void test_flipped_byte(void **state) {
    (void)state;
    Fixture    f;
    int        last = comm_size(world) - 1;
    MemoryName newest = memory_name(last, 0, 0), older = memory_name(last, 1, 0);
    lose(&f, 1);
    if (is_first()) flip(memory_file(&f, "hostA", newest.text).text, 300000);
    comm_barrier(world);
    Caught c = catch_stderr();
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 6);
    EXPECT_ON_ALL(said(c, path_of("%s is passed over: it is damaged", memory_file(&f, "hostA", newest.text).text).text) == 1);
    EXPECT_ON_ALL(fixture_differences(&f, 6) == 0);
    if (is_first()) {
        CHECK(system(path_of("rm -r '%s/checkpoints/step_00000006'", dir).text) == 0, "rm");
        /* byte 60 is in the head of the copy (its manifest), so the message must say that the head is damaged */
        flip(memory_file(&f, "hostA", older.text).text, 60);
    }
    comm_barrier(world);
    c = catch_stderr();
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 5);
    EXPECT_ON_ALL(said(c, path_of("%s is passed over: its head is damaged", memory_file(&f, "hostA", older.text).text).text) == 1);
    expect_resume(&f, 5);
}

static void test_neighbour_has_it(void **state) {
    (void)state;
    if (comm_size(world) == 1) return;
    Fixture f;
    lose(&f, 2);
    if (is_first()) flip(memory_file(&f, "hostA", memory_name(0, 0, 0).text).text, 300000);
    comm_barrier(world);
    expect_resume(&f, 7);
}

/* Deletes the in-memory copies on each simulated host in turn. With several hosts, each host also keeps a second copy
 * of another host's state, so step 7 is restored. With one host the checkpoint of step 5 is used. */
static void test_lost_host(void **state) {
    (void)state;
    static const char *const name[] = {"hostA", "hostB", "hostC", "hostD"};
    Fixture f;
    for (int n = 1; n <= comm_size(world); n++)
        for (int lost = 0; lost < n; lost++) {
            lose(&f, n);
            if (is_first()) CHECK(system(path_of("rm -r '%s'", memory_file(&f, name[lost], "").text).text) == 0, "rm");
            comm_barrier(world);
            expect_resume(&f, n == 1 ? 5 : 7);
            if (is_first()) fixture_folder_remove(dir), mkdir(dir, 0700);
            comm_barrier(world);
        }
}

/* Each host's copies exist only on that host and on the next one. If both hosts are lost, step 7 cannot be restored,
 * and a warning names it. */
static void test_lost_hosts(void **state) {
    (void)state;
    Fixture f;
    if (comm_size(world) < 3) return;
    lose(&f, 3);
    if (is_first())
        CHECK(system(path_of("rm -r '%s' '%s'", memory_file(&f, "hostA", "").text, memory_file(&f, "hostB", "").text).text) == 0, "rm");
    comm_barrier(world);
    Caught c = catch_stderr();
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 5);
    EXPECT_ON_ALL(said(c, "the copies in memory of step 7 are not used, because only ") == 1);
    expect_resume(&f, 5);
}

/* The last rank was killed while it copied step 7 to memory. The first bytes of a copy are zero until it is complete.
 * The resume therefore uses step 6, without a warning. */
static void test_cut_off_copy(void **state) {
    (void)state;
    Fixture f;
    lose(&f, 1);
    if (is_first()) {
        int fd = io_open(memory_file(&f, "hostA", memory_name(comm_size(world) - 1, 0, 0).text).text, IO_SHARED);
        CHECK(fd >= 0 && io_pwrite(fd, "\0\0\0\0\0\0\0", 8, 0) == 0, "cannot write");
        io_close(fd);
    }
    comm_barrier(world);
    Caught c = catch_stderr();
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 6);
    EXPECT_ON_ALL(said(c, "passed over") == 0);
    expect_resume(&f, 6);
}

/* In-memory copies are not used if the config switches them off, or if the run folder now belongs to a new run. */
static void test_not_ours(void **state) {
    (void)state;
    Fixture f;
    lose(&f, 1);
    f.config.checkpoint.memory_every = 0;
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 5);
    f.config.checkpoint.memory_every = 1;
    if (is_first()) memory_write_run_id(dir, "fedcba9876543210");
    comm_barrier(world);
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 5);
    if (is_first()) unlink(path_of("%s/run_id", dir).text);
    comm_barrier(world);
    expect_resume(&f, 5);
}

/* A resume does not use an in-memory copy that was marked invalid, or whose weights or moments are not finite. */
static void test_of_no_use(void **state) {
    (void)state;
    Fixture      f;
    MemoryCopied copied;
    hosts = 1;
    memory_fixture(&f, world, dir);
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 0);
    fixture_fill(&f, 5);
    checkpoint_save(&f.state, 5);
    MemoryCopies *m = memory_copies_create(&f.state);
    fixture_fill(&f, 6);
    memory_copies_start(m, 6);
    memory_copies_forget(m);
    EXPECT_ON_ALL(!memory_copies_next(m, &copied));
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 5);
    ((float *)optimizer_tensor(&f.optimizer, 0, f.shards->span[0]).data)[0] = (float)INFINITY;
    Caught c = catch_stderr();
    memory_copies_start(m, 7);
    memory_copies_start(m, 8); /* memory_copies_start waits until the copy of step 7 is made */
    EXPECT_ON_ALL(!memory_copies_next(m, &copied) || copied.step != 7);
    memory_copies_end(m);
    EXPECT_ON_ALL(said(c, "the copy in memory of step 7 is of no use: the weights or moments after step 7 are not finite") == 1);
    EXPECT_ON_ALL(access(memory_file(&f, "hostA", "").text, F_OK) != 0);
    expect_resume(&f, 5);
}

/* If one rank cannot allocate the memory for its copies of the state, no rank makes copies. There is one warning, and
 * no file is left. */
static void test_no_room(void **state) {
    (void)state;
    Fixture f;
    char    rule[64];
    hosts = 1;
    memory_fixture(&f, world, dir);
    snprintf(rule, sizeof rule, "io.fallocate@2:ENOSPC,rank=%d", comm_size(world) - 1);
    failpoints_reset();
    setenv("TRAIN_GPT_FAIL", rule, 1);
    Caught        c = catch_stderr();
    MemoryCopies *m = memory_copies_create(&f.state);
    unsetenv("TRAIN_GPT_FAIL");
    EXPECT_ON_ALL(said(c, "no copies in memory are made: cannot take") == 1);
    EXPECT_ON_ALL(m == NULL);
    EXPECT_ON_ALL(access(memory_file(&f, "hostA", "").text, F_OK) != 0);
    memory_copies_start(m, 1); /* has no effect, because m is NULL: no copies are made */
    memory_copies_end(m);
    fixture_destroy(&f);
}

int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {CASE(test_newest_comes_back), CASE(test_disk_is_newer), CASE(test_without_a_checkpoint),
                                       CASE(test_flipped_byte), CASE(test_neighbour_has_it), CASE(test_lost_host),
                                       CASE(test_lost_hosts), CASE(test_cut_off_copy), CASE(test_not_ours), CASE(test_of_no_use),
                                       CASE(test_no_room)};
    return RUN_ON_RANKS(tests);
}
