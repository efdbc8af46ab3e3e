/* bench_checkpoint.c - how long training waits for a checkpoint, compared with a plain copy of the same bytes. A state
 * of the demo's size is saved again and again in one process. Prints "checkpoint_stall MS COPY_MS MIB", with the
 * shortest times of all saves.
 *
 *   bench_checkpoint [SAVES]
 */
#define FIXTURE_WIDE 4600 /* gives the model 1.9 M parameters */
#include "test/run/checkpoint/checkpoint_fixture.h"

#include "core/thread.h"

/* Returns the smallest of `count` measured times, which other work on the machine has disturbed least. */
static double least(const double *values, int count) {
    double least = values[0];
    for (int i = 1; i < count; i++) least = values[i] < least ? values[i] : least;
    return least;
}

/* Writes more memory than the caches hold, so that nothing of the state is in them when it is copied, as after a
 * training step. */
enum { ELSEWHERE_BYTES = 128 << 20 };
static void use_caches(char *elsewhere) {
    for (size_t at = 0; at < ELSEWHERE_BYTES; at += 64) elsewhere[at]++;
}

int main(int argc, char **argv) {
    int      saves = argc > 1 ? atoi(argv[1]) : 21;
    char     dir[64];
    Fixture  f;
    Comm    *comm = world_all(world_join((Launch){0}));
    CHECK(saves > 0 && saves <= 1000 && fixture_folder(dir) == 0, "%d saves into a folder in memory", saves);
    /* bf16, because in fp32 the master weights are the weights themselves */
    fixture_create(&f, comm, dir, BF16, 1, "");
    fixture_fill(&f, 1);
    /* bytes of the fp32 master weights, or of the moment m, or of v: each is a third of what the optimizer saves */
    size_t   bytes = saver_bytes(&f.shards->layout, &OPTIMIZER_ADAMW) / 3;
    char    *to = device_alloc_host(3 * bytes, "a copy"), *elsewhere = device_alloc_host(ELSEWHERE_BYTES, "other memory");
    double  *stall = malloc(sizeof *stall * (size_t)saves), *copy = malloc(sizeof *copy * (size_t)saves);
    Saver   *s = saver_create(&f.state);
    CHECK(stall && copy, "no memory");
    for (int i = 0; i < saves; i++) {
        use_caches(elsewhere);
        double begin = clock_ms();
        memcpy(to, f.optimizer.master.data, bytes);
        memcpy(to + bytes, f.optimizer.state[0].data, bytes);
        memcpy(to + 2 * bytes, f.optimizer.state[1].data, bytes);
        copy[i] = clock_ms() - begin;
        use_caches(elsewhere);
        saver_start(s, i + 1, NULL);
        saver_finish(s);
        stall[i] = saver_stall_ms(s);
    }
    saver_finish_last(s);
    saver_destroy(s);
    double waited = least(stall, saves), copied = least(copy, saves);
    printf("checkpoint_stall %.3f %.3f %.1f\n", waited, copied, 3.0 * (double)bytes / 1048576.0);
    CHECK(fixture_folder_remove(dir) == 0, "cannot remove %s", dir);
    device_free_host(to);
    device_free_host(elsewhere);
    free(stall);
    free(copy);
    fixture_destroy(&f);
    world_leave(comm_world(comm));
    return 0;
}
