/* arguments.c - see arguments.h. */
#include "run/verbs/arguments.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm.h"
#include "core/io.h"
#include "core/error.h"
#include "run/config/faults.h"
#include "run/verbs/verbs.h"

enum { MOST_KEYS = 32, LIST_BYTES = 1024 };

void verb_misused(const char *verb, const char *fmt, ...) {
    char    text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fail(EXIT_CONFIG, "%s: %s; usage: ./train_gpt %s %s (./train_gpt help %s: its keys)", verb, text, verb,
         verb_find(verb)->arguments, verb);
}

/* Refuses an unknown key, with the keys of the verb that the user may have meant, or with all of them. */
static NORETURN void refuse_unknown(const char *verb, const char *word, int is_file_meant) {
    const VerbKey *keys = verb_find(verb)->keys;
    const char    *names[MOST_KEYS + 1] = {NULL};
    char           name[64], list[LIST_BYTES] = "";
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (int i = 0; i < MOST_KEYS && keys[i].name; i++) {
        names[i] = keys[i].name;
        const char *before = i == 0 ? "" : keys[i + 1].name ? ", " : " and ";
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s=", before, keys[i].name);
    }
    Nearest near = nearest_word(name, names);
    if (near.sure && strcmp(near.word, name) == 0) fail(EXIT_CONFIG, "%s: %s needs a value: %s=...", verb, name, name);
    if (near.sure) fail(EXIT_CONFIG, "%s: unknown option \"%s\", did you mean \"%s\"?", verb, name, near.word);
    fail(EXIT_CONFIG, "%s: unknown option \"%s\": there %s %s%s%s%s", verb, name, names[1] ? "are" : "is", list,
         is_file_meant ? " (a file of that name is given as ./" : "", is_file_meant ? word : "", is_file_meant ? ")" : "");
}

VerbArgument verb_key_or_config(const char *verb, const char *word) {
    VerbArgument a = {.verb = verb, .row = VERB_PATH};
    size_t       length = strcspn(word, "=");
    const VerbKey *keys = verb_find(verb)->keys;
    for (int i = 0; word[length] && keys[i].name; i++) {
        if (strlen(keys[i].name) != length || strncmp(keys[i].name, word, length) != 0) continue;
        a.name = keys[i].name, a.value = word + length + 1, a.row = i;
    }
    return a;
}

VerbArgument verb_argument(const char *verb, const char *word) {
    VerbArgument a = verb_key_or_config(verb, word);
    size_t       key = strspn(word, "abcdefghijklmnopqrstuvwxyz_.");
    int          is_dashed = word[0] == '-' && word[1], is_pair = key > 0 && word[key] == '=';
    if (a.row == VERB_PATH && (is_dashed || is_pair) && access(word, F_OK) != 0) refuse_unknown(verb, word, is_pair);
    return a;
}

VerbArgument verb_key_only(const char *verb, const char *word) {
    VerbArgument a = verb_key_or_config(verb, word);
    if (a.row == VERB_PATH) refuse_unknown(verb, word, 0);
    return a;
}

const char *verb_text(const VerbArgument *a) {
    if (!*a->value) fail(EXIT_CONFIG, "%s: %s needs a value: %s=...", a->verb, a->name, a->name);
    return a->value;
}

/* Returns a number within the limits. Else ends with "batch=x: a whole number from 1 to 65536 is expected, as in
 * batch=16". */
static double number_in(const VerbArgument *a, const char *what, double least, double most) {
    char       *end;
    double      value = strtod(a->value, &end);
    const char *example = verb_find(a->verb)->keys[a->row].example;
    if (end != a->value && !*end && value >= least && value <= most) return value;
    fail(EXIT_CONFIG, "%s: %s=%s: %s from %.16g to %.16g is expected, as in %s=%s", a->verb, a->name, a->value, what, least, most,
         a->name, example);
}

double verb_number(const VerbArgument *a, double least, double most) { return number_in(a, "a number", least, most); }

