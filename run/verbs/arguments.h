/* arguments.h - reads the arguments of a verb: which of its keys each names, and the value. A fault ends the program
 * with exit 64, and names verb, key and the expected value.
 *
 *     VerbArgument a = verb_argument("plot", argv[i]);
 *     switch (a.row) {                             // row of PLOT_KEYS
 *         case OUT:  asked.out = verb_text(&a); break;
 *         case X:    asked.x = verb_choice(&a, WORDS); break;
 *         default:   asked.run[asked.runs++] = argv[i]; // VERB_PATH
 *     }
 */
#ifndef TRAIN_GPT_RUN_VERBS_ARGUMENTS_H
#define TRAIN_GPT_RUN_VERBS_ARGUMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/documents.h"
#include "run/guard/lock.h"

enum { VERB_PATH = -1 };
typedef struct {
    const char *verb, *name, *value; /* "plot", "x", "hours"       */
    int         row;                 /* row of the keys of the verb, or VERB_PATH */
} VerbArgument;

/* Reads an argument. "key=value" must have a key of the verb, or it is refused. A file of such a name is given as
 * ./key=value. Any other word is a path. */
VerbArgument  verb_argument(const char *verb, const char *word);
/* Reads an argument like verb_argument, and refuses paths, too. */
VerbArgument  verb_key_only(const char *verb, const char *word);
/* Reads an argument like verb_argument. Keys of the config are allowed, too, and have row VERB_PATH like paths. */
VerbArgument  verb_key_or_config(const char *verb, const char *word);

const char   *verb_text(const VerbArgument *a);                                /* refuses an empty text */
double        verb_number(const VerbArgument *a, double least, double most);
int64_t       verb_count(const VerbArgument *a, int64_t least, int64_t most);  /* such as "131072", "5e9" */
int           verb_flag(const VerbArgument *a);                                /* "true" or "false" */
/* Returns the index of the value among words, which end with NULL. */
int           verb_choice(const VerbArgument *a, const char *const *words);
/* Returns bytes: "80GiB" or "80G", "512MiB", "80GB", "1000000", up to 1e18. */
int64_t       verb_size(const VerbArgument *a, int64_t least);

/* The keys of a verb that reads texts. They are rows of its table from row `first` on. */
enum { INPUT_FIELD, INPUT_FORMAT, INPUT_ENCODING, INPUT_SKIP, INPUT_KEYS };
#define INPUT_KEY_ROWS(first)                                                                                          \
    [(first) +                                                                                                         \
        INPUT_FIELD] = {"field", "body", "text",                                                                       \
                        "field of JSON Lines, column of parquet, with the text; plain text is refused then"},          \
        [(first) + INPUT_FORMAT] = {"format", "jsonl", "by name and content",                                          \
                                    "how files are read: text, jsonl or parquet; text reads a file named on the "      \
                                    "command line whatever it holds"},                                                 \
        [(first) +                                                                                                     \
            INPUT_ENCODING] = {"encoding", "latin-1", "by its mark, else utf-8",                                       \
                               "encoding of text and JSON Lines: utf-8, utf-16le, utf-16be, utf-32le, utf-32be or "    \
                               "latin-1"},                                                                             \
        [(first) + INPUT_SKIP] = {"skip", "'*.md'", "none",                                                            \
                                  "files and folders to leave out of a folder, by name or by path within it; "         \
                                  "may be given several times", 1}
/* Stores the value of row first + `row` in *options. options->skip grows; the caller frees it. */
void          verb_input(const VerbArgument *a, int row, DocumentOptions *options);

/* For the key out=FILE of a verb that prints. verb_take_out() locks the file for this process. It returns NULL if out
 * is NULL, and on ranks other than 0, which do not write. Exit 64 if FILE has content or is no plain file, 73 if
 * another process writes it. verb_put() writes the file whole or not at all, and releases the lock. Exit 74 if it
 * cannot. */
RunLock      *verb_take_out(const char *verb, const char *out);
void          verb_put(const char *verb, const char *path, RunLock *lock, const char *text, size_t bytes);

/* Ends the program with exit 64, the message "VERB: ..." and the usage of the verb. */
NORETURN void verb_misused(const char *verb, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
