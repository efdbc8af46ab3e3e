/* verbs.h - verbs take the place of a config file on the command line: all tasks but training. None needs MPI. Under
 * mpirun only rank 0 acts, except for `sample` and `eval` with a grid.
 *
 * A verb gets argv from its own word on (argv[0] = "plan") and returns an exit code. It has a row in VERBS (verbs.c).
 * Its keys are rows beside its parser, which uses them. `help VERB` (help.c) prints both.
 */
#ifndef TRAIN_GPT_RUN_VERBS_VERBS_H
#define TRAIN_GPT_RUN_VERBS_VERBS_H

/* A key of a verb. A table of keys ends with a row without a name. */
typedef struct {
    const char *name, *example; /* such as "tokens", "400"                  */
    const char *fallback;       /* the default; NULL: the key is required   */
    const char *help;
    int         may_repeat;     /* 1 if it may be given several times */
} VerbKey;

typedef struct {
    const char    *word, *arguments;
    const char    *help;         /* text in --help: at most 56 characters    */
    const char    *about;        /* further text in `help VERB`              */
    const VerbKey *keys;
    const char    *example;      /* a command line                           */
    int          (*main)(int argc, char **argv);
} Verb;
extern const Verb VERBS[];       /* ends with a row without a word           */

/* Replaces "--key=value" with "key=value" in argv. */
void verbs_plain_keys(int argc, char **argv);
/* Returns 1 if this command line is not for training. That is also so without an argument, or with one that is neither
 * a file nor a path. */
int is_verb(int argc, char **argv);
/* Runs the verb. Returns the exit code. */
int verb_main(int argc, char **argv);

const Verb *verb_find(const char *word); /* returns NULL for an unknown word */
/* help.c: prints the usage of the program, and the help for the topic in the words after "help". */
void verb_print_usage(void);             /* prints to stderr */
int  verb_help(int words, char **word);

extern const VerbKey CHECK_KEYS[], PLAN_KEYS[], TRAIN_TOKENIZER_KEYS[], TOKENIZE_KEYS[], SAMPLE_KEYS[], EVAL_KEYS[],
    EXPORT_KEYS[], PLOT_KEYS[], WATCH_KEYS[], INSPECT_KEYS[], DIFF_KEYS[], DOCTOR_KEYS[], SERVE_KEYS[];

int verb_check(int argc, char **argv);      /* check.c        */
int verb_plan(int argc, char **argv);       /* plan.c    */
int verb_sample(int argc, char **argv);     /* sample.c  */
int verb_eval(int argc, char **argv);       /* eval.c    */
int verb_is_of_ranks(int argc, char **argv); /* sample, eval: returns 1 with a grid, where all ranks take part */
int verb_inspect(int argc, char **argv);    /* inspect.c      */
int verb_diff(int argc, char **argv);       /* diff.c         */
int verb_doctor(int argc, char **argv);     /* doctor.c       */
int verb_tokenize(int argc, char **argv);   /* tokenize.c     */
int verb_train_tokenizer(int argc, char **argv);
int verb_export(int argc, char **argv);     /* export.c       */
int verb_plot(int argc, char **argv);       /* plot.c         */
int verb_watch(int argc, char **argv);      /* watch.c        */
int verb_serve(int argc, char **argv);      /* serve.c        */

#endif
