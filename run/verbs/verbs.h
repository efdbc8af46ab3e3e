/* verbs.h - words in place of a config file: all tasks but training. None needs MPI; under mpirun rank 0 alone acts, but
 * for `sample` and `eval` with a grid.
 *
 * A verb gets argv from its own word on (argv[0] = "plan") and returns an exit code. It is a row of VERBS (verbs.c),
 * and its keys are rows beside its parser, which reads them, too: `help VERB` (help.c) prints both.
 */
#ifndef TRAIN_GPT_RUN_VERBS_VERBS_H
#define TRAIN_GPT_RUN_VERBS_VERBS_H

/* A key of a verb; a table of them ends with a row without a name. */
typedef struct {
    const char *name, *example; /* "tokens", "400"                          */
    const char *fallback;       /* the default; NULL: it must be given      */
    const char *help;
    int         may_repeat;     /* 1 if it may be given several times */
} VerbKey;

typedef struct {
    const char    *word, *arguments;
    const char    *help;         /* in --help: at most 56 characters         */
    const char    *about;        /* more, in `help VERB`                     */
    const VerbKey *keys;
    const char    *example;      /* a command line                           */
    int          (*main)(int argc, char **argv);
} Verb;
extern const Verb VERBS[];       /* ends with a row without a word           */

/* "--key=value" becomes "key=value" in argv. */
void verbs_plain_keys(int argc, char **argv);
/* Whether this command line asks for anything but training. 1 also without an argument, or with one that is no file and
 * no path. */
int is_verb(int argc, char **argv);
/* Runs the verb. Returns the exit code. */
int verb_main(int argc, char **argv);

const Verb *verb_find(const char *word); /* NULL: none */
/* help.c: the help of the program, and of the topic in words after "help". */
void verb_print_usage(void);             /* on stderr */
int  verb_help(int words, char **word);

extern const VerbKey CHECK_KEYS[], PLAN_KEYS[], TRAIN_TOKENIZER_KEYS[], TOKENIZE_KEYS[], SAMPLE_KEYS[], EVAL_KEYS[],
    EXPORT_KEYS[], PLOT_KEYS[], WATCH_KEYS[], INSPECT_KEYS[], DIFF_KEYS[], DOCTOR_KEYS[], SERVE_KEYS[];

int verb_check(int argc, char **argv);      /* check.c        */
int verb_plan(int argc, char **argv);       /* plan.c    */
int verb_sample(int argc, char **argv);     /* sample.c  */
int verb_eval(int argc, char **argv);       /* eval.c    */
int verb_is_of_ranks(int argc, char **argv); /* sample, eval: all ranks take part, a grid is given */
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
