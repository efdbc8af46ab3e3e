/* verbs.c - the command line of all verbs: see verbs.h. Reads arguments, prints help and --version, calls the verb, and
 * has the verb `schema`. */
#include "run/verbs/verbs.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "comm/comm.h"
#include "core/device.h"
#include "core/format.h"
#include "core/io.h"
#include "core/terminal.h"
#include "core/version.h"
#include "core/error.h"
#include "run/config/config.h"
#include "run/config/faults.h"
#include "run/config/options.h"
#include "run/start.h"

static int verb_schema(int words, char **word) {
    (void)words, (void)word;
    config_print_schema(stdout);
    return EXIT_DONE;
}

static const VerbKey SCHEMA_KEYS[] = {{.name = NULL}};

const Verb SCHEMA_VERB = {
    "schema", "", "JSON Schema of the config, for editors",
    "Prints the JSON Schema of configs; configs/train_gpt.schema.json has it. An editor completes keys of a file with "
    "\"$schema\": \"train_gpt.schema.json\".",
    SCHEMA_KEYS, "./train_gpt schema > train_gpt.schema.json", verb_schema, {0, 0, NULL},
};

static const Verb *const VERBS[] = {
#define VERB_ADDRESS(name) &name##_VERB,
    VERB_LIST(VERB_ADDRESS)
    NULL
};

static const Verb *verb_find(const char *word) {
    for (int i = 0; VERBS[i]; i++)
        if (!strcmp(VERBS[i]->word, word)) return VERBS[i];
    return NULL;
}

/* --- arguments ---------------------------------------------------------------------------------------------------- */

enum { MOST_KEYS = 32, LIST_BYTES = 1024 };

/* Ends the program with exit 64, the message "VERB: ..." and the usage of the verb. */
static NORETURN void PRINTF_LIKE(2, 3) misused(const Verb *verb, const char *fmt, ...) {
    char    text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fail(EXIT_CONFIG, "%s: %s; usage: ./train_gpt %s%s%s (./train_gpt help %s: its keys)", verb->word, text, verb->word,
         *verb->arguments ? " " : "", verb->arguments, verb->word);
}

/* Refuses a word that is no key and no path. The message has the keys of the verb that the user may have meant, or all
 * of them. */
static NORETURN void refuse_unknown(const Verb *verb, const char *word, int is_pair) {
    const VerbKey *keys = verb->keys;
    const char    *names[MOST_KEYS + 1] = {NULL};
    char           name[64], list[LIST_BYTES] = "";
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (int i = 0; keys[i].name; i++) {
        names[i] = keys[i].name;
        const char *before = i == 0 ? "" : keys[i + 1].name ? ", " : " and ";
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s=", before, keys[i].name);
    }
    Nearest near = nearest_word(name, names);
    if (near.sure && strcmp(near.word, name) == 0)
        fail(EXIT_CONFIG, "%s: %s needs a value: %s=...", verb->word, name, name);
    if (near.sure) fail(EXIT_CONFIG, "%s: unknown option \"%s\", did you mean \"%s\"?", verb->word, name, near.word);
    if (!names[0] || (!is_pair && *word != '-')) misused(verb, "\"%s\" is one argument too many", word);
    fail(EXIT_CONFIG, "%s: unknown option \"%s\": there %s %s%s%s%s", verb->word, name, names[1] ? "are" : "is", list,
         is_pair ? " (a file of that name is given as ./" : "", is_pair ? word : "", is_pair ? ")" : "");
}

/* Returns a number within the limits of its key. Otherwise ends the program with "batch=x: a whole number from 1 to
 * 65536 is expected, as in batch=16". */
static double read_number(const char *verb, const VerbKey *k, const char *text) {
    char  *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= k->least && value <= k->most))
        fail(EXIT_CONFIG, "%s: %s=%s: %s from %.16g to %.16g is expected, as in %s=%s", verb, k->name, text,
             k->number ? "a number" : "a whole number", k->least, k->most, k->name, k->example);
    if (!k->number && value != floor(value))
        fail(EXIT_CONFIG, "%s: %s=%s: a whole number is expected: %.17g or %.17g", verb, k->name, text, floor(value),
             ceil(value));
    return value;
}

