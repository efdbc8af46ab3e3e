/* help.c - prints help: --help within one screen of 80 x 24, `help VERB`, `help config`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/terminal.h"
#include "run/config/config.h"
#include "run/config/faults.h"
#include "run/config/options.h"
#include "run/verbs/verbs.h"

enum { WORD_WIDTH = 16, ROW_BYTES = 1024, KEY_MOST = 26, PAGE_COLUMNS = 100, TOPICS = 128 };

static void print_verbs(FILE *out) {
    for (const Verb *v = VERBS; v->word; v++)
        fprintf(out, "  " BOLD "%-*s" PLAIN " %s\n", WORD_WIDTH, v->word, v->help);
}

void verb_print_usage(void) {
    fprintf(stderr, "usage: train_gpt config.json [key=value ...]\n"
                    "       mpirun -np N train_gpt config.json [key=value ...]\n"
                    "       train_gpt RUN                    the run of this folder goes on\n"
                    "       train_gpt VERB ...\n");
    for (const Verb *v = VERBS; v->word; v++) fprintf(stderr, "  %-*s %s\n", WORD_WIDTH, v->word, v->help);
    fprintf(stderr, "More: train_gpt --help\n");
}

static void print_program(FILE *out) {
    fprintf(out, "train_gpt pretrains GPT models from one JSON config.\n"
                 "  ./train_gpt config.json [key=value ...]   train; the same command resumes\n"
                 "  mpirun -np 8 ./train_gpt config.json      train on 8 ranks\n\n");
    print_verbs(out);
    fprintf(out, "\nExample: ./train_gpt configs/demo.json run.steps=100 run.dir=runs/short\n"
                 "Exit codes: 0 done  64 config  65 data  69 no device  70 internal  71 memory\n"
                 "            73 locked  74 I/O  75 stopped, resumable  76 wrong numbers  77 peer\n"
                 "More: help VERB, help config, help config SECTION or KEY; docs/ has pages\n");
}

static void print_key(FILE *out, const VerbKey *k, int width, int columns) {
    char row[ROW_BYTES], left[160];
    snprintf(left, sizeof left, "%s=%s", k->name, k->example);
    int is_long = (int)strlen(left) > width; /* the help then begins on the next line */
    snprintf(row, sizeof row, "  " BOLD "%s" PLAIN "%s%*s%s " DIM "(%s%s)" PLAIN, left, is_long ? "\n" : "",
             is_long ? width + 4 : width + 2 - (int)strlen(left), "", k->help,
             k->fallback ? "default" GLUE : "required", !k->fallback ? "" : *k->fallback ? k->fallback : "none");
    terminal_fold(out, row, columns, width + 4);
}

static void print_verb(FILE *out, const Verb *v, int columns) {
    char row[ROW_BYTES];
    int  width = 0;
    snprintf(row, sizeof row, BOLD "./train_gpt %s" PLAIN "%s%s\n\n%s", v->word, *v->arguments ? " " : "",
             v->arguments, v->about);
    terminal_fold(out, row, columns, 0);
    for (const VerbKey *k = v->keys; k && k->name; k++) {
        int needed = (int)(strlen(k->name) + 1 + strlen(k->example));
        if (needed > width && needed <= KEY_MOST) width = needed;
    }
    if (v->keys) fprintf(out, "\n");
    for (const VerbKey *k = v->keys; k && k->name; k++) print_key(out, k, width, columns);
    snprintf(row, sizeof row, "\nExample: %s", v->example);
    terminal_fold(out, row, columns, 9);
}

/* Refuses an unknown topic: exit 64 with the nearest one. */
static NORETURN void refuse_topic(const char *topic, int is_config) {
    const char *words[TOPICS + 2];
    int         count = 0;
    for (const Verb *v = VERBS; !is_config && v->word && count < TOPICS; v++) words[count++] = v->word;
    if (!is_config) words[count++] = "config";
    for (int k = 0; is_config && option_section(k) && count < TOPICS; k++) words[count++] = option_section(k);
    words[count] = NULL;
    Nearest near = nearest_word(topic, words), key = nearest_key(topic, NEAREST_OPTION);
    if (!near.sure && key.sure) near = key;
    fail(EXIT_CONFIG, "help: there is no %s \"%s\"; the nearest is \"%s\": ./train_gpt help %s%s",
         is_config ? "section or key" : "verb or topic", topic, near.word,
         is_config || near.word == key.word ? "config " : "", near.word);
}

/* Prints the help of a verb, of the config, of one of its sections or keys, or of the program. */
static void print_topic(FILE *out, int words, char **word, int columns) {
    const Verb *verb = words ? verb_find(word[0]) : NULL;
    if (verb) print_verb(out, verb, columns);
    else if (words == 0 || strcmp(word[0], "help") == 0) print_program(out);
    else if (strcmp(word[0], "config") != 0) {
        if (!config_print_topic(out, word[0], columns)) refuse_topic(word[0], 0);
    } else if (words == 1) config_print_help(out, columns);
    else if (strcmp(word[1], "markdown") == 0) config_print_markdown(out);
    else if (!config_print_topic(out, word[1], columns)) refuse_topic(word[1], 1);
}

int verb_help(int words, char **word) {
    char  *text = NULL;
    size_t bytes;
    int    columns = terminal_columns(stdout);
    FILE  *out = memory_file_open(&text, &bytes);
    if (!out) fail(EXIT_MEMORY, "no memory for the help");
    print_topic(out, words, word, columns > PAGE_COLUMNS ? PAGE_COLUMNS : columns);
    if (fclose(out) != 0) fail(EXIT_MEMORY, "no memory for the help");
    say_text(stdout, 0, text);
    free(text);
    return EXIT_DONE;
}
