/* server_list.c - see server_list.h. */
#include "run/outer/server_list.h"

#include <stdio.h>
#include <string.h>

int outer_servers(const char *list) {
    int count = 1;
    for (; *list; list++) count += *list == ',';
    return count;
}

const char *outer_server(const char *list, int entry, char *out) {
    for (; entry > 0; entry--) list += strcspn(list, ",") + 1;
    snprintf(out, OUTER_ADDRESS_BYTES, "%.*s", (int)strcspn(list, ","), list);
    return out;
}