/* Returns the index of the text among the words. Otherwise ends the program with exit 64. */
static int read_word(const char *verb, const VerbKey *k, const char *const *words, const char *text) {
    char list[LIST_BYTES] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) return i;
        const char *before = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", before, words[i]);
    }
    fail(EXIT_CONFIG, "%s: %s=%s: %s is expected", verb, k->name, text, list);
}

static int64_t read_size(const char *verb, const VerbKey *k, const char *text) {
    static const struct { const char *unit; double bytes; } UNITS[] = {
        {"", 1}, {"KiB", 1024.0}, {"K", 1024.0}, {"KB", 1e3}, {"MiB", 1048576.0}, {"M", 1048576.0}, {"MB", 1e6},
        {"GiB", 1073741824.0}, {"G", 1073741824.0}, {"GB", 1e9}, {"TiB", 1099511627776.0}, {"T", 1099511627776.0},
        {"TB", 1e12}};
    char  *end;
    double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++) {
        double bytes = value * UNITS[i].bytes;
        if (end != text && strcmp(end, UNITS[i].unit) == 0 && bytes >= k->least && bytes <= 1e18) return (int64_t)bytes;
    }
    fail(EXIT_CONFIG, "%s: %s=%s: a size of at least %lld bytes is expected, as in %s=2GiB", verb, k->name, text,
         (long long)k->least, k->name);
}

static void take_value(const char *verb, const VerbKey *k, const char *text) {
    static const char *const FLAGS[] = {"true", "false", NULL};
    if ((k->text || k->take) && !*text && !k->may_be_empty)
        fail(EXIT_CONFIG, "%s: %s needs a value: %s=...", verb, k->name, k->name);
    if (k->text) *k->text = text;
    else if (k->take) k->take(text);
    else if (k->flag) *k->flag = read_word(verb, k, FLAGS, text) == 0;
    else if (k->choice) *k->choice = (int)k->least + read_word(verb, k, k->words, text);
    else if (k->whole) *k->whole = (int)read_number(verb, k, text);
    else if (k->count) *k->count = (int64_t)read_number(verb, k, text);
    else if (k->bytes) *k->bytes = read_size(verb, k, text);
    else *k->number = read_number(verb, k, text);
}

const char *verb_given[MOST_KEYS + 1];

/* Moves the words that are no keys of the verb to the front of argv. A key of the config may be given twice, and the
 * last value counts, so that scripts can append the keys of the user to their own. A key of the verb that is given
 * twice is refused. */
int verb_run(const Verb *verb, int argc, char **argv) {
    const VerbKey *keys = verb->keys;
    const char    *word[MOST_KEYS] = {NULL}; /* [row] first word of argv that sets the key of the row; NULL: none */
    int            words = 0, given = 0, row;
    for (row = 0; keys[row].name; row++)
        if (keys[row].fallback && *keys[row].fallback) take_value(verb->word, &keys[row], keys[row].fallback);
    CHECK(row <= MOST_KEYS, "%s has %d keys", verb->word, row);
    for (int i = 1; i < argc; i++) {
        int    is_config = verb->words.least == VERB_CONFIG;
        size_t length = strcspn(argv[i], "=");
        for (row = 0; keys[row].name; row++)
            if (strlen(keys[row].name) == length && strncmp(argv[i], keys[row].name, length) == 0) break;
        if (!keys[row].name || !argv[i][length] || (is_config && i == 1)) {
            size_t letters = strspn(argv[i], "abcdefghijklmnopqrstuvwxyz_.");
            int    is_dashed = argv[i][0] == '-' && argv[i][1], is_pair = letters > 0 && argv[i][letters] == '=';
            int    is_strange = (is_dashed || is_pair) && access(argv[i], F_OK) != 0;
            if (!is_config && (is_strange || words == verb->words.most)) refuse_unknown(verb, argv[i], is_pair);
            argv[1 + words++] = argv[i];
            continue;
        }
        if (word[row] && !keys[row].may_repeat)
            fail(EXIT_CONFIG, "%s: %s= is given twice, as %s and as %s: give it once", verb->word, keys[row].name,
                 word[row], argv[i]);
        if (!word[row]) word[row] = argv[i], verb_given[given++] = keys[row].name;
        take_value(verb->word, &keys[row], argv[i] + length + 1);
    }
    verb_given[given] = NULL;
    if (words < abs(verb->words.least)) misused(verb, "it needs %s", verb->words.what);
    for (row = 0; keys[row].name; row++)
        if (!word[row] && !keys[row].fallback && !keys[row].unset)
            misused(verb, "%s= is missing: %s; as in %s=%s", keys[row].name, keys[row].help, keys[row].name,
                    keys[row].example);
    return verb->main(words, argv + 1);
}

