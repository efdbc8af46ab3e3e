/* option_text.c - values and ranges of options as people and files read them. */
#include "run/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_scan.h"

char *number_text(double value, char out[SHOWN_BYTES]) {
    if (value == floor(value) && fabs(value) <= 0x1p53) {
        snprintf(out, SHOWN_BYTES, "%.0f", value);
        return out;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, SHOWN_BYTES, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    return out;
}

cJSON *number_json(double value) {
    cJSON *number = cJSON_CreateNumber(value);
    char  *printed = cJSON_PrintUnformatted(number);
    int    same = printed && strtod(printed, NULL) == value;
    free(printed);
    if (same) return number;
    char text[SHOWN_BYTES];
    cJSON_Delete(number);
    return cJSON_CreateRaw(number_text(value, text));
}

double number_value(const cJSON *number) {
    if (cJSON_IsRaw(number)) return strtod(number->valuestring, NULL);
    return cJSON_GetNumberValue(number);
}

char *value_text(const cJSON *value, char out[SHOWN_BYTES]) {
    char quoted[SHOWN_BYTES - 16];
    if (cJSON_IsString(value))      snprintf(out, SHOWN_BYTES, "the string %s", json_quote_short(quoted, sizeof quoted, value->valuestring));
    else if (cJSON_IsNumber(value)
          || cJSON_IsRaw(value))    number_text(number_value(value), out);
    else if (cJSON_IsArray(value))  snprintf(out, SHOWN_BYTES, "a list");
    else if (cJSON_IsObject(value)) snprintf(out, SHOWN_BYTES, "an object");
    else                            snprintf(out, SHOWN_BYTES, "%s", cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null");
    return out;
}

static void words_text(const Option *o, char out[SHOWN_BYTES]) {
    int used = 0;
    for (int i = 0; o->words[i]; i++)
        used += snprintf(out + used, SHOWN_BYTES - (size_t)used, "%s\"%s\"", i == 0 ? "" : o->words[i + 1] ? ", " : " or ", o->words[i]);
}

static void range_text(const Option *o, const char *kind, char out[SHOWN_BYTES]) {
    char low[SHOWN_BYTES], high[SHOWN_BYTES];
    number_text(o->min, low);
    number_text(o->max, high);
    if (o->half_open) snprintf(out, SHOWN_BYTES, "%s of at least %.40s and below %.40s", kind, low, high);
    else                    snprintf(out, SHOWN_BYTES, "%s from %.40s to %.40s", kind, low, high);
}

char *option_allowed(const Option *o, char out[SHOWN_BYTES]) {
    switch (o->type) {
    case OPTION_IGNORED:
    case OPTION_TEXT:    snprintf(out, SHOWN_BYTES, "a string"); break;
    case OPTION_WORD:
    case OPTION_CHOICE:  words_text(o, out); break;
    case OPTION_FLAG:    snprintf(out, SHOWN_BYTES, "true or false"); break;
    case OPTION_INTEGER: range_text(o, "an integer", out); break;
    case OPTION_REAL:    range_text(o, "a number", out); break;
    case OPTION_LIST:    snprintf(out, SHOWN_BYTES, "a string or a list of strings"); break;
    }
    return out;
}
