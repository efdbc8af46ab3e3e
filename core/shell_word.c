/* shell_word.c - see shell_word.h. */
#include "core/shell_word.h"

#include <stdio.h>
#include <string.h>

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
    used = (size_t)snprintf(w.text, sizeof w.text, has_controls ? "$'" : "'"); /* $'' is of bash, zsh and ksh */
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

void shell_name_file(char *sentence, size_t capacity, const char *path) {
    ShellWord w = shell_word(path);
    size_t    bytes = strlen(w.text);
    int       is_dashed = path[0] == '-';
    for (char *at = sentence; (at = strstr(at, " FILE")); at += 5) {
        size_t tail = strlen(at + 5) + 1, added = bytes + 1 + (is_dashed ? 2 : 0);
        if (at[5] && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", at[5])) continue;
        if ((size_t)(at - sentence) + added + tail > capacity) return;
        memmove(at + added, at + 5, tail);
        if (is_dashed) memcpy(at + 1, "./", 2);
        memcpy(at + added - bytes, w.text, bytes);
        at += added - 5;
    }
}
