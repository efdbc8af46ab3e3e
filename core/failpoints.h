/* failpoints.h - calls that a test makes fail. Without -DFAILPOINTS, as the program is built, all of it compiles to
 * nothing.
 *
 * A source that includes this marks a call worth breaking:   Failpoint f = failpoint("comm.all_reduce");   before it, and after it
 * failpoint_done(f). Its test build (build/cpu/test/train_gpt-failpoints: the Makefile finds such sources by their
 * include) then obeys
 *
 *   TRAIN_GPT_FAIL="io.pwrite@3:ENOSPC; comm.all_reduce@2+:fail,rank=1"
 *
 * name     of one call, or of a group of calls up to a dot: "io" is every I/O call
 * @n       the n-th of this process, from 1; @n+ also all later ones
 * what     ENOSPC EIO EDQUOT EFBIG EINTR EROFS EACCES ENOMEM ENOENT EINVAL    the call is not made, and fails with that error; fail = EIO
 *          short                      a write or read moves half of its bytes
 *          hang, slow                 the call never returns, or takes 50 ms more
 *          kill-before, kill-after    the process gets SIGKILL; the call has not, or has, been made
 *          any other word             is the caller's own, in `word`: "nan", "flip"
 * rank=r   only on this rank (by the launcher's environment); without it on every rank
 *
 * TRAIN_GPT_FAIL_LOG=path: every fault that strikes first appends its line "io.pwrite@3:ENOSPC,rank=0" there. A rule
 * that cannot be read ends the process, exit 64.
 */
#ifndef TRAIN_GPT_CORE_FAILPOINTS_H
#define TRAIN_GPT_CORE_FAILPOINTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int  error;      /* errno to fail with; 0: make the call */
    int  is_short;
    int  kills;      /* after the call */
    char word[16];   /* "" unless it is the caller's own */
} Failpoint;

#ifdef FAILPOINTS
Failpoint failpoint(const char *name);       /* counts the call; hangs and kills here; any thread */
void      failpoint_done(Failpoint f);       /* kills here, too; keeps errno */
int64_t   failpoint_calls(const char *name); /* so far, of a name or a group */
void      failpoints_reset(void);            /* counts from 1 again */
#else
static inline Failpoint failpoint(const char *name) {
    (void)name;
    Failpoint none = {0, 0, 0, ""};
    return none;
}
static inline void failpoint_done(Failpoint f) { (void)f; }
#endif

#ifdef __cplusplus
}
#endif
#endif
