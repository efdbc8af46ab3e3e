/* option_text.c - writes the allowed values of options as text for people. */
#include "run/config/options.h"

#include <stdio.h>

static void words_text(const Option *o, char out[ALLOWED_BYTES]) {
    int used = 0;
    for (int i = 0; o->words[i] && used < ALLOWED_BYTES; i++)
        used += snprintf(out + used, (size_t)(ALLOWED_BYTES - used), "%s\"%s\"",
                         i == 0            ? ""
                         : o->words[i + 1] ? ", "
                                           : " or ",
                         o->words[i]);
}

static void range_text(const Option *o, const char *kind, char out[ALLOWED_BYTES]) {
    char low[SHOWN_BYTES], high[SHOWN_BYTES];
    number_text(o->min, low);
    number_text(o->max, high);
    if (o->half_open) snprintf(out, ALLOWED_BYTES, "%s of at least %.40s and below %.40s", kind, low, high);
    else                    snprintf(out, ALLOWED_BYTES, "%s from %.40s to %.40s", kind, low, high);
}

char *option_allowed(const Option *o, char out[ALLOWED_BYTES]) {
    switch (o->type) {
    case OPTION_IGNORED:
    case OPTION_TEXT:    snprintf(out, ALLOWED_BYTES, "a string"); break;
    case OPTION_WORD:
    case OPTION_CHOICE:  words_text(o, out); break;
    case OPTION_FLAG:    snprintf(out, ALLOWED_BYTES, "true or false"); break;
    case OPTION_INTEGER: range_text(o, "an integer", out); break;
    case OPTION_REAL:    range_text(o, "a number", out); break;
    case OPTION_LIST:    snprintf(out, ALLOWED_BYTES, "a string or a list of strings"); break;
    case OPTION_SOURCES: snprintf(out, ALLOWED_BYTES, "a string or a list of strings, or of sources with weights"); break;
    }
    return out;
}

const char *option_default_text(const Option *o) {
    if (o->fallback) return o->fallback;
    return o->need == NEED_DERIVED ? o->shown : o->need == NEED_MODEL ? "required unless preset" : "required";
}
