/* fuzz_config.c - any bytes as a config file: the result is faults or a Config, never a crash. An accepted config stays
 * the same when it is written as JSON and read again. */
#include <stdlib.h>
#include <string.h>

#include "run/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Config config, again;
    char  *faults = config_parse("fuzz.json", (const char *)data, bytes, NULL, 0, 1, &config);
    if (!faults) {
        cJSON *json = config_to_json(&config);
        char  *fault = config_from_json(json, &again), *differs = fault ? NULL : config_compare(&again, json, NULL);
        if (fault || differs) abort();
        config_free(&again);
        cJSON_Delete(json);
    }
    free(faults);
    config_free(&config);
    return 0;
}
