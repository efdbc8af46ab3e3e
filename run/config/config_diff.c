/* config_diff.c - see config_diff.h. It compares JSON trees, so that configs of newer and older programs can be
 * compared. */
#include "run/config/config_diff.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "run/config/options.h"

typedef struct {
    ConfigDiffers *tell;
    void          *ctx;
    int            count;
} Walk;

/* Compares numbers exactly, because libcjson has a tolerance, and near seeds must differ. */
int config_same_value(const cJSON *a, const cJSON *b) {
    if (!a || !b) return a == b;
    double x = number_value(a), y = number_value(b);
    return isnan(x) && isnan(y) ? cJSON_Compare(a, b, 1) : x == y;
}

static int is_place(const char *path) {
    return strcmp(path, "run.dir") == 0 || strcmp(path, "$schema") == 0 || strstr(path, "$comment") != NULL;
}

static void tell(Walk *walk, const char *path, const cJSON *a, const cJSON *b) {
    if (walk->tell) walk->tell(walk->ctx, path, a, b);
    walk->count++;
}

static void compare(Walk *walk, const char *path, const cJSON *a, const cJSON *b) {
    const Option *o = option_find(path);
    const char   *text = o ? o->fallback : option_left(path);
    int           has_default = text && !(a && b);
    cJSON        *fallback = has_default ? cJSON_Parse(text) : NULL;
    if (has_default && !fallback) fail(EXIT_MEMORY, "out of memory while comparing configs");
    if ((a && b) || !o || text) {
        const cJSON *x = a ? a : fallback, *y = b ? b : fallback;
        if (!config_same_value(x, y)) tell(walk, path, x, y);
    } else tell(walk, path, a, b); /* a required or derived value has no default to compare with */
    cJSON_Delete(fallback);
}

/* Walks the members of a. A member that is in both a and b is compared only on the first walk. */
static void walk_side(Walk *walk, const char *home, const cJSON *a, const cJSON *b, int is_second) {
    for (const cJSON *item = a ? a->child : NULL; item; item = item->next) {
        char         path[256];
        const cJSON *other = cJSON_IsObject(b) ? json_member(b, item->string) : NULL;
        snprintf(path, sizeof path, "%s%s%s", home, *home ? "." : "", item->string ? item->string : "");
        if (cJSON_IsObject(item)) walk_side(walk, path, item, other, is_second);
        if (cJSON_IsObject(other)) other = NULL; /* the other walk compares its members */
        if (cJSON_IsObject(item) || is_place(path) || (is_second && other)) continue;
        compare(walk, path, is_second ? other : item, is_second ? item : other);
    }
}

int config_diff(const cJSON *a, const cJSON *b, ConfigDiffers *tell, void *ctx) {
    Walk walk = {tell, ctx, 0};
    walk_side(&walk, "", a, b, 0);
    if (b) walk_side(&walk, "", b, a, 1);
    return walk.count;
}
