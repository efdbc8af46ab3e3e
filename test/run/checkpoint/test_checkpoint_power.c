/* test_checkpoint_power.c - the power fails at any moment of a save. A disk may keep any subset of the calls since the
 * last fsync (recorded_disk.h). For each subset the next start must find the old checkpoint or the new one, complete.
 *
 *   test_checkpoint_power [STATES [SEED]]     about so many different states of each case
 * Long: tries every state of a disk.
 */
#include "test/run/checkpoint/recorded_disk.h"

#include <inttypes.h>

#include "test/run/lib/own_folder.h"

static char     left[80];
static int      wanted = 100;
static uint64_t seed = 1;
static int      states, old_ones;

typedef struct { uint64_t *hash; int count, room; } Set;
/* hashes, to count each case once: `choices` of the sets of changes that a disk keeps, `contents` of the resulting
 * files */
static Set choices, contents;

static int enter_beside(void **state) {
    if (enter(state)) return -1;
    snprintf(left, sizeof left, "%s.left", dir);
    return 0;
}

static int leave_both(void **state) {
    disk.recording = 0;
    disk_free();
    return fixture_folder_remove(left) || leave(state);
}

static void save(int64_t step) {
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, step);
    checkpoint_save(&f.state, step);
    fixture_destroy(&f);
}

/* Asserts that a start in the folder `left` finds one of the steps `old` and `new`. For every 16th simulated disk it
 * also saves and resumes there. */
static void expect_old_or_new(int64_t old, int64_t new, int is_done, int count) {
    Fixture f;
    fixture_create(&f, comm, left, F32, 1, "");
    int64_t step = checkpoint_resume(&f.state).step; /* ends this program if there is no valid checkpoint */
    if (step != old && step != new) fail_msg("after %d changes: step %lld", count, (long long)step);
    if (is_done && step != new) fail_msg("after the last sync: step %lld", (long long)step);
    if (step > 0 && fixture_differences(&f, step) != 0) fail_msg("after %d changes: step %lld is mixed", count, (long long)step);
    old_ones += step == old;
    if (states % 16 == 0) {
        fixture_fill(&f, new + 1);
        checkpoint_save(&f.state, new + 1);
        if (checkpoint_resume(&f.state).step != new + 1) fail_msg("after %d changes: the next save is not found", count);
    }
    fixture_destroy(&f);
}

static int is_new(Set *set, uint64_t hash) {
    for (int i = 0; i < set->count; i++)
        if (set->hash[i] == hash) return 0;
    if (set->count == set->room) set->hash = realloc(set->hash, sizeof *set->hash * (size_t)(set->room = 2 * set->room + 64));
    CHECK(set->hash, "no memory");
    set->hash[set->count++] = hash;
    return 1;
}

static void try_state(const Fate *fate, int count, uint64_t tear, int64_t old, int64_t new) {
    /* After all changes of a save only the new checkpoint is allowed. The hash starts with is_done, so this case is
     * counted separately. */
    int      is_done = count == disk.changes;
    uint64_t choice = (uint64_t)is_done;
    for (int i = 0; i < count; i++) {
        uint64_t part[3] = {(uint64_t)i, fate[i], fate[i] == FATE_TORN ? tear : 0};
        if (fate[i] != FATE_LOST && disk.change[i].kind != CHANGE_SYNC) choice += XXH3_64bits(part, sizeof part);
    }
    if (states == wanted || !is_new(&choices, choice) ||
        !is_new(&contents, disk_after("", fate, count, tear) + (uint64_t)is_done))
        return;
    states++;
    CHECK(mkdir(left, 0777) == 0, "cannot make %s", left);
    disk_after(left, fate, count, tear);
    expect_old_or_new(old, new, is_done, count);
    assert_int_equal(system(path_of("rm -rf '%s'", left).text), 0);
}

static uint64_t random_at(uint64_t a, uint64_t b) {
    uint64_t x[3] = {seed, a, b};
    return XXH3_64bits(x, sizeof x);
}

/* Simulates a power failure after `count` changes. In round 0 all changes that are not synced yet are lost, in round 1
 * all are kept. Later rounds lose, keep or tear one change each, then choose at random for each. */
static void try_round(int count, int round, int64_t old, int64_t new) {
    Fate fate[DISK_CHANGES];
    int  unsure[DISK_CHANGES], many = 0;
    for (int i = 0; i < count; i++) {
        fate[i] = FATE_THERE;
        if (disk.change[i].kind != CHANGE_SYNC && !is_sure(i, count)) unsure[many++] = i;
    }
    int one = (round - 2) / 3, how = (round - 2) % 3;
    for (int u = 0; u < many; u++) {
        uint64_t r = random_at((uint64_t)round * 1000 + (uint64_t)count, (uint64_t)unsure[u]);
        Fate     any = r % 4 == 0 && disk.change[unsure[u]].kind == CHANGE_WRITE ? FATE_TORN : r % 2 ? FATE_THERE : FATE_LOST;
        fate[unsure[u]] = round == 0 ? FATE_LOST : round == 1 ? FATE_THERE : one >= many ? any : how == 1 ? FATE_LOST : FATE_THERE;
    }
    if (round >= 2 && one < many) fate[unsure[one]] = how == 0 ? FATE_LOST : how == 1 ? FATE_THERE : FATE_TORN;
    try_state(fate, count, random_at((uint64_t)round, 7), old, new);
}

/* Records a save of step `new` and simulates a power failure at every moment of it. */
static void lose_power(int64_t old, int64_t new) {
    disk_record(dir);
    save(new);
    disk.recording = 0;
    states = old_ones = choices.count = contents.count = 0;
    /* stderr goes to /dev/null, because test_checkpoint.c checks the messages about skipped checkpoints */
    int before = dup(STDERR_FILENO), silence = open("/dev/null", O_WRONLY);
    dup2(silence, STDERR_FILENO);
    for (int round = 0, before = -1; states < wanted && (states > before || round < 200); round++) {
        before = states;
        for (int count = 0; count <= disk.changes; count++) try_round(count, round, old, new);
    }
    dup2(before, STDERR_FILENO);
    close(before);
    close(silence);
    print_message("power fails within %d changes: %d states, %d held step %" PRId64 ", %d step %" PRId64 "\n",
                  disk.changes, states, old_ones, old, states - old_ones, new);
    assert_true(states > wanted / 2 && old_ones > 0 && old_ones < states);
}

static void test_first_save(void **state) {
    (void)state;
    lose_power(0, 1);
}

static void test_save_that_prunes(void **state) {
    (void)state;
    save(1);
    save(2);
    lose_power(2, 3);
}

/* A run that fell back to an older checkpoint trains again to the step whose folder is damaged, and saves over it. */
static void test_save_over_a_broken_one(void **state) {
    (void)state;
    save(1);
    save(2);
    assert_int_equal(truncate(path_of("%s/checkpoints/step_00000002/model.safetensors", dir).text, 1000), 0);
    lose_power(1, 2);
}

int main(int argc, char **argv) {
    if (argc > 1) wanted = atoi(argv[1]);
    if (argc > 2) seed = (uint64_t)atoll(argv[2]);
#define RECORDED(name) cmocka_unit_test_setup_teardown(name, enter_beside, leave_both)
    const struct CMUnitTest tests[] = {RECORDED(test_first_save), RECORDED(test_save_that_prunes),
                                       RECORDED(test_save_over_a_broken_one)};
    return RUN_ALONE(tests);
}
