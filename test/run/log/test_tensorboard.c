/* test_tensorboard.c - event files, read by a separate parser: framing, checksums, every field; resumes, full disks. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/io.h"
#include "run/log/tensorboard.h"
#include "test/run/lib/child.h"

static char dir[64], folder[80];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/test_tensorboard.XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(folder, sizeof folder, "%s/tb", dir);
    return 0;
}
static int remove_dir(void **state) {
    (void)state;
    return io_remove_tree(dir);
}

/* --- the reader --------------------------------------------------------------------------------------------------- */

enum { MOST_EVENTS = 4096 };
typedef struct {
    int64_t step;
    double  time;
    char    version[32];
    int     is_start, scalars;
    char    tag[8][32];
    float   value[8];
} Event;

static Event read_events[MOST_EVENTS];
static int   events;

/* Computes CRC-32C by long division of the bits, the most significant first, unlike the writer. */
static uint32_t crc32c(const uint8_t *data, size_t bytes) {
    uint32_t rest = ~0u, out = 0;
    for (size_t i = 0; i < 8 * bytes; i++) {
        uint32_t bit = data[i / 8] >> i % 8 & 1;
        rest = (rest << 1) ^ ((rest >> 31 ^ bit) ? 0x1EDC6F41u : 0);
    }
    for (int i = 0; i < 32; i++) out |= (rest >> i & 1) << (31 - i);
    return ~out;
}
static uint32_t masked(const uint8_t *data, size_t bytes) {
    uint32_t crc = crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t little(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}
static uint64_t varint(const uint8_t **at, const uint8_t *end) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 64);
        value |= (uint64_t)(**at & 0x7f) << shift;
        if (!(*(*at)++ & 0x80)) return value;
    }
}

typedef struct {
    int            field, wire;
    uint64_t       value;
    const uint8_t *data;
    size_t         bytes;
} Field;
static Field next_field(const uint8_t **at, const uint8_t *end) {
    uint64_t key = varint(at, end);
    Field    f = {.field = (int)(key >> 3), .wire = (int)(key & 7)};
    if (f.wire == 0) f.value = varint(at, end);
    else f.bytes = f.wire == 1 ? 8 : f.wire == 5 ? 4 : (assert_int_equal(f.wire, 2), (size_t)varint(at, end));
    assert_true(f.bytes <= (size_t)(end - *at));
    f.data = *at, *at += f.bytes;
    return f;
}

static void read_value(Event *e, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        Field f = next_field(&at, end);
        if (f.field == 1) snprintf(e->tag[e->scalars], 32, "%.*s", (int)f.bytes, (const char *)f.data);
        else {
            uint32_t bits = (uint32_t)little(f.data, 4);
            assert_true(f.field == 2 && f.wire == 5);
            memcpy(&e->value[e->scalars], &bits, 4);
        }
    }
    e->scalars++;
}

static Event event_of(const uint8_t *at, const uint8_t *end) {
    Event e = {.step = 0};
    while (at < end) {
        Field    f = next_field(&at, end);
        uint64_t bits = f.wire == 1 ? little(f.data, 8) : 0;
        if (f.field == 1) memcpy(&e.time, &bits, 8);
        else if (f.field == 2) e.step = (int64_t)f.value;
        else if (f.field == 3) snprintf(e.version, sizeof e.version, "%.*s", (int)f.bytes, (const char *)f.data);
        else if (f.field == 7) e.is_start = f.bytes == 2 && f.data[0] == 8 && f.data[1] == 1;
        else {
            assert_int_equal(f.field, 5);
            for (const uint8_t *value = f.data; value < f.data + f.bytes;) {
                Field v = next_field(&value, f.data + f.bytes);
                assert_int_equal(v.field, 1);
                read_value(&e, v.data, v.data + v.bytes);
            }
        }
    }
    return e;
}

/* Reads all events of a TensorBoard file, which must end with a complete record. */
static void read_file(const char *name) {
    char path[400], *text;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int64_t        bytes = io_read_file(path, 1 << 24, &text);
    const uint8_t *at = (const uint8_t *)text, *end = at + bytes;
    assert_true(bytes > 0);
    for (events = 0; at < end; events++) {
        assert_true(end - at >= 16 && events < MOST_EVENTS);
        uint64_t length = little(at, 8);
        assert_int_equal(little(at + 8, 4), masked(at, 8));
        assert_true(length + 16 <= (uint64_t)(end - at));
        assert_int_equal(little(at + 12 + length, 4), masked(at + 12, length));
        read_events[events] = event_of(at + 12, at + 12 + length);
        at += 16 + length;
    }
    free(text);
}

