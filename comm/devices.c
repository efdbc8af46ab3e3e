/* devices.c - which ranks compute on one device. Two of them halve each other's speed and memory, and NCCL refuses
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"
#include "core/error.h"

enum { ID_CHARS = 64, WARNINGS = 8 };

/* Writes "ranks 0, 1 and 2", the ranks that share the device of rank `first`, to text. Returns their number. */
static int name_sharers(const char (*id)[ID_CHARS], int ranks, int first, char *text, size_t room) {
    int count = 0, last = first;
    for (int r = first; r < ranks; r++)
        if (strcmp(id[r], id[first]) == 0) count++, last = r;
    size_t at = (size_t)snprintf(text, room, "ranks %d", first);
    for (int r = first + 1; r <= last && at < room; r++)
        if (strcmp(id[r], id[first]) == 0) at += (size_t)snprintf(text + at, room - at, r == last ? " and %d" : ", %d", r);
    return count;
}

/* Warns on rank 0 of ranks that share a device. id has every rank's device. */
static void warn_of_sharers(const Comm *c, const char (*id)[ID_CHARS]) {
    int shared = 0;
    for (int r = 0; r < c->size; r++) {
        int told = 0;
        for (int earlier = 0; earlier < r && !told; earlier++) told = strcmp(id[earlier], id[r]) == 0;
        char who[512];
        if (told || name_sharers(id, c->size, r, who, sizeof who) == 1) continue;
        if (shared++ < WARNINGS)
            warn("%s share GPU %s on %s: each gets a part of its speed and memory; start as many ranks as there are GPUs",
                 who, id[r], comm_host(c, r));
    }
}

int comm_device_sharers(Comm *c, const char *device_id) {
    char    mine[ID_CHARS] = "", (*id)[ID_CHARS] = xcalloc((size_t)c->size, ID_CHARS, "the devices of the ranks");
    size_t *bytes;
    int64_t known = device_id[0] != 0;
    int     sharers = 0;
    comm_all_reduce_i64(c, &known, 1, COMM_MIN);
    if (known) {
        snprintf(mine, sizeof mine, "%s", device_id);
        char *all = comm_gather(c, mine, sizeof mine, 0, &bytes);
        if (all) memcpy(id, all, (size_t)c->size * ID_CHARS);
        free(all), free(bytes);
        if (c->rank == 0) warn_of_sharers(c, (const char (*)[ID_CHARS])id);
        comm_broadcast(c, id, (size_t)c->size * ID_CHARS, 0);
        for (int r = 0; r < c->size; r++) sharers += strcmp(id[r], mine) == 0;
    }
    free(id);
    return sharers;
}

int comm_owns_device(Comm *c, const char *device_id) {
    int64_t most = comm_device_sharers(c, device_id);
    comm_all_reduce_i64(c, &most, 1, COMM_MAX);
    return most == 1;
}
