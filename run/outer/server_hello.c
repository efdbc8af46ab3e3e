/* server_hello.c - see server_hello.h. */
#include "run/outer/server_hello.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "run/config/config.h"
#include "run/config/options.h"
#include "run/outer/hello_data.h"

typedef struct {
    char  *text;
    size_t room;
    int    count;
} Differences;

/* Returns 1 if an island must have the server's value of this key: the keys that a resume must not change, and the keys
 * of `also`. They decide the model, the order of samples, a step or a round. */
static int must_agree(const char *key) {
    static const char *const also[] = {"run.steps", "outer.every", "outer.wait", "outer.stream"};
    const Option *o = option_find(key);
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (!strcmp(also[i], key)) return 1;
    return o && o->fixed;
}

static void add_difference(void *ctx, const char *key, const cJSON *here, const cJSON *there) {
    Differences *d = (Differences *)ctx;
    char         island[SHOWN_BYTES] = "missing", server[SHOWN_BYTES] = "missing";
    if (!must_agree(key)) return;
    if (here) value_text(here, server);
    if (there) value_text(there, island);
    size_t used = strlen(d->text);
    snprintf(d->text + used, d->room - used, "%s%s is %s, and the server has %s", d->count++ ? "; " : "", key, island,
             server);
}

static void add_blends(void *ctx, const char *server, const char *island) {
    Differences *d = (Differences *)ctx;
    size_t       used = strlen(d->text);
    snprintf(d->text + used, d->room - used, "%sdata.train is %s, and the server has %s", d->count++ ? "; " : "", island, server);
}

static int refuse_config(const cJSON *there, const Config *config, char *why, size_t bytes) {
    cJSON      *here = config_to_json(config);
    Differences d = {why, bytes, 0};
    *why = 0;
    config_diff(here, there, add_difference, &d);
    config_compare_blends(here, there, add_blends, &d);
    cJSON_Delete(here);
    return d.count ? EXIT_CONFIG : 0;
}

static int refuse_data(const Hello *hello, const Dataset *train, char *why, size_t bytes) {
    HelloData *here = hello_data(train);
    int        files = hello->data_files < train->shards ? hello->data_files : train->shards, code = 0;
    for (int i = 0; i < files && !code; i++) {
        const HelloData *a = &hello->data[i], *b = &here[i];
        if (json_reads_as(a->name, b->name) && a->tokens == b->tokens) continue;
        snprintf(why, bytes, "data.train: file %d is %s of %" PRId64 " tokens, and the server has %s of %" PRId64, i,
                 a->name, a->tokens, b->name, b->tokens);
        code = EXIT_DATA;
    }
    if (!code && (hello->data_files != train->shards || hello->samples != train->samples)) {
        snprintf(why, bytes, "data.train is %d files of %" PRId64 " samples, and the server has %d of %" PRId64,
                 hello->data_files, hello->samples, train->shards, train->samples);
        code = EXIT_DATA;
    }
    if (!code && strcmp(hello->data[0].fingerprint, here[0].fingerprint) != 0) {
        snprintf(why, bytes,
                 "data.train has the fingerprint %s, and the server %s: files of the same names and sizes hold other "
                 "tokens, or have another tokenizer beside them",
                 hello->data[0].fingerprint, here[0].fingerprint);
        code = EXIT_DATA;
    }
    free(here);
    return code;
}

int follow_refuse(const Follow *follow, const Config *config, int parts, int64_t elems, char *why, size_t bytes) {
    if (follow->parts != parts) {
        snprintf(why, bytes, "has part %d of %d, and outer.server names %d servers here", follow->part, follow->parts,
                 parts);
        return EXIT_CONFIG;
    }
    if (follow->elems != elems) {
        snprintf(why, bytes, "has a model of %" PRId64 " parameters, and this one has %" PRId64, follow->elems, elems);
        return EXIT_CONFIG;
    }
    char differences[512];
    if (!refuse_config(follow->config, config, differences, sizeof differences)) return 0;
    snprintf(why, bytes, "has another config: %s", differences);
    return EXIT_CONFIG;
}

int hello_refuse(const Hello *hello, const Config *config, const Dataset *train, int64_t elems, char *why, size_t bytes) {
    int code = 0;
    if (hello->protocol != CHANNEL_PROTOCOL) {
        snprintf(why, bytes, "the island speaks protocol %d, and the server %d: give both the same program",
                 hello->protocol, CHANNEL_PROTOCOL);
        return EXIT_CONFIG;
    }
    code = refuse_config(hello->config, config, why, bytes);
    if (!code && train) code = refuse_data(hello, train, why, bytes);
    if (code || hello->elems == elems) return code;
    snprintf(why, bytes, "the island's model has %" PRId64 " parameters, and the server's %" PRId64, hello->elems,
             elems);
    return EXIT_CONFIG;
}

int hello_takes_changes(const Hello *hello) {
    const cJSON *outer = cJSON_GetObjectItem(hello->config, "outer");
    const char  *compress = cJSON_GetStringValue(cJSON_GetObjectItem(outer, "compress"));
    return compress && strcmp(compress, "none") != 0;
}