static int by_name(const void *a, const void *b) { return strcmp((const char *)a, (const char *)b); }
static int file_names(char names[8][320]) {
    int            count = 0;
    struct dirent *entry;
    DIR           *d = opendir(folder);
    assert_non_null(d);
    while ((entry = readdir(d)))
        if (entry->d_name[0] != '.' && count < 8) snprintf(names[count++], 320, "%s", entry->d_name);
    closedir(d);
    qsort(names, (size_t)count, sizeof names[0], by_name);
    return count;
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void add(TensorBoard *t, int64_t first, int64_t last) {
    for (int64_t s = first; s <= last; s++)
        tensorboard_add(t, s, 1.7e9 + (double)s,
                        (Metric[]){{"train/loss", 5.0 / (double)s}, {"train/mfu", NAN}, {"train/lr", 1e-3}},
                        3);
}

static void the_checksum_is_crc32c(void **state) {
    (void)state;
    assert_int_equal(crc32c((const uint8_t *)"123456789", 9), 0xe3069283u);
}

static void every_field_comes_back(void **state) {
    (void)state;
    char         names[8][320];
    TensorBoard *t = tensorboard_open(dir, 0, 1700000000.25);
    tensorboard_add(t, 0, 1700000001.5, &(Metric){"val/loss", 5.5}, 1);
    add(t, 1, 3000); /* adds more events than fit in the buffer */
    tensorboard_add(t, 1LL << 40, 1, &(Metric){"val/loss", INFINITY}, 1);
    tensorboard_add(t, 1LL << 40, 1, &(Metric){"val/bpb", -0.5}, 1);
    tensorboard_close(t);
    assert_int_equal(file_names(names), 1);
    assert_int_equal(strncmp(names[0], "events.out.tfevents.1700000000.", 31), 0);
    read_file(names[0]);
    assert_int_equal(events, 2 + 1 + 3000 + 1);
    assert_string_equal(read_events[0].version, "brain.Event:2");
    assert_true(read_events[0].time == 1700000000.25);
    assert_true(read_events[1].is_start && read_events[1].step == 0);
    assert_true(read_events[2].step == 0 && read_events[2].time == 1700000001.5 && read_events[2].value[0] == 5.5f);
    for (int s = 1; s <= 3000; s++) {
        Event *e = &read_events[2 + s];
        assert_true(e->step == s && e->time == 1.7e9 + s && e->scalars == 2);
        assert_string_equal(e->tag[0], "train/loss");
        assert_string_equal(e->tag[1], "train/lr");
        assert_true(e->value[0] == (float)(5.0 / s) && e->value[1] == 1e-3f);
    }
    assert_true(read_events[events - 1].step == 1LL << 40 && read_events[events - 1].value[0] == -0.5f);
}

/* A resume begins a new file. Readers read it after the older files, even if the clock was set back. A mark in it makes
 * readers drop the points after the resumed step. */
static void a_resume_begins_a_later_file(void **state) {
    (void)state;
    char         names[8][320];
    TensorBoard *t = tensorboard_open(dir, 0, 1700000000);
    add(t, 1, 9);
    tensorboard_close(t);
    t = tensorboard_open(dir, 6, 1600000000);
    add(t, 7, 8);
    tensorboard_forget(t, 6, 1600000005);
    add(t, 7, 7);
    tensorboard_close(t);
    assert_int_equal(file_names(names), 2);
    assert_int_equal(strncmp(names[1], "events.out.tfevents.1700000001.", 31), 0);
    read_file(names[1]);
    assert_int_equal(events, 2 + 2 + 1 + 1);
    assert_true(read_events[1].is_start && read_events[1].step == 7);
    assert_true(read_events[4].is_start && read_events[4].step == 7 && read_events[5].step == 7);
}

static void fill_the_disk_for_a_while(void *unused) {
    (void)unused;
    signal(SIGXFSZ, SIG_IGN);
    TensorBoard *t = tensorboard_open(dir, 0, 1700000000);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1000, RLIM_INFINITY});
    add(t, 1, 3000);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
    add(t, 3001, 3010);
    tensorboard_close(t);
}

static void a_full_disk_costs_points_alone(void **state) {
    (void)state;
    char  names[8][320];
    Child c = child_run(fill_the_disk_for_a_while, NULL);
    assert_int_equal(c.code, 0);
    assert_int_equal(child_lines(&c), 1); /* the warning is printed once */
    assert_non_null(strstr(c.said, folder));
    assert_int_equal(file_names(names), 1);
    read_file(names[0]);
    assert_true(read_events[events - 1].step == 3010 && events < 3000);
}

static void open_where_a_file_is(void *unused) {
    (void)unused;
    if (io_replace_file(folder, "x", 1) != 0) _exit(1);
    TensorBoard *t = tensorboard_open(dir, 0, 1700000000);
    if (t) _exit(2);
    add(t, 1, 3);
    tensorboard_forget(t, 0, 1);
    tensorboard_close(t);
}

static void without_a_folder_the_run_goes_on(void **state) {
    (void)state;
    Child c = child_run(open_where_a_file_is, NULL);
    assert_int_equal(c.code, 0);
    assert_int_equal(child_lines(&c), 1);
    assert_non_null(strstr(c.said, "without a file for TensorBoard"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checksum_is_crc32c),
        cmocka_unit_test_setup_teardown(every_field_comes_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_resume_begins_a_later_file, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_full_disk_costs_points_alone, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(without_a_folder_the_run_goes_on, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("tensorboard", tests, NULL, NULL);
}
