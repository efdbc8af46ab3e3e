/* test_numbers.c - how ranks are numbered by host. */
#include "comm/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* Numbers ranks by host and compares with `expected`. Letter r of `hosts` is the host of rank r. Hosts are numbered by
 * first appearance, and the ranks of a host get consecutive numbers. */
static void numbers_of(const char *hosts, const int *expected) {
    char host[16][HOST_CHARS] = {{0}};
    int  size = (int)strlen(hosts), number[16];
    for (int r = 0; r < size; r++) snprintf(host[r], HOST_CHARS, "node-%c", hosts[r]);
    world_numbers(host, size, number);
    for (int r = 0; r < size; r++) assert_int_equal(number[r], expected[r]);
}

static void ranks_of_a_host_are_neighbours(void **state) {
    (void)state;
    numbers_of("a", (int[]){0});
    numbers_of("aabb", (int[]){0, 1, 2, 3});
    numbers_of("abab", (int[]){0, 2, 1, 3});
    numbers_of("bcacab", (int[]){0, 2, 4, 3, 5, 1});
    numbers_of("abcdabcdabcdabcd", (int[]){0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15});
}

int main(void) {
    const struct CMUnitTest numbers[] = {cmocka_unit_test(ranks_of_a_host_are_neighbours)};
    return cmocka_run_group_tests(numbers, NULL, NULL);
}
