/* verbs.h - words in place of a config file: all tasks but training. None needs MPI; under mpirun rank 0 alone acts, but
 * for `sample` and `eval` with a grid.
 *
 * A verb gets argv from its own word on (argv[0] = "plan") and returns an exit code.
 */
#ifndef TRAIN_GPT_RUN_VERBS_H
#define TRAIN_GPT_RUN_VERBS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Whether this command line asks for anything but training. 1 also without an argument, or with one that is no file and
 * no path. */
int is_verb(int argc, char **argv);
/* Runs the verb. Returns the exit code. */
int verb_main(int argc, char **argv);

const char *program_version(void); /* "0.1.0 (commit 1a2b3c4)" */
const char *program_commit(void); /* that this program was built of */

int verb_check(int argc, char **argv);      /* check.c        */
int verb_plan(int argc, char **argv);       /* plan_verb.c    */
int verb_sample(int argc, char **argv);     /* sample_verb.c  */
int verb_eval(int argc, char **argv);       /* eval_verb.c    */
int verb_is_of_ranks(int argc, char **argv); /* sample, eval: all ranks take part, a grid is given */
int verb_inspect(int argc, char **argv);    /* inspect.c      */
int verb_diff(int argc, char **argv);       /* diff.c         */
int verb_doctor(int argc, char **argv);     /* doctor.c       */
int verb_tokenize(int argc, char **argv);   /* tokenize.c     */
int verb_train_tokenizer(int argc, char **argv);
int verb_export(int argc, char **argv);     /* export.c       */
int verb_plot(int argc, char **argv);       /* plot.c         */
int verb_watch(int argc, char **argv);      /* watch.c        */

#ifdef __cplusplus
}
#endif
#endif
