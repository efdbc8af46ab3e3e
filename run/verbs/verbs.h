/* verbs.h - verbs are words that take the place of a config file on the command line, for all tasks except training.
 * None needs MPI. Under mpirun only rank 0 runs a verb, except `sample` and `eval` with a grid.
 *
 * A verb gets argv from its own word on (argv[0] = "plan") and returns an exit code. Its file defines a Verb, and
 * VERB_LIST has its name. Its keys are rows of a table next to its parser. `help VERB` prints both. The parser reads
 * the default of a key from its row, like a value that was typed. A fault ends the program with exit 64, and the
 * message names verb, key and the expected value.
 *
 *   VerbArgument a = verb_argument("plot", argv[i]);
 *   switch (a.row) {                           // row of PLOT_KEYS
 *       case OUT:       asked.out = verb_text(&a); break;
 *       case X:         asked.x = verb_choice(&a, WORDS); break;
 *       case VERB_PATH: asked.run[asked.runs++] = argv[i]; break;
 *       default:        CHECK(0, "nothing reads %s=", a.name);
 *   }
 */
#ifndef TRAIN_GPT_RUN_VERBS_VERBS_H
#define TRAIN_GPT_RUN_VERBS_VERBS_H

#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/documents.h"
#include "run/guard/lock.h"

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* A key of a verb. A table of keys ends with a row without a name. */
typedef struct {
    const char *name, *example; /* name of the key, and a value for messages: "tokens", "400" */
    const char *fallback;       /* the default; NULL if the key is required                   */
    const char *help;
    int         may_repeat;     /* 1 if the key may be given several times */
} VerbKey;

typedef struct {
    const char    *word, *arguments;
    const char    *help;         /* text in --help: at most 56 characters    */
    const char    *about;        /* further text in `help VERB`              */
    const VerbKey *keys;
    const char    *example;      /* a command line                           */
    int          (*main)(int argc, char **argv);
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
/* Returns 1 if the arguments of sample or eval set a grid of ranks (parallel.*). Then all ranks take part. */
int verb_is_of_ranks(int argc, char **argv);

/* --- arguments ---------------------------------------------------------------------------------------------------- */

enum { VERB_PATH = -1 };
typedef struct {
    const char *verb, *name, *value; /* the verb, the key and the value, such as "plot", "x", "hours" */
    int         row;                 /* row of the key in the table of the verb, or VERB_PATH */
} VerbArgument;

/* Reads one argument of a verb. "key=value" must have a key of the verb, otherwise it is refused. A file with such a
 * name is given as ./key=value. Any other word is a path. */
VerbArgument  verb_argument(const char *verb, const char *word);
/* Reads one argument of a verb, which must be "key=value" with a key of the verb. Refuses paths. */
VerbArgument  verb_key_only(const char *verb, const char *word);
/* Reads one argument of a verb that also allows keys of the config. These have row VERB_PATH, like paths. */
VerbArgument  verb_key_or_config(const char *verb, const char *word);
/* Returns an argument that has the default of the key in this row. */
VerbArgument  verb_default(const char *verb, int row);

const char   *verb_text(const VerbArgument *a);                                /* refuses an empty text */
double        verb_number(const VerbArgument *a, double least, double most);
int64_t       verb_count(const VerbArgument *a, int64_t least, int64_t most);  /* a whole number: "131072", "5e9" */
int           verb_flag(const VerbArgument *a);                                /* reads "true" or "false" */
/* Returns the index of the value among words, which end with NULL. */
int           verb_choice(const VerbArgument *a, const char *const *words);
/* Reads a size in bytes: "80GiB" or "80G", "512MiB", "80GB", "1000000", up to 1e18. */
int64_t       verb_size(const VerbArgument *a, int64_t least);

/* Keys of verbs that read texts. They are rows of the table of the verb from row `first` on. */
enum { INPUT_FIELD, INPUT_FORMAT, INPUT_ENCODING, INPUT_SKIP, INPUT_KEYS };
#define INPUT_KEY_ROWS(first)                                                                                          \
    [(first) + INPUT_FIELD] = {"field", "body", "text",                                                                \
     "field of JSON Lines, column of parquet, with the text; plain text is refused then"},                             \
    [(first) + INPUT_FORMAT] = {"format", "jsonl", "by name and content",                                              \
     "how files are read: text, jsonl or parquet; text reads a file named on the command line whatever it holds"},     \
    [(first) + INPUT_ENCODING] = {"encoding", "latin-1", "by its mark, else utf-8",                                    \
     "encoding of text and JSON Lines: utf-8, utf-16le, utf-16be, utf-32le, utf-32be or latin-1"},                     \
    [(first) + INPUT_SKIP] = {"skip", "'*.md'", "none",                                                                \
     "files and folders to leave out of a folder, by name or by path within it; may be given several times", 1}
/* Stores the value of a key from INPUT_KEY_ROWS in *options. The key is row first + `row`. options->skip grows; the
 * caller frees it. */
void          verb_input(const VerbArgument *a, int row, DocumentOptions *options);

/* For the key out=FILE of a verb that prints. verb_take_out() locks FILE for this process. It returns NULL if out is
 * NULL, and on ranks other than 0, which do not write. Exit 64 if FILE has content or is no plain file, 73 if another
 * process writes it. verb_put() writes FILE completely or not at all, and releases the lock. Exit 74 if it cannot. */
RunLock      *verb_take_out(const char *verb, const char *out);
void          verb_put(const char *verb, const char *path, RunLock *lock, const char *text, size_t bytes);

/* Ends the program with exit 64, the message "VERB: ..." and the usage of the verb. */
NORETURN void verb_misused(const char *verb, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