int64_t verb_count(const VerbArgument *a, int64_t least, int64_t most) {
    double value = number_in(a, "a whole number", (double)least, (double)most);
    if (value != floor(value))
        fail(EXIT_CONFIG, "%s: %s=%s: a whole number is expected: %.17g or %.17g", a->verb, a->name, a->value, floor(value),
             ceil(value));
    return (int64_t)value;
}

int verb_flag(const VerbArgument *a) { return verb_choice(a, (const char *const[]){"true", "false", NULL}) == 0; }

int verb_choice(const VerbArgument *a, const char *const *words) {
    char list[LIST_BYTES] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(a->value, words[i]) == 0) return i;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    }
    fail(EXIT_CONFIG, "%s: %s=%s: %s is expected", a->verb, a->name, a->value, list);
}

int64_t verb_size(const VerbArgument *a, int64_t least) {
    static const struct { const char *unit; double bytes; } UNITS[] = {
        {"", 1}, {"KiB", 1024.0}, {"K", 1024.0}, {"KB", 1e3}, {"MiB", 1048576.0}, {"M", 1048576.0}, {"MB", 1e6},
        {"GiB", 1073741824.0}, {"G", 1073741824.0}, {"GB", 1e9}, {"TiB", 1099511627776.0}, {"T", 1099511627776.0},
        {"TB", 1e12}};
    char  *end;
    double value = strtod(a->value, &end);
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++)
        if (end != a->value && strcmp(end, UNITS[i].unit) == 0 && value * UNITS[i].bytes >= (double)least &&
            value * UNITS[i].bytes <= 1e18)
            return (int64_t)(value * UNITS[i].bytes);
    fail(EXIT_CONFIG, "%s: %s=%s: a size of at least %lld bytes is expected, as in %s=2GiB", a->verb, a->name, a->value,
         (long long)least, a->name);
}

void verb_input(const VerbArgument *a, int row, DocumentOptions *o) {
    switch (row) {
        case INPUT_FIELD: o->field = verb_text(a); break;
        case INPUT_FORMAT: o->format = (DocumentFormat)(FORMAT_TEXT + verb_choice(a, DOCUMENT_FORMATS)); break;
        case INPUT_ENCODING: o->encoding = (TextEncoding)(ENCODING_UTF8 + verb_choice(a, TEXT_ENCODINGS)); break;
        case INPUT_SKIP:
            o->skip = xrealloc(o->skip, sizeof *o->skip * (size_t)(o->skips + 1), "the list of skip=");
            o->skip[o->skips++] = verb_text(a);
    }
}

RunLock *verb_take_out(const char *verb, const char *out) {
    const char *slash = out ? strrchr(out, '/') : NULL;
    char        folder[4096];
    struct stat st;
    Launch      launch = launch_detect();
    if (!out || (launch_is_mpirun(launch) && launch.rank > 0)) return NULL;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - out) + 1 : 1, slash ? out : ".");
    if (lstat(out, &st) == 0 && !S_ISREG(st.st_mode))
        fail(EXIT_CONFIG, "%s: out=%s %s: name a file, or print by giving no out=", verb, out,
             io_error_text(io_kind(st.st_mode)));
    if (access(folder, W_OK | X_OK) != 0)
        fail(EXIT_CONFIG, "%s: out=%s: the folder %s %s", verb, out, folder,
             access(folder, F_OK) == 0 ? "cannot be written to: name another" : "is missing: make it, or name another");
    RunLock *lock = lock_output(verb, "out", out, LOCK_WHOLE);
    if (lstat(out, &st) == 0 && st.st_size > 0)
        fail(EXIT_CONFIG, "%s: out=%s exists, with %lld bytes, and is not overwritten: remove it, or name another file",
             verb, out, (long long)st.st_size);
    return lock;
}

void verb_put(const char *verb, const char *path, RunLock *lock, const char *text, size_t bytes) {
    lock_keep(lock);
    int error = io_replace_file(path, text, bytes);
    if (error) fail(EXIT_IO, "%s: cannot write %s: %s", verb, path, io_error_text(error));
    lock_release(lock);
}
