/* config_fixture.h - a good config, and functions that load a text with overrides. */
#ifndef TRAIN_GPT_TEST_RUN_CONFIG_FIXTURE_H
#define TRAIN_GPT_TEST_RUN_CONFIG_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run/config/config.h"

/* cmocka.h has a macro fail(), so it is included after the program's headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define COUNT(array) (sizeof array / sizeof *array)

static const char GOOD[] = "{ \"run\": {\"steps\": 600, \"dir\": \"runs/demo\"},\n"
                           "  \"model\": {\"n_layer\": 4, \"n_head\": 6, \"n_embd\": 192, \"n_positions\": 256, \"vocab_size\": 256},\n"
                           "  \"data\": {\"train\": \"demo/train_*.bin\", \"val\": \"demo/val_*.bin\"},\n"
                           "  \"batch\": {\"global_tokens\": 12288, \"micro_batch\": 4, \"seq_len\": 256},\n"
                           "  \"optimizer\": {\"learning_rate\": 2e-3},\n"
                           "  \"schedule\": {\"name\": \"cosine\", \"warmup_steps\": 50, \"final_lr_fraction\": 0.1},\n"
                           "  \"eval\": {\"every\": 100, \"tokens\": 0} }\n";

static char file[64]; /* path of the config under test */

static inline int make_file(void **state) {
    (void)state;
    strcpy(file, "/tmp/train_gpt_config_XXXXXX");
    int fd = mkstemp(file);
    return fd < 0 ? -1 : close(fd);
}
/* The configs that tests have loaded; remove_file frees them after the last test. */
static Config *loaded;
static size_t  loaded_count;
static inline void free_later(Config config) {
    loaded = realloc(loaded, sizeof *loaded * (loaded_count + 1));
    assert_non_null(loaded);
    loaded[loaded_count++] = config;
}

static inline int remove_file(void **state) {
    (void)state;
    for (size_t i = 0; i < loaded_count; i++) config_free(&loaded[i]);
    free(loaded);
    return unlink(file);
}

/* Loads the config `text` with overrides KEY=VALUE, separated by '|' (NULL: none). Returns the messages about its
 * faults, or NULL; the caller frees them. */
static inline char *load(const char *text, const char *overrides, int ranks, Config *config) {
    char *argument[16], *copy = overrides ? strdup(overrides) : NULL;
    int   count = 0;
    for (char *rest = copy; rest; ) argument[count++] = strsep(&rest, "|");
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    fwrite(text, 1, strlen(text), out);
    fclose(out);
    char *faults = config_load(file, argument, count, ranks, config);
    free_later(*config);
    free(copy);
    return faults;
}

static inline void load_good(const char *text, const char *overrides, int ranks, Config *config) {
    char *faults = load(text, overrides, ranks, config);
    if (faults) fail_msg("refused: %s", faults);
}

#endif
