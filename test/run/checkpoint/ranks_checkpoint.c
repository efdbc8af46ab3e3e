/* ranks_checkpoint.c - checkpoints written and read by several ranks. Alone it runs its cases; test_ranks_checkpoint.sh
 * also uses it as a tool, to read a checkpoint with another number of ranks than wrote it:
 *
 *   ranks_checkpoint save DIR STEP STAGE          saves the state of STEP
 *   ranks_checkpoint load DIR STEP STAGE RANKS    resumes, expects the bits of STEP, saved by RANKS
 *   ranks_checkpoint full DIR STEP STAGE          saves while the last rank's files may not grow past 64 KiB
 */
#include "test/run/checkpoint/checkpoint_fixture.h"

#include <omp.h>
#include <signal.h>
#include <sys/resource.h>

#include "test/run/lib/ranks_folder.h"

static void round_trip(DType act, int stage_saved, int stage_read) {
    Fixture saved, read;
    fixture_create(&saved, world, dir, act, stage_saved, "");
    EXPECT_ON_ALL(checkpoint_resume(&saved.state).step == 0);
    fixture_fill(&saved, 7);
    checkpoint_save(&saved.state, 7);
    fixture_create(&read, world, dir, act, stage_read, "");
    Resumed resumed = checkpoint_resume(&read.state);
    EXPECT_ON_ALL(resumed.step == 7 && resumed.ranks == comm_size(world));
    EXPECT_ON_ALL(strcmp(saved.train_state.run_id, read.train_state.run_id) == 0);
    EXPECT_ON_ALL(fixture_differences(&read, 7) == 0);
    fixture_destroy(&saved);
    fixture_destroy(&read);
}
static void test_zero_1(void **state) { (void)state, round_trip(F32, 1, 1); }
static void test_zero_1_to_0_bf16(void **state) { (void)state, round_trip(BF16, 1, 0); }
static void test_zero_0_to_1(void **state) { (void)state, round_trip(F32, 0, 1); }

/* Whichever rank checks the hash of the damaged range of bytes, all ranks fall back to the older checkpoint
 * together. */
static void test_all_fall_back(void **state) {
    (void)state;
    Fixture f;
    fixture_create(&f, world, dir, F32, 1, "");
    for (int64_t step = 1; step <= 3; step++) fixture_fill(&f, step), checkpoint_save(&f.state, step);
    if (comm_rank(world) == 0) {
        char  byte = 0;
        int   fd = io_open(path_of("%s/checkpoints/step_00000003/optimizer.safetensors", dir).text, IO_SHARED);
        CHECK(io_pread(fd, &byte, 1, 1200000) == 0, "cannot read");
        byte ^= 1;
        CHECK(io_pwrite(fd, &byte, 1, 1200000) == 0, "cannot write");
        io_close(fd);
    }
    comm_barrier(world);
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 2);
    EXPECT_ON_ALL(fixture_differences(&f, 2) == 0);
    fixture_fill(&f, 3);
    checkpoint_save(&f.state, 3);
    EXPECT_ON_ALL(checkpoint_resume(&f.state).step == 3);
    fixture_destroy(&f);
}

static int tool(char **argv) {
    Fixture f;
    int64_t step = atoll(argv[3]);
    world = world_all(world_join(launch_detect()));
    fixture_create(&f, world, argv[2], F32, atoi(argv[4]), "");
    if (strcmp(argv[1], "load") == 0) {
        Resumed resumed = checkpoint_resume(&f.state);
        CHECK(resumed.step == step && resumed.ranks == atoi(argv[5]), "step %lld by %d ranks", (long long)resumed.step,
              resumed.ranks);
        CHECK(fixture_differences(&f, step) == 0, "%lld elements differ", (long long)fixture_differences(&f, step));
    } else {
        struct rlimit small = {64 << 10, 64 << 10};
        signal(SIGXFSZ, SIG_IGN);
        if (strcmp(argv[1], "full") == 0 && comm_rank(world) == comm_size(world) - 1) setrlimit(RLIMIT_FSIZE, &small);
        fixture_fill(&f, step);
        checkpoint_save(&f.state, step);
    }
    fixture_destroy(&f);
    world_leave(comm_world(world));
    return 0;
}

int main(int argc, char **argv) {
    omp_set_num_threads(1);
    if (argc > 4) return tool(argv);
    const struct CMUnitTest tests[] = {CASE(test_zero_1), CASE(test_zero_1_to_0_bf16), CASE(test_zero_0_to_1),
                                       CASE(test_all_fall_back)};
    return RUN_ON_RANKS(tests);
}
