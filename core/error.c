/* error.c - ends the program with a message, and allocates memory (error.h). The file-scope state is this process's
 * identity in messages (rank, host, step), and the function that ends the job. */
#include "core/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/terminal.h"

static struct {
    int     rank, ranks;
    int64_t step;
    void  (*abort_job)(int exit_code);
    void  (*join)(void);
    void  (*at_end)(void *with);
    void   *end_with;
    int     forced_code;
    const char *memory_advice, *input;
} self = {.ranks = 1, .step = -1, .forced_code = EXIT_INTERNAL};

void error_set_rank(int rank, int ranks, void (*abort_job)(int)) {
    self.rank = rank;
    self.ranks = ranks;
    self.abort_job = abort_job;
}

void error_set_join(void (*join)(void)) { self.join = join; }
void error_set_step(int64_t step) { self.step = step; }
void error_set_memory_advice(const char *lines) { self.memory_advice = lines; }
void error_set_input(const char *name) { self.input = name; }
void *error_set_end(void (*at_end)(void *with), void *with) {
    void *before = self.end_with;
    self.at_end = at_end, self.end_with = with;
    return before;
}

#if IS_SANITIZED /* under a sanitizer the name sigaction itself is needed, because the sanitizer's wrapper must see each
                  * handler */
#define __sigaction sigaction
#else
int __sigaction(int signal_number, const struct sigaction *action, struct sigaction *before);
#endif
void set_action(int signal_number, const struct sigaction *action) { __sigaction(signal_number, action, NULL); }

static void end_now(int signal_number) { (void)signal_number, _exit(self.forced_code); }

void error_end_within(unsigned seconds, int exit_code) {
    struct sigaction action = {.sa_handler = end_now, .sa_flags = SA_ONSTACK};
    sigset_t         alarm_alone;
    self.forced_code = exit_code;
    set_action(SIGALRM, &action);
    sigemptyset(&alarm_alone);
    sigaddset(&alarm_alone, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm_alone, NULL); /* makes sure that at least the calling thread can take SIGALRM */
    alarm(seconds);
}

/* Ranks other than 0 wait here before they report a fault. If all ranks meet the fault, rank 0 alone prints it, and its
 * abort ends this wait. */
