/* tokens_json.c - see tokens_json.h. */
#include "data/tokens_json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"

enum { NOTES_LIMIT = 1 << 16 };

double tokens_json_bytes_per_token(const char *shard) {
    const char *slash = strrchr(shard, '/');
    char        path[4200], *text;
    Json        json;
    JsonFault   fault;
    double      found = NAN;
    snprintf(path, sizeof path, "%.*stokens.json", slash ? (int)(slash - shard) + 1 : 0, shard);
    int64_t bytes = io_read_file(path, NOTES_LIMIT, &text);
    if (bytes < 0) return NAN;
    if (json_parse(text, (size_t)bytes, NOTES_LIMIT, &json, &fault)) {
        const cJSON *member = json_member(json.root, "bytes_per_token");
        if (cJSON_IsNumber(member) && member->valuedouble > 0) found = member->valuedouble;
        json_free(&json);
    }
    free(text);
    return found;
}

double bits_per_byte(double loss, double bytes_per_token) { return loss / 0.69314718055994530942 / bytes_per_token; }