int verb_is_of_ranks(const char *const *list) {
    while (*list && strncmp(*list, "parallel.", 9) != 0) list++;
    return *list != NULL;
}

DocumentOptions verb_inputs;

void verb_take_skip(const char *value) {
    DocumentOptions *o = &verb_inputs;
    o->skip = xrealloc(o->skip, sizeof *o->skip * (size_t)(o->skips + 1), "the list of skip=");
    o->skip[o->skips++] = value;
}

RunLock *verb_take_out(const char *verb, const char *key, const char *path, int (*is_ours)(const char *start)) {
    enum { START_BYTES = 4096 };
    const char *slash = path ? strrchr(path, '/') : NULL;
    char        folder[4096], *start = NULL;
    struct stat st;
    Launch      launch = launch_detect();
    if (!path || (launch_is_mpirun(launch) && launch.rank > 0)) return NULL;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    /* links are refused, too: the new file would replace the link, as root even /dev/stdout */
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        fail(EXIT_CONFIG, "%s: %s=%s %s: name a file%s", verb, key, path, io_error_text(io_kind(st.st_mode)),
             is_ours ? "" : ", or print by giving no out=");
    if (!is_ours && access(folder, W_OK | X_OK) != 0)
        fail(EXIT_CONFIG, "%s: %s=%s: the folder %s %s", verb, key, path, folder,
             access(folder, F_OK) == 0 ? "cannot be written to: name another" : "is missing: make it, or name another");
    RunLock *lock = lock_output(verb, key, path, LOCK_WHOLE);
    int64_t  bytes = io_file_bytes(path);
    if (is_ours && io_read_start(path, START_BYTES, &start) > 0 && is_ours(start)) bytes = 0;
    if (bytes > 0)
        fail(EXIT_CONFIG,
             "%s: %s=%s exists, with %lld bytes%s, and is not overwritten: remove it, or name another file", verb, key,
             path, (long long)bytes, is_ours ? " that this verb did not write" : "");
    free(start);
    return lock;
}

void verb_put(const char *verb, const char *path, RunLock *lock, const char *text, size_t bytes) {
    lock_keep(lock);
    int error = io_replace_file(path, text, bytes);
    if (error) fail(EXIT_IO, "%s: cannot write %s: %s", verb, path, io_error_text(error));
    lock_release(lock);
}

/* --- help: --help within one screen of 80 x 24, `help VERB`, `help config` ---------------------------------------- */

enum { WORD_WIDTH = 16, ROW_BYTES = 1024, KEY_MOST = 26, PAGE_COLUMNS = 100, TOPICS = 128 };

static void print_verb(FILE *out, const Verb *v, int columns) {
    char row[ROW_BYTES], left[160];
    int  width = 0;
    snprintf(row, sizeof row, BOLD "./train_gpt %s" RESET "%s%s\n\n%s", v->word, *v->arguments ? " " : "",
             v->arguments, v->about);
    terminal_fold(out, row, columns, 0);
    for (const VerbKey *k = v->keys; k->name; k++) {
        int needed = (int)(strlen(k->name) + 1 + strlen(k->example));
        if (needed > width && needed <= KEY_MOST) width = needed;
    }
    if (v->keys->name) fprintf(out, "\n");
    for (const VerbKey *k = v->keys; k->name; k++) {
        const char *otherwise = k->fallback ? k->fallback : k->unset;
        int         bytes = snprintf(left, sizeof left, "%s=%s", k->name, k->example);
        int         is_long = bytes > width; /* 1 if the help must begin on the next line */
        snprintf(row, sizeof row, "  " BOLD "%s" RESET "%s%*s%s " DIM "(%s%s)" RESET, left, is_long ? "\n" : "",
                 is_long ? width + 4 : width + 2 - bytes, "", k->help, otherwise ? "default" GLUE : "required",
                 !otherwise ? "" : *otherwise ? otherwise : "none");
        terminal_fold(out, row, columns, width + 4);
    }
    snprintf(row, sizeof row, "\nExample: %s", v->example);
    terminal_fold(out, row, columns, 9);
}