static void let_rank_zero_speak_first(void) {
    if (self.rank <= 0 || !self.abort_job) return;
    if (self.join) self.join();
    signal(SIGTERM, SIG_DFL); /* the launcher ends this process by SIGTERM; a handler would only cut the wait short */
    /* sleeps 1.5 to 1.8 s, because an abort by rank 0 takes 1.0 s under Open MPI to end the other ranks */
    struct timespec left = {1, 500000000L + self.rank % 4 * 100000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* --- exceptions of C++ libraries ---------------------------------------------------------------------------------- */

static void (*terminate_before)(void);

/* Ends the job with the out-of-memory message if a C++ library threw std::bad_alloc. oneDNN 3 does so where oneDNN 2
 * returned an error. No function of this program catches exceptions, so the C++ runtime calls this handler at the
 * throw. */
static void on_terminate(void) {
    typedef struct { void *table; const char *name; } TypeInfo; /* layout of std::type_info in the C++ ABI */
    void *(*type_of_exception)(void);
    *(void **)&type_of_exception = dlsym(RTLD_DEFAULT, "__cxa_current_exception_type");
    const TypeInfo *type = type_of_exception ? (const TypeInfo *)type_of_exception() : NULL;
    if (type && (strstr(type->name, "St9bad_alloc") || strstr(type->name, "St20bad_array_new_length")))
        fail(EXIT_MEMORY, "out of memory in a C++ library, such as oneDNN: raise the limit (ulimit -v, the job's "
                          "memory), or make the model, batch.micro_batch or OMP_NUM_THREADS smaller");
    if (terminate_before) terminate_before();
    abort();
}

/* Installs on_terminate as the C++ terminate handler. Runs from .preinit_array, because a constructor of oneDNN 3 may
 * already run out of memory. */
__attribute__((no_sanitize("address", "thread"))) static void take_exceptions(void) {
    void (*(*set_terminate)(void (*)(void)))(void);
    *(void **)&set_terminate = dlsym(RTLD_DEFAULT, "_ZSt13set_terminatePFvvE"); /* std::set_terminate; NULL if no loaded
                                                                                 * library is written in C++ */
    if (set_terminate) terminate_before = set_terminate(on_terminate);
}
__attribute__((section(".preinit_array"), used)) static void (*take_first)(void) = take_exceptions;

/* --- the ends ----------------------------------------------------------------------------------------------------- */

/* Ends the job with exit_code. The caller has already printed the message. */
static NORETURN void end_job(int exit_code) {
    void (*at_end)(void *with) = self.at_end;
    self.at_end = NULL; /* at_end may call fail() itself, and must not run a second time */
    if (at_end) at_end(self.end_with);
    fflush(stdout);
    fflush(stderr);
    if (self.abort_job) self.abort_job(exit_code);
    _exit(exit_code);
}

NORETURN void fail(int exit_code, const char *fmt, ...) {
    let_rank_zero_speak_first();
    char    text[4096], plain[4096];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (self.input && length >= 0 && (size_t)length < sizeof text)
        snprintf(text + length, sizeof text - (size_t)length, " (while reading %s)", self.input);
    if (exit_code == EXIT_MEMORY && self.memory_advice) say_text(stderr, 2, self.memory_advice);
    terminal_plain(plain, sizeof plain, text);
    if (self.rank > 0) say(stderr, 2, RED "train_gpt:" RESET " rank %d: %s", self.rank, plain);
    else               say(stderr, 2, RED "train_gpt:" RESET " %s", plain);
    end_job(exit_code);
}

void error_print_lines(const char *lines) {
    char text[4096], plain[4096];
    for (const char *end; *lines; lines = *end ? end + 1 : end) {
        end = lines + strcspn(lines, "\n");
        snprintf(text, sizeof text, "%.*s", (int)(end - lines), lines);
        const char *word = strstr(terminal_plain(plain, sizeof plain, text), "error: ");
        if (word && word > plain) say(stderr, 2, "%.*s" RED "error:" RESET "%s", (int)(word - plain), plain, word + 6);
        else                      say(stderr, 2, "%s", plain);
    }
}

NORETURN void fail_lines(int exit_code, const char *lines) {
    let_rank_zero_speak_first();
    error_print_lines(lines);
    end_job(exit_code);
}

void warn(const char *fmt, ...) {
    if (self.rank > 0) return;
    char    text[4096], plain[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    say(stderr, 2, YELLOW "train_gpt: warning:" RESET " %s", terminal_plain(plain, sizeof plain, text));
}

NORETURN void check_failed(const char *expression, const char *file, int line, const char *fmt, ...) {
    char    text[2048], host[256] = "?";
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    gethostname(host, sizeof host - 1);
    say(stderr, 4,
        RED "train_gpt: internal error:" RESET " %s\n  %s:%d: %s is false (rank %d of %d, host %s, step %lld)", text,
        file, line, expression, self.rank, self.ranks, host, (long long)self.step);
    end_job(EXIT_INTERNAL);
}

int fault_text(char *fault, size_t capacity, int result, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault, capacity, fmt, args);
    va_end(args);
    return result;
}

/* --- allocations -------------------------------------------------------------------------------------------------- */

static NORETURN void end_without(double bytes, const char *what) {
    static const char CURE[] = "free memory on this host, or raise the job's limit (sbatch --mem=, ulimit -v)";
    if (bytes < 1024.0) fail(EXIT_MEMORY, "no memory for %s: %.0f bytes wanted; %s", what, bytes, CURE);
    if (bytes < 1048576.0) fail(EXIT_MEMORY, "no memory for %s: %.1f KiB wanted; %s", what, bytes / 1024.0, CURE);
    fail(EXIT_MEMORY, "no memory for %s: %.1f MiB wanted; %s", what, bytes / 1048576.0, CURE);
}

void *xmalloc(size_t bytes, const char *what) {
    void *memory = malloc(bytes ? bytes : 1); /* malloc may return NULL for 0 bytes */
    if (!memory) end_without((double)bytes, what);
    return memory;
}

void *xcalloc(size_t count, size_t bytes, const char *what) {
    size_t product;
    void  *memory = NULL;
    if (!__builtin_mul_overflow(count, bytes, &product)) memory = calloc(1, product ? product : 1);
    if (!memory) end_without((double)count * (double)bytes, what);
    return memory;
}

void *xrealloc(void *old, size_t bytes, const char *what) {
    void *memory = realloc(old, bytes ? bytes : 1); /* realloc may free old for 0 bytes */
    if (!memory) end_without((double)bytes, what);
    return memory;
}

void *xgrow(void *list, int64_t count, size_t bytes, const char *what) {
    int is_full = (count & (count - 1)) == 0;
    return is_full ? xrealloc(list, bytes * (size_t)(count ? 2 * count : 1), what) : list;
}

void *xaligned(size_t bytes, const char *what) {
    enum { ALIGN = 256 };
    void *memory = aligned_alloc(ALIGN, (bytes / ALIGN + 1) * ALIGN);
    if (!memory) end_without((double)bytes, what);
    return memory;
}

char *xstrdup(const char *text, const char *what) {
    size_t bytes = strlen(text) + 1;
    return memcpy(xmalloc(bytes, what), text, bytes);
}

char *xstrndup(const char *text, size_t most, const char *what) {
    size_t bytes = strnlen(text, most);
    char  *copy = memcpy(xmalloc(bytes + 1, what), text, bytes);
    copy[bytes] = 0;
    return copy;
}

char *xformat(const char *what, const char *fmt, ...) {
    char   *text;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0) fail(EXIT_MEMORY, "no memory for %s; free memory on this host", what);
    va_end(args);
    return text;
}
