/* error.h - how the program ends when it cannot go on, and allocations that end it where there is no memory.
 *
 * Two kinds of end:
 *   fail()    a fault that a user can correct (a config key, a file, a full disk): one sentence and an exit code
 *   CHECK()   a bug: expression, place, rank, host and step; exit 70
 * Both end the whole job, with all its ranks, once error_set_rank() has set an abort function (MPI_Abort, by comm/).
 *
 * A fault that all ranks meet is printed once. Rank 0 prints it at once; the others first give it time to end the job.
 */
#ifndef TRAIN_GPT_CORE_ERROR_H
#define TRAIN_GPT_CORE_ERROR_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define NORETURN [[noreturn]]
#else
#define NORETURN _Noreturn
#endif

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))
#else
#define PRINTF_LIKE(fmt_at, args_at)
#endif

/* Exit codes: the contract with schedulers and scripts. */
enum {
    EXIT_DONE     = 0,
    EXIT_CONFIG   = 64, /* usage or config                                  */
    EXIT_DATA     = 65, /* bad data or checkpoint                           */
    EXIT_NODEVICE = 69, /* no GPU, MPI or NCCL was found */
    EXIT_INTERNAL = 70, /* a bug of this program */
    EXIT_MEMORY   = 71, /* out of memory                                    */
    EXIT_LOCKED   = 73, /* run folder locked or in use                      */
    EXIT_IO       = 74, /* a read or write failed */
    EXIT_STOPPED  = 75, /* stopped on request, checkpointed, resumable      */
    EXIT_NUMERIC  = 76, /* stopped because of the numbers: loss or gradients */
    EXIT_PEER     = 77  /* another rank or server is lost or timed out */
};

/* Sets the rank of this process, the number of ranks, and the function that ends all ranks. abort_job does not return.
 * It is NULL if there is one process. */
void error_set_rank(int rank, int ranks, void (*abort_job)(int exit_code));

/* Sets a function that fail() calls while the ranks do not know each other yet. join() connects this rank to the job,
 * so that an abort by rank 0 can end it. A rank other than 0 calls join() before it waits for rank 0 to report the same
 * fault. May be NULL. */
void error_set_join(void (*join)(void));

/* Sets the step that a CHECK message names; -1 before the first step. */
void error_set_step(int64_t step);

/* Sets lines that every fail(EXIT_MEMORY, ...) prints before its sentence. The lines are borrowed; NULL prints none. */
void error_set_memory_advice(const char *lines);

/* Sets the name of the file that is being read, or NULL. fail() then adds "(while reading NAME)", for faults that are
 * found far from where the file was opened. The name is borrowed. */
void error_set_input(const char *name);

/* Sets a function that fail() and CHECK() call once before the process ends, to remove temporary files and the like.
 * `with` is the argument of that call. at_end may be NULL. Returns the `with` that was set before. */
void *error_set_end(void (*at_end)(void *with), void *with);

/* Prints "train_gpt: <sentence>" to stderr and ends the job with exit_code. */
NORETURN void fail(int exit_code, const char *fmt, ...) PRINTF_LIKE(2, 3);

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif !defined(IS_SANITIZED)
#define IS_SANITIZED 0
#endif

/* Installs a signal's action with the C library's own sigaction(). A library may export another sigaction(): that of
 * UCX 1.10 ignores signals that UCX handles itself. */
void set_action(int signal_number, const struct sigaction *action);

/* Ends this process with exit_code after `seconds`, even if its threads hang. For use before an abort, which may itself
 * hang. */
void error_end_within(unsigned seconds, int exit_code);

/* Prints lines that already name their places ("file:line:column: error: ...") as they are, then ends the job like
 * fail(). */
NORETURN void fail_lines(int exit_code, const char *lines);
/* Prints lines such as "file:line:column: error: ..." to stderr as they are, and returns. */
void error_print_lines(const char *lines);

/* Prints the line "train_gpt: warning: ..." to stderr on rank 0. Other ranks print nothing. */
void warn(const char *fmt, ...) PRINTF_LIKE(1, 2);

NORETURN void check_failed(const char *expression, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* CHECK(cond, "what was expected, with %values") ends the job if cond is false. For conditions that only a bug can
 * break. */
#define CHECK(cond, ...) \
    do { if (!(cond)) check_failed(#cond, __FILE__, __LINE__, __VA_ARGS__); } while (0)

/* Writes a formatted sentence to fault [capacity]. Returns `result`, so that a function can return its failure in the
 * same statement. */
int fault_text(char *fault, size_t capacity, int result, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* --- allocations -------------------------------------------------------------------------------------------------- */

/* Allocation functions. Each returns memory as its namesake in the C library does. If memory runs out, it ends the job
 * with EXIT_MEMORY and the sentence "no memory for WHAT: 12.3 MiB wanted", followed by a cure. WHAT is a phrase such as
 * "a group of ranks". A request for zero bytes also returns memory, which the caller frees as any other. */
void *xmalloc(size_t bytes, const char *what);
void *xcalloc(size_t count, size_t bytes, const char *what); /* zeroed memory; refuses a product of count and bytes over
                                                              * SIZE_MAX */
void *xrealloc(void *old, size_t bytes, const char *what);
/* Returns list [count] with memory for one more element of `bytes` bytes. The capacity is a power of two, and doubles
 * where it is full. NULL is a list without elements. */
void *xgrow(void *list, int64_t count, size_t bytes, const char *what);
char *xstrdup(const char *text, const char *what);
char *xstrndup(const char *text, size_t most, const char *what);
void *xaligned(size_t bytes, const char *what); /* memory aligned to 256 bytes */
char *xformat(const char *what, const char *fmt, ...) PRINTF_LIKE(2, 3); /* text as asprintf(3) would write it */

#ifdef __cplusplus
}
#endif
#endif
