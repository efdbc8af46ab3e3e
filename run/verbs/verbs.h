/* verbs.h - verbs are words that take the place of a config file on the command line, for all tasks except training.
 * None needs MPI. Under mpirun only rank 0 runs a verb, except `sample` and `eval` with a grid.
 *
 * The file of a verb defines a Verb, and VERB_LIST has its name. Each key of a verb is one row of a table: name,
 * default, help, and where the value goes. verb_run() reads the command line, and `help VERB` prints the keys. main()
 * gets the words that are no keys, and returns an exit code. A fault ends the program with exit 64, and the message
 * names verb, key and the expected value.
 *
 *   static struct { const char *out; int x; } asked;
 *   static const VerbKey PLOT_KEYS[] = {
 *       {"out", "compare.svg", "plot.svg", "the picture", .text = &asked.out},
 *       {"x", "hours", "tokens", "what the curves run over", .choice = &asked.x, .words = X_WORDS},
 *       {.name = NULL},
 *   };
 *   static int verb_plot(int runs, char **run) { ... } // run[0] to run[runs - 1] are the folders of runs
 *   const Verb PLOT_VERB = {"plot", "RUN... [key=value ...]", ..., PLOT_KEYS, ..., verb_plot, {1, 64, "a run"}};
 */
#ifndef TRAIN_GPT_RUN_VERBS_VERBS_H
#define TRAIN_GPT_RUN_VERBS_VERBS_H

#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/documents.h"
#include "run/guard/lock.h"

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* A key of a verb, such as "tokens". One of the pointers is set. It says where the value goes, and so the type of the
 * key. A table of keys ends with a row without a name. */
typedef struct {
    const char  *name, *example;  /* name of the key, and a value for messages */
    const char  *fallback;        /* the default, read like a typed value; "": none; NULL: `unset` describes it */
    const char  *help;
    const char **text;
    int         *flag;            /* receives 1 for "true", 0 for "false" */
    int         *choice;          /* receives `least` + the index of the typed word in `words` */
    int         *whole;           /* receives a whole number, such as "8" or "1e3" */
    int64_t     *count;           /* receives a whole number, such as "131072" or "5e9" */
    /* receives a size in bytes: "80GiB" or "80G", "512MiB", "80GB", "1000000", up to 1e18 */
    int64_t     *bytes;
    double      *number;
    void       (*take)(const char *value); /* function that reads the value */
    double       least, most;     /* limits of a number; sizes have no `most` */
    const char *const *words;     /* allowed words of `choice`; ends with NULL */
    const char  *unset;           /* describes the default if `fallback` is NULL; if both are NULL, the key is
                                   * required */
    int          may_be_empty;    /* 1 if the value may be empty, as in "key=" */
    int          may_repeat;      /* 1 if the key may be given several times */
} VerbKey;

/* Limits on the words of a command line that are no keys of the verb. They are paths, unless least is VERB_CONFIG. A
 * word that looks like a key is refused, unless a file of that name exists. The user names such a file as
 * ./key=value. */
/* a value of `least`: the words are a config file, and then any number of keys of the config, which the config
 * checks */
enum { VERB_CONFIG = -1 };
typedef struct {
    int         least, most;
    /* name in messages for the words that are no keys, such as "a run folder or a checkpoint" */
    const char *what;
} VerbWords;

typedef struct {
    const char    *word, *arguments;
    const char    *help;         /* text in --help: at most 56 characters    */
    const char    *about;        /* further text in `help VERB`              */
    const VerbKey *keys;
    const char    *example;      /* a command line                           */
    int          (*main)(int words, char **word);
    VerbWords      words;
} Verb;

/* All verbs, in the order of --help. The file of each verb defines it at its end. */
#define VERB_LIST(X)                                                                                                   \
    X(CHECK) X(PLAN) X(TRAIN_TOKENIZER) X(TOKENIZE) X(SAMPLE) X(EVAL) X(EXPORT) X(PLOT) X(WATCH) X(SERVE) X(INSPECT)   \
    X(DIFF) X(DOCTOR) X(SCHEMA)
#define VERB_DECLARED(name) extern const Verb name##_VERB;
VERB_LIST(VERB_DECLARED)

/* --- the command line --------------------------------------------------------------------------------------------- */

