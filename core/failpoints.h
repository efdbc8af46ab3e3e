/* failpoints.h - calls that a test makes fail. Without -DFAILPOINTS, as the program is built, its functions do nothing.
 *
 * A source that includes this file marks a call worth breaking with Failpoint f = failpoint("comm.all_reduce"); before
 * it, and failpoint_done(f); after it. The Makefile finds such sources by their include and links their test build,
 * build/cpu/test/train_gpt-failpoints. That program obeys
 *
 *   TRAIN_GPT_FAIL="io.pwrite@3:ENOSPC; comm.all_reduce@2+:fail,rank=1"
 *
 * name     one call, or a group of calls up to a dot: "io" is every I/O call
 * @n       the n-th call of this process, from 1; @n+ also all later ones
 * what     ENOSPC EIO EDQUOT EFBIG EINTR EROFS EACCES ENOMEM ENOENT EINVAL
 *                                     the call is not made, and fails with that error
 *          fail                       the call is not made, and fails with EIO
 *          short                      a write or read moves half of its bytes
 *          hang, slow                 the call never returns, or takes 50 ms more
 *          kill-before, kill-after    the process gets SIGKILL before or after the call
 *          any other word             is passed to the caller, in `word`: "nan", "flip"
 * rank=r   only on this rank (by the launcher's environment); without it on every rank
 *
 * TRAIN_GPT_FAIL_LOG=path: every fault first appends its line "io.pwrite@3:ENOSPC,rank=0" to that file. A rule that
 * cannot be parsed ends the process, exit 64.
 */
#ifndef TRAIN_GPT_CORE_FAILPOINTS_H
#define TRAIN_GPT_CORE_FAILPOINTS_H

#include <stdint.h>

typedef struct {
    int  error;      /* errno with which the call must fail; 0 if the call is to be made */
    int  is_short;
    int  kills;      /* 1: the process gets SIGKILL after the call */
    char word[16];   /* effect that the caller itself must produce, such as "nan" or "flip"; "" if there is none */
} Failpoint;

#ifdef FAILPOINTS
Failpoint failpoint(const char *name);       /* counts a call of this name and applies the rule of TRAIN_GPT_FAIL for
                                              * it, which may hang or kill the process here; any thread may call it */
void      failpoint_done(Failpoint f);       /* kills the process if the rule in f says kill-after; keeps errno */
int64_t   failpoint_calls(const char *name); /* returns the number of calls so far of the failpoint or group `name` */
void      failpoints_reset(void);            /* forgets all counts, so that the next call of each failpoint is number
                                              * 1 */
#else
static inline Failpoint failpoint(const char *name) {
    (void)name;
    Failpoint none = {0, 0, 0, ""};
    return none;
}
static inline void    failpoint_done(Failpoint f) { (void)f; }
static inline int64_t failpoint_calls(const char *name) { return (void)name, 0; }
#endif

#endif
