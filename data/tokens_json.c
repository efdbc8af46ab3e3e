/* tokens_json.c - see tokens_json.h. */
#include "data/tokens_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"

enum { NOTES_BYTES = 1 << 16 };

double tokens_json_bytes_per_token(const char *shard) {
    char        path[4200], *text = NULL;
    const char *slash = strrchr(shard, '/');
    snprintf(path, sizeof path, "%.*stokens.json", slash ? (int)(slash - shard) + 1 : 0, shard);
    int64_t bytes = io_read_file(path, NOTES_BYTES, &text);
    if (bytes < 0) return 0.0;
    cJSON       *json = cJSON_ParseWithLength(text, (size_t)bytes);
    const cJSON *item = json_member(json, "bytes_per_token");
    double       value = cJSON_IsNumber(item) && item->valuedouble > 0.0 ? item->valuedouble : 0.0;
    cJSON_Delete(json);
    free(text);
    return value;
}
