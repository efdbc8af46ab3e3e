/* format.c - writes sizes, times, numbers and shell commands for messages (format.h). */
#include "core/format.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"

ShortText bytes_text(double bytes) {
    ShortText t;
    if (bytes >= 1024.0 * 1024 * 1024) snprintf(t.text, sizeof t.text, "%.2f GiB", bytes / (1024.0 * 1024 * 1024));
    else snprintf(t.text, sizeof t.text, "%.1f MiB", bytes / (1024.0 * 1024));
    return t;
}

char *number_text(double value, char out[SHOWN_BYTES]) {
    if (value == floor(value) && fabs(value) <= 0x1p53) {
        snprintf(out, SHOWN_BYTES, "%.0f", value);
        return out;
    }
    /* A value above 2^53 is written with an exponent. Without one it would be an integer, which our JSON reader refuses
     * because readers cannot keep it (core/json.h). */
    for (int digits = 1; digits <= 17; digits++) {
        if (fabs(value) > 0x1p53) snprintf(out, SHOWN_BYTES, "%.*e", digits - 1, value);
        else snprintf(out, SHOWN_BYTES, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
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

void duration_text(char out[32], double ms) {
    if (!(ms >= 0 && ms < 1e14)) {
        strcpy(out, "?");
        return;
    }
    long long s = llround(ms / 1e3), m = s / 60, h = m / 60, d = h / 24;
    if (s < 60) snprintf(out, 32, "%llds", s);
    else if (m < 60) snprintf(out, 32, "%lldm%02llds", m, s % 60);
    else if (h < 24) snprintf(out, 32, "%lldh%02lldm", h, m % 60);
    else snprintf(out, 32, "%lldd%02lldh", d, h % 24);
}

int ascending_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

uint64_t little_endian(const void *bytes, int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value |= (uint64_t)((const uint8_t *)bytes)[i] << 8 * i;
    return value;
}

void little_endian_put(void *bytes, uint64_t value, int count) {
    for (int i = 0; i < count; i++) ((uint8_t *)bytes)[i] = (uint8_t)(value >> 8 * i);
}

int utf8_bytes(const char *text, size_t bytes) {
    const unsigned char *t = (const unsigned char *)text;
    if (bytes == 0)   return 0;
    if (t[0] < 0x80)  return 1;
    int length = t[0] >= 0xc2 && t[0] <= 0xdf ? 2 : (t[0] & 0xf0) == 0xe0 ? 3 : t[0] >= 0xf0 && t[0] <= 0xf4 ? 4 : 0;
    if (length == 0 || (size_t)length > bytes) return 0;
    for (int i = 1; i < length; i++)
        if ((t[i] & 0xc0) != 0x80) return 0;
    /* refuses overlong UTF-8 forms, surrogates, and code points above U+10FFFF (Unicode 15, table 3-7) */
    if ((t[0] == 0xe0 && t[1] < 0xa0) || (t[0] == 0xed && t[1] > 0x9f)) return 0;
    if ((t[0] == 0xf0 && t[1] < 0x90) || (t[0] == 0xf4 && t[1] > 0x8f)) return 0;
    return length;
}

ShellWord shell_word(const char *word) {
    static const char PLAIN[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    ShellWord w = {{0}};
    size_t    bytes = strlen(word), used = 0, room = sizeof w.text - 8;
    int       is_plain = bytes > 0, has_controls = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)word[i];
        is_plain = is_plain && (c >= 0x80 || strchr(PLAIN, c));
        has_controls = has_controls || c < 32 || c == 127;
    }
    if (is_plain) return snprintf(w.text, sizeof w.text, "%s", word), w;
    used = (size_t)snprintf(w.text, sizeof w.text, has_controls ? "$'" : "'"); /* $'...' are the shell's quotes in which
                                                                                * control characters are written as
                                                                                * escapes; bash, zsh and ksh read
                                                                                * them */
    for (const unsigned char *c = (const unsigned char *)word; *c && used < room; c++) {
        int is_quote = *c == '\'', is_slash = *c == '\\';
        if (has_controls && (*c < 32 || *c == 127)) used += (size_t)sprintf(w.text + used, "\\x%02x", *c);
        else if (has_controls && (is_quote || is_slash)) used += (size_t)sprintf(w.text + used, "\\%c", *c);
        else if (is_quote) used += (size_t)sprintf(w.text + used, "'\\''");
        else w.text[used++] = (char)*c;
    }
    w.text[used++] = '\'';
    return w;
}

/* Returns the next placeholder (FILE or PACKED) that is a separate word of the sentence. The result points to the space
 * before it; *length counts that space. Returns NULL if there is none. */
static const char *next_place(const char *sentence, size_t *length) {
    static const char *const PLACES[] = {" FILE", " PACKED"};
    const char *first = NULL;
    for (int i = 0; i < 2; i++)
        for (const char *at = sentence; (at = strstr(at, PLACES[i])); at++) {
            size_t n = strlen(PLACES[i]);
            if (at[n] && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", at[n])) continue;
            if (!first || at < first) first = at, *length = n;
            break;
        }
    return first;
}

/* Returns the name that the commands of a message give to the file that they write. A shell empties that file before a
 * command reads, so it must not be the file that the command reads. */
static const char *output_name(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;
    return name && strncmp(name, "NEW", 3) == 0 && (!name[3] || name[3] == '.') ? "NEW2" : "NEW";
}

/* Returns a copy of the sentence in which its commands, and the text behind the first of them, have `output` in the
 * place of the word NEW. The caller frees the copy. */
static char *name_output(const char *sentence, const char *output) {
    size_t      bytes;
    char       *text;
    FILE       *out = memory_file_open(&text, &bytes);
    const char *from = strstr(sentence, "$ ");
    if (!from) from = sentence + strlen(sentence);
    fprintf(out, "%.*s", (int)(from - sentence), sentence);
    for (const char *at; (at = strstr(from, "NEW")); from = at + 3) {
        int is_word = at > sentence && !isalnum((unsigned char)at[-1]) && !isalnum((unsigned char)at[3]);
        fprintf(out, "%.*s%s", (int)(at - from), from, is_word ? output : "NEW");
    }
    fprintf(out, "%s", from);
    fclose(out);
    return text;
}

/* Writes a shell command to `out`, with the file in the place of its placeholder. The command's text begins at
 * `command`; its placeholder is at place [length]. */
static void add_command(FILE *out, const char *command, const char *place, size_t length, ShellFile file) {
    int         is_packed = length == strlen(" PACKED"), is_filter = place > command && place[-1] == '<';
    const char *stage[] = {is_packed ? NULL : file.unpack, is_packed ? NULL : file.decode};
    const char *here = file.path && file.path[0] == '-' ? "./" : "";
    ShellWord   word = shell_word(file.path ? file.path : "");
    int         bytes = (int)(place - command), stages = 0;
    if (file.path && !stage[0] && !stage[1]) {
        fprintf(out, "%.*s%s%s", bytes + 1, command, here, word.text);
        return;
    }
    if (!file.path) fprintf(out, "... | ");
    for (int i = 0; i < 2; i++) {
        if (!stage[i]) continue;
        fprintf(out, "%s%s", stages > 0 ? " | " : "", stage[i]);
        if (stages++ == 0 && file.path) fprintf(out, " < %s%s", here, word.text);
    }
    if (is_filter) fprintf(out, "%s%.*s", stages > 0 ? " | " : "", bytes - (int)strlen(" <"), command);
    else {
        const char *output = output_name(file.path);
        if (stages == 0) fprintf(out, "cat");
        fprintf(out, " > %s && %.*s %s", output, bytes, command, output);
    }
}

void shell_read_file(char *sentence, size_t capacity, ShellFile file) {
    size_t      length, bytes;
    char       *text, *named = name_output(sentence, output_name(file.path));
    FILE       *out = memory_file_open(&text, &bytes);
    const char *at = named, *place;
    for (; (place = next_place(at, &length)); at = place + length) {
        const char *command = NULL; /* the last "$ " before the placeholder; it marks the start of the command */
        for (const char *next = at; (next = strstr(next, "$ ")) && next < place; next++)
            if (next == at || next[-1] == ' ' || next[-1] == '(') command = next;
        fprintf(out, "%.*s", (int)((command ? command : place) - at), at);
        if (command) add_command(out, command + 2, place, length, file);
        else add_command(out, place, place, length, (ShellFile){.path = file.path ? file.path : "FILE"});
    }
    fprintf(out, "%s", at);
    fclose(out);
    if (bytes < capacity) memcpy(sentence, text, bytes + 1);
    free(text);
    free(named);
}

void shell_name_file(char *sentence, size_t capacity, const char *path) {
    shell_read_file(sentence, capacity, (ShellFile){.path = path});
}