/* Replaces "--key=value" with "key=value" in argv. */
void verbs_plain_keys(int argc, char **argv);
/* Returns 1 if this command line is not for training. Then the first argument is missing, is a verb or an option, or is
 * neither a file nor a path. */
int is_verb(int argc, char **argv);
/* Runs the verb of the command line. Returns the exit code. */
int verb_main(int argc, char **argv);
/* Returns 1 if a list of words or keys, ended by NULL, sets a grid of ranks (parallel.*). Then all ranks take part in
 * sample and eval. */
int verb_is_of_ranks(const char *const *list);

/* --- arguments ---------------------------------------------------------------------------------------------------- */

/* Sets the fields of all keys: to their defaults, and to the values in argv[1] to argv[argc - 1]. Then calls main() of
 * the verb with the other words. Returns its exit code. */
int verb_run(const Verb *verb, int argc, char **argv);
/* Names of the keys that verb_run() found in argv. Ends with NULL. */
extern const char *verb_given[];

/* Values of INPUT_KEYS, the keys of verbs that read texts. The caller frees verb_inputs.skip. */
extern DocumentOptions verb_inputs;
void verb_take_skip(const char *value);
#define INPUT_KEYS                                                                                                     \
    {"field", "body", NULL, "field of JSON Lines, column of parquet, with the text; plain text is refused then",       \
     .text = &verb_inputs.field, .unset = "text"},                                                                     \
    {"format", "jsonl", NULL,                                                                                          \
     "how files are read: text, jsonl or parquet; text reads a file named on the command line whatever it holds",      \
     .choice = (int *)&verb_inputs.format, .least = FORMAT_TEXT, .words = DOCUMENT_FORMATS,                            \
     .unset = "by name and content"},                                                                                  \
    {"encoding", "latin-1", NULL,                                                                                      \
     "encoding of text and JSON Lines: utf-8, utf-16le, utf-16be, utf-32le, utf-32be or latin-1",                      \
     .choice = (int *)&verb_inputs.encoding, .least = ENCODING_UTF8, .words = TEXT_ENCODINGS,                          \
     .unset = "by its mark, else utf-8"},                                                                              \
    {"skip", "'*.md'", NULL,                                                                                           \
     "files and folders to leave out of a folder, by name or by path within it; may be given several times",           \
     .take = verb_take_skip, .unset = "none", .may_repeat = 1}

/* Keys of verbs that compute with a stored model. keys: the StoredKeys that receive the values
 * (run/text/stored_model.h). otherwise: a text for help that describes the default of positions=. */
#define STORED_KEYS(keys, otherwise)                                                                                   \
    {"positions", "1024", NULL, "the most tokens that are seen at once; fewer need less memory",                       \
     .count = &keys.positions, .least = 1, .most = INT32_MAX, .unset = otherwise},                                     \
    {"tokenizer", "datasets/bpe", NULL, "a tokenizer's folder or file", .text = &keys.tokenizer,                       \
     .unset = "the run's"},                                                                                            \
    {"parallel.tensor", "2", "1", "under mpirun: ranks that divide every matrix", .whole = &keys.grid.tensor,          \
     .least = 1, .most = 1024},                                                                                        \
    {"parallel.context", "2", "1", "under mpirun: ranks that share a sequence", .whole = &keys.grid.context,           \
     .least = 1, .most = 1024},                                                                                        \
    {"parallel.pipeline", "2", "1", "under mpirun: ranks that share the blocks", .whole = &keys.grid.stages,           \
     .least = 1, .most = 1024}

/* verb_take_out and verb_put serve a key that names a file to print into. verb_take_out() locks the file for this
 * process. It returns NULL if `path` is NULL, and on ranks other than 0, which do not write. Exit 64 if it is no plain
 * file, or has content already. A file for whose first bytes is_ours() returns 1 may be overwritten; is_ours may be
 * NULL. Exit 73 if another process writes it. verb_put() writes the file completely or not at all, and releases the
 * lock. Exit 74 if it cannot. */
RunLock *verb_take_out(const char *verb, const char *key, const char *path, int (*is_ours)(const char *start));
void     verb_put(const char *verb, const char *path, RunLock *lock, const char *text, size_t bytes);

#endif