/* Refuses an unknown topic of help: exit 64 with the nearest topic. */
static NORETURN void refuse_topic(const char *topic, int is_config) {
    const char *words[TOPICS + 2];
    int         count = 0;
    for (int i = 0; !is_config && VERBS[i] && count < TOPICS; i++) words[count++] = VERBS[i]->word;
    if (!is_config) words[count++] = "config";
    for (int k = 0; is_config && option_section(k) && count < TOPICS; k++) words[count++] = option_section(k);
    words[count] = NULL;
    Nearest near = nearest_word(topic, words), key = nearest_key(topic, NEAREST_OPTION);
    if (!near.sure && key.sure) near = key;
    fail(EXIT_CONFIG, "help: there is no %s \"%s\"; the nearest is \"%s\": ./train_gpt help %s%s",
         is_config ? "section or key" : "verb or topic", topic, near.word,
         is_config || near.word == key.word ? "config " : "", near.word);
}

/* Prints the help of a verb, of the config, of one of its sections or keys, or of the program. word [words]: the
 * arguments after "help". */
static void print_help(FILE *to, int words, char **word) {
    const Verb *verb = words ? verb_find(word[0]) : NULL;
    char       *text = NULL;
    size_t      bytes;
    int         columns = (int)smaller_of(terminal_columns(to), PAGE_COLUMNS);
    FILE       *out = memory_file_open(&text, &bytes);
    if (verb) print_verb(out, verb, columns);
    else if (words == 0 || strcmp(word[0], "help") == 0) {
        fprintf(out, "usage: train_gpt config.json [key=value ...]   train; the same command resumes\n"
                     "       train_gpt RUN                           the run of this folder goes on\n"
                     "       mpirun -np 8 train_gpt config.json      train on 8 ranks\n\n");
        for (int i = 0; VERBS[i]; i++)
            fprintf(out, "  " BOLD "%-*s" RESET " %s\n", WORD_WIDTH, VERBS[i]->word, VERBS[i]->help);
        fprintf(out, "\nExit codes: 0 done  64 config  65 data  69 no device  70 internal  71 memory\n"
                     "            73 locked  74 I/O  75 stopped, resumable  76 wrong numbers  77 peer\n"
                     "More: help VERB, help config, help config SECTION or KEY; docs/ has pages\n");
    } else if (strcmp(word[0], "config") != 0) {
        if (!config_print_topic(out, word[0], columns)) refuse_topic(word[0], 0);
    } else if (words == 1) config_print_help(out, columns);
    else if (strcmp(word[1], "markdown") == 0) config_print_markdown(out);
    else if (!config_print_topic(out, word[1], columns)) refuse_topic(word[1], 1);
    fclose(out);
    say_text(to, 0, text);
    free(text);
}

/* --- the command line --------------------------------------------------------------------------------------------- */

void verbs_plain_keys(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        int    is_dashed = strncmp(argv[i], "--", 2) == 0;
        size_t key = is_dashed ? strspn(argv[i] + 2, "abcdefghijklmnopqrstuvwxyz_.$0123456789") : 0;
        if (key > 0 && argv[i][2 + key] == '=') argv[i] += 2;
    }
}

static int is_one_of(const char *word, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(word, *list)) return 1;
    return 0;
}
static const char *const HELP_WORDS[] = {"--help", "-h", "help", "-help", NULL};
static const char *const VERSION_WORDS[] = {"--version", "-V", "-v", "version", "-version", NULL};

