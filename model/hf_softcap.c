/* hf_softcap.c - see hf_softcap.h. */
#include "model/hf_softcap.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "model/hf_gpt2.h"

#define SUFFIX "_softcap"
#define TYPE   "\"model_type\": \""

int hf_softcap_text(char *text, int bytes, double softcap) {
    char  plain[HF_CONFIG_BYTES], *type = strstr(text, TYPE), *end = type ? strchr(type + strlen(TYPE), '"') : NULL;
    CHECK(end, "a config.json without a model_type");
    memcpy(plain, text, (size_t)bytes + 1);
    int before = (int)(end - text);
    return snprintf(text, HF_CONFIG_BYTES,
                    "%.*s" SUFFIX "\",\n  \"final_logit_softcapping\": %.15g%s", before, plain, softcap, plain + before + 1);
}

/* Returns the length of a model_type without the suffix, -1 if it has no suffix or is not a string. */
static int capped_type(const cJSON *type) {
    if (!cJSON_IsString(type)) return -1;
    int length = (int)(strlen(type->valuestring) - strlen(SUFFIX));
    return length > 0 && strcmp(type->valuestring + length, SUFFIX) == 0 ? length : -1;
}

double hf_softcap_of(const cJSON *config, const char *path) {
    const cJSON *cap = json_member(config, "final_logit_softcapping");
    if (capped_type(json_member(config, "model_type")) < 0) return 0.0;
    if (!cJSON_IsNumber(cap) || !(cap->valuedouble > 0.0) || !isfinite(cap->valuedouble))
        fail(EXIT_DATA, "%s: final_logit_softcapping is missing or no number above 0", path);
    return cap->valuedouble;
}

int hf_is_type(const cJSON *config, const char *plain) {
    const cJSON *type = json_member(config, "model_type");
    int          length = capped_type(type);
    return hf_is_word(type, plain) || (length == (int)strlen(plain) && strncmp(type->valuestring, plain, (size_t)length) == 0);
}
