/* option_help.c - prints the option table for people: `help config`, one section or key of it, and docs/config.md. */
#include <stdio.h>
#include <string.h>

#include "core/terminal.h"
#include "run/config/options.h"

enum { KEY_WIDTH = 27, DEFAULT_WIDTH = 11, PAGE_WIDTH = 120, ROW_BYTES = 1024 };

/* Writes the allowed values in short: "ring | mpi", "integer, 1 to 8", or nothing if any string is allowed. */
static void range_short(const Option *o, char out[ALLOWED_BYTES]) {
    char low[SHOWN_BYTES], high[SHOWN_BYTES];
    int  used = 0;
    *out = '\0';
    if (o->words) {
        for (int i = 0; o->words[i] && used < ALLOWED_BYTES; i++)
            if (*o->words[i]) used += snprintf(out + used, (size_t)(ALLOWED_BYTES - used), "%s%s", used ? " | " : "", o->words[i]);
    } else if (o->type == OPTION_FLAG) {
        snprintf(out, SHOWN_BYTES, "true | false");
    } else if (o->type == OPTION_INTEGER || o->type == OPTION_REAL) {
        const char *kind = o->type == OPTION_INTEGER ? "integer" : "number";
        number_text(o->min, low);
        number_text(o->max, high);
        if (o->max >= 2147483647.0) snprintf(out, SHOWN_BYTES, "%s, at least %.30s", kind, low);
        else snprintf(out, SHOWN_BYTES, "%s, %.30s to %s%.30s", kind, low, o->half_open ? "below " : "", high);
    }
}

/* Writes the default as on a command line, without quotes. Returns out. */
static const char *bare(const char *text, char out[SHOWN_BYTES]) {
    size_t bytes = strlen(text);
    if (bytes > 2 && text[0] == '"') snprintf(out, SHOWN_BYTES, "%.*s", (int)bytes - 2, text + 1);
    else                             snprintf(out, SHOWN_BYTES, "%s", text);
    return out;
}

static void print_row(FILE *out, const Option *o, int columns) {
    char        row[ROW_BYTES], range[ALLOWED_BYTES], shown[SHOWN_BYTES], gap[64];
    int         at = 2 + KEY_WIDTH + DEFAULT_WIDTH;
    const char *value = bare(option_default_text(o), shown);
    range_short(o, range);
    /* The text after a long default begins on the next line. */
    if ((int)strlen(value) < DEFAULT_WIDTH) snprintf(gap, sizeof gap, "%*s", DEFAULT_WIDTH - (int)strlen(value), "");
    else                                    snprintf(gap, sizeof gap, "\n%*s", at, "");
    snprintf(row, sizeof row, "  " BOLD "%s" PLAIN "%*s%s%s%s%s%s%s", o->key, KEY_WIDTH - (int)strlen(o->key), "",
             value, gap, o->help, *range ? DIM " (" : "", range, *range ? ")" PLAIN : "");
    terminal_fold(out, row, columns, at);
}

static void print_heading(FILE *out, int columns) {
    char row[ROW_BYTES];
    snprintf(row, sizeof row, DIM "  %-*s%-*s%s" PLAIN, KEY_WIDTH, "key", DEFAULT_WIDTH, "default", "meaning");
    terminal_fold(out, row, columns, 0);
}

void config_print_help(FILE *out, int columns) {
    const char *section = "";
    if (columns > PAGE_WIDTH) columns = PAGE_WIDTH;
    print_heading(out, columns);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!*option_home(&OPTIONS[i]) || option_home(&OPTIONS[i]) != section) fprintf(out, "\n");
        section = option_home(&OPTIONS[i]);
        print_row(out, &OPTIONS[i], columns);
    }
}

/* Prints one key with everything in its row. */
static void print_key(FILE *out, const Option *o, int columns) {
    char        row[ROW_BYTES], allowed[ALLOWED_BYTES], shown[SHOWN_BYTES];
    const char *value = o->example ? o->example : o->fallback ? bare(o->fallback, shown) : "...";
    struct { const char *label, *text; } rows[] = {
        {"meaning", o->help},
        {"default", option_default_text(o)},
        {"allowed", option_allowed(o, allowed)},
        {"resume", o->fixed ? "must stay, unless run.allow_change names it" : "may change"},
    };
    fprintf(out, BOLD "%s" PLAIN "\n", o->key);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(row, sizeof row, DIM "  %-10s" PLAIN "%s", rows[i].label, rows[i].text);
        terminal_fold(out, row, columns, 12);
    }
    if (o->type != OPTION_IGNORED) {
        snprintf(row, sizeof row, DIM "  %-10s" PLAIN "./train_gpt config.json %s=%s", "example", o->key,
                 *value ? value : "\"\"");
        terminal_fold(out, row, columns, 12);
    }
}

int config_print_topic(FILE *out, const char *topic, int columns) {
    const Option *o = option_find(topic);
    int           found = 0;
    if (columns > PAGE_WIDTH) columns = PAGE_WIDTH;
    if (o) print_key(out, o, columns);
    for (int i = 0; !o && i < OPTION_COUNT; i++) {
        if (!option_in_section(&OPTIONS[i], topic)) continue;
        if (!found++) print_heading(out, columns);
        print_row(out, &OPTIONS[i], columns);
    }
    return o || found;
}

/* --- docs/config.md ----------------------------------------------------------------------------------------------- */

static void print_item(FILE *out, const Option *o) {
    char row[ROW_BYTES], range[ALLOWED_BYTES];
    range_short(o, range);
    int  is_required = !o->fallback && o->need != NEED_DERIVED;
    char otherwise[SHOWN_BYTES];
    snprintf(otherwise, sizeof otherwise, is_required ? "It is %s." : "Default: `%s`.", option_default_text(o));
    snprintf(row, sizeof row, "- `%s`: %s.%s%s%s %s%s", o->key, o->help, *range ? " Allowed: " : "", range,
             *range ? "." : "", otherwise, o->fixed ? " Fixed on resume." : "");
    terminal_fold(out, row, PAGE_WIDTH, 2);
}

void config_print_markdown(FILE *out) {
    fputs("# Config\n\n"
          "One JSON file is a run. Every key can follow it on the command line, too, as `run.steps=100` or `--run.steps=100`.\n"
          "Where one is given twice there, the last one counts.\n"
          "`./train_gpt help config KEY` shows one key. `./train_gpt check config.json` lists every fault of a file.\n\n"
          "*Fixed on resume* means that a run goes on only with the same value, unless `run.allow_change` names the key.\n"
          "`\"$comment\"` is allowed in every section, and ignored.\n\n"
          "This page is what `./train_gpt help config markdown` prints.\n\n## Top level\n\n",
          out);
    for (int i = 0; i < OPTION_COUNT; i++)
        if (!*option_home(&OPTIONS[i])) print_item(out, &OPTIONS[i]);
    for (int k = 0; option_section(k); k++) {
        fprintf(out, "\n## %s\n\n", option_section(k));
        for (int i = 0; i < OPTION_COUNT; i++)
            if (option_in_section(&OPTIONS[i], option_section(k))) print_item(out, &OPTIONS[i]);
    }
}