static void print_version(void) {
    unsigned xxh = XXH_versionNumber();
    printf("train_gpt %s\nbackend   %s\ncompiler  "
#ifdef __clang__
           "%s\n"
#else
           "gcc %s\n"
#endif
           "libraries cJSON %s, xxHash %u.%u.%u, MPI: %s\n",
           program_version(), device_backend(), __VERSION__, cJSON_Version(), xxh / 10000, xxh / 100 % 100, xxh % 100,
           world_library());
}

/* Refuses a first argument that is no verb, no option and no file: exit 64 with what the user probably meant. */
static NORETURN void refuse_word(const char *word) {
    const char *words[sizeof VERBS / sizeof *VERBS + 4];
    int         count = 0;
    for (int i = 0; VERBS[i]; i++) words[count++] = VERBS[i]->word;
    words[count++] = "--help";
    words[count++] = "--version";
    words[count] = NULL;
    if (edit_distance(word, "train") <= 1)
        fail(EXIT_CONFIG,
             "\"%s\" is neither a verb nor a file; to train, type ./train_gpt config.json without a verb; "
             "./train_gpt --help lists the verbs",
             word);
    if (strchr(word, '=')) fail(EXIT_CONFIG, "the config comes first: type ./train_gpt config.json %s", word);
    Nearest nearest = nearest_word(word, words);
    if (*word != '-' && nearest.word[0] == '-') nearest.sure = 0;
    if (nearest.sure)
        fail(EXIT_CONFIG, "\"%s\" is neither a verb nor a file; did you mean \"%s\"?", word, nearest.word);
    fail(EXIT_CONFIG, "\"%s\" is neither a verb nor a file; ./train_gpt --help lists the verbs", word);
}

int is_verb(int argc, char **argv) {
    if (argc < 2) return 1;
    const char *word = argv[1];
    if (verb_find(word) || is_one_of(word, HELP_WORDS) || is_one_of(word, VERSION_WORDS)) return 1;
    if (*word == '-' && access(word, F_OK) != 0) return 1;
    return (!strpbrk(word, "./") || strchr(word, '=')) && access(word, F_OK) != 0;
}

int verb_main(int argc, char **argv) {
    Launch launch = launch_detect();
    if (argc < 2) {
        if (launch.rank > 0) return EXIT_CONFIG;
        print_help(stderr, 0, NULL);
        return EXIT_CONFIG;
    }
    const Verb *verb = verb_find(argv[1]);
    if (!verb && !is_one_of(argv[1], HELP_WORDS) && !is_one_of(argv[1], VERSION_WORDS)) {
        world_expect(launch); /* the user probably meant a run of all ranks, so a fault ends all of them */
        refuse_word(argv[1]);
    }
    int of_ranks = (verb == &SAMPLE_VERB || verb == &EVAL_VERB) && verb_is_of_ranks((const char *const *)argv);
    if (of_ranks) world_expect(launch);
    else if (launch_is_mpirun(launch) && launch.rank > 0) return EXIT_DONE; /* under mpirun only rank 0 runs the verb */
    else if (launch_is_mpirun(launch) && launch.size > 1 && verb)
        fprintf(stderr, "train_gpt: %s is done once, by rank 0; the other %d processes have nothing to do\n", argv[1],
                launch.size - 1);
    else if (!launch.launched && verb) launch_explain_alone();
    signal(SIGXFSZ, SIG_IGN); /* a write beyond a file-size limit then fails with an error that names the path */
    start_computing();
    int status = EXIT_DONE, is_help = 0, is_version = is_one_of(argv[1], VERSION_WORDS);
    /* Looks for a request for help: "sample --help", or "tokenize help" unless a file named help exists. */
    for (int i = 2; i < argc; i++)
        is_help |= is_one_of(argv[i], HELP_WORDS) && (*argv[i] == '-' || (i == 2 && access(argv[i], F_OK) != 0));
    if (is_version) print_version();
    else if (!verb) print_help(stdout, argc - 2, argv + 2); /* argv[1] is one of HELP_WORDS */
    else if (is_help) print_help(stdout, 1, argv + 1);
    else status = verb_run(verb, argc - 1, argv + 1);
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(EXIT_IO, "standard output could not be written: see whether the disk is full");
    return status;
}
