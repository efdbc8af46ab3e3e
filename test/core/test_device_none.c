/* test_device_none.c - a process that opens no GPU (DEVICE_NONE: `train_gpt serve`) has memory, copies, streams and
 * events in every build, also in a CUDA build on a machine without a driver. */
#include "core/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void the_host_is_the_device(void **state) {
    (void)state;
    static const float values[6] = {1, 2, 3, 4, 5, 6};
    float              got[6] = {0};
    device_open(DEVICE_NONE, 1);
    assert_true(device_is_host());
    Arena  arena = arena_create("weights", 4096), host = arena_create_host("states", 4096);
    Tensor t = arena_tensor(&arena, F32, 1, 6, 1, 1), h = arena_tensor(&host, F32, 1, 6, 1, 1);
    Stream s = stream_create(1024);
    for (int i = 0; i < 6; i++) assert_true(((float *)t.data)[i] == 0.0f && ((float *)h.data)[i] == 0.0f);
    device_from_host(&s, t, values);
    assert_memory_equal(t.data, values, sizeof values);
    device_to_host_queued(&s, got, t);
    Event e = event_create();
    assert_true(event_is_past(e));
    event_record(e, &s);
    event_wait(e);
    assert_true(event_is_past(e));
    assert_memory_equal(got, values, sizeof values);
    event_destroy(&e);
    device_zero(&s, t);
    device_sync(&s);
    for (int i = 0; i < 6; i++) assert_true(((float *)t.data)[i] == 0.0f);
    stream_destroy(&s);
    arena_destroy(&arena);
    arena_destroy(&host);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_host_is_the_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
