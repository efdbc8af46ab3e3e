/* verbs.h - words in place of a config file: everything the program does but train. None needs MPI; under mpirun rank 0 alone acts.
 *
 * A verb gets argv from its own word on (argv[0] = "plan") and returns an exit code.
 */
#ifndef TRAIN_GPT_RUN_VERBS_H
#define TRAIN_GPT_RUN_VERBS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Does this command line ask for anything but training? Also with no argument at all, or one that is no file and no path. */
int is_verb(int argc, char **argv);
/* Does it. Returns the exit code. */
int verb_main(int argc, char **argv);

int verb_check(int argc, char **argv);      /* check.c        */
int verb_plan(int argc, char **argv);       /* plan.c         */
int verb_sample(int argc, char **argv);     /* sample_verb.c  */
int verb_tokenize(int argc, char **argv);   /* tokenize.c     */

#ifdef __cplusplus
}
#endif
#endif
