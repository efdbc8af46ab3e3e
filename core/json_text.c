/* json_text.c - see json_text.h. */
#include "core/json_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json_scan.h"

char *number_text(double value, char out[SHOWN_BYTES]) {
    if (value == floor(value) && fabs(value) <= 0x1p53) {
        snprintf(out, SHOWN_BYTES, "%.0f", value);
        return out;
    }
    /* From 2^53 on the text has an exponent. Without one it would be an integer, which JSON readers cannot keep
     * (core/json.h). */
    for (int digits = 1; digits <= 17; digits++) {
        if (fabs(value) > 0x1p53) snprintf(out, SHOWN_BYTES, "%.*e", digits - 1, value);
        else snprintf(out, SHOWN_BYTES, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    return out;
}

cJSON *number_json(double value) {
    cJSON *number = cJSON_CreateNumber(value);
    char  *printed = cJSON_PrintUnformatted(number);
    int    same = printed && strtod(printed, NULL) == value && (fabs(value) <= 0x1p53 || strchr(printed, 'e'));
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
    if (cJSON_IsString(value))
        snprintf(out, SHOWN_BYTES, "the string %s", json_quote_short(quoted, sizeof quoted, value->valuestring));
    else if (cJSON_IsNumber(value)
          || cJSON_IsRaw(value))    number_text(number_value(value), out);
    else if (cJSON_IsArray(value))  snprintf(out, SHOWN_BYTES, "a list");
    else if (cJSON_IsObject(value)) snprintf(out, SHOWN_BYTES, "an object");
    else snprintf(out, SHOWN_BYTES, "%s", cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null");
    return out;
}

char *grouped_text(int64_t n, char out[32]) {
    char digits[32];
    int  length = snprintf(digits, sizeof digits, "%lld", (long long)n), used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

void json_print(cJSON *json) {
    char *text = cJSON_Print(json);
    if (!text) fail(EXIT_MEMORY, "no memory to print JSON");
    printf("%s\n", text);
    cJSON_free(text);
    cJSON_Delete(json);
}
