/* memory.c - preloaded into a program, makes its allocations fail. TRAIN_GPT_MALLOC_FAIL=n fails the n-th call, from 1;
 * "n+" fails all from there on. Calls of malloc, calloc, realloc, aligned_alloc and posix_memalign count that the
 * program makes, or that the C library or libcjson makes for it (in asprintf, opendir, cJSON_Parse). Calls by other
 * libraries do not fail, nor do those after exit(), which are gcov's. TRAIN_GPT_MALLOC_LOG=file gets a line for each
 * call that may fail, when the program ends. Lines are equal for calls from the same place in the program with the same
 * callers. TRAIN_GPT_MALLOC_STRUCK=file is created once a call has failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

enum { LOGGED = 1 << 18 };

typedef struct { char *begin, *end; } Code; /* range of addresses of a program's or a library's code */

static Code        program, helper[3]; /* code of the program; helper: code of libc, of libcjson, and of this file */
static atomic_long calls;
static atomic_int  has_begun, has_ended;
static long        fails_at;
static int         and_later;
static const char *log_path, *struck_path;
/* for each counted call a hash of its place in the program (its chain of callers) */
static unsigned    place_of[LOGGED];

static int is_in(Code code, const char *at) { return at >= code.begin && at < code.end; }
static int is_helper(const char *at) { return is_in(helper[0], at) || is_in(helper[1], at) || is_in(helper[2], at); }

__attribute__((constructor)) static void find_code(void) {
    char  exe[4096], line[4400];
    long  n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    FILE *maps = fopen("/proc/self/maps", "r");
    exe[n > 0 ? n : 0] = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char          rights[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[2] != 'x') continue;
        Code code = {(char *)from, (char *)to};
        if (strstr(line, exe)) program = code;
        if (strstr(line, "/libc.so")) helper[0] = code;
        if (strstr(line, "/libcjson.so")) helper[1] = code;
        if (is_in(code, (char *)find_code)) helper[2] = code;
    }
    if (maps) fclose(maps);
    const char *fail = getenv("TRAIN_GPT_MALLOC_FAIL");
    if (fail) fails_at = strtol(fail, NULL, 10), and_later = fail[strlen(fail) - 1] == '+';
    log_path = getenv("TRAIN_GPT_MALLOC_LOG");
    struck_path = getenv("TRAIN_GPT_MALLOC_STRUCK");
}

__attribute__((destructor)) static void tell(void) {
    FILE *log = log_path ? fopen(log_path, "a") : NULL;
    long  count = calls < LOGGED ? calls : LOGGED;
    for (long i = 0; log && i < count; i++) fprintf(log, "%08x\n", place_of[i]);
    if (log) fclose(log);
}

static void end(void) { has_ended = 1; }

/* place: hash of the addresses of callers so far, from the inside out; own: how many of them are in the program */
typedef struct { unsigned place; int own; } Asked;

/* Called by _Unwind_Backtrace for each caller of an allocation. Adds its address to the hash, up to the third caller in
 * the program. The first of them is often a function of core/error.c that allocates for many others, so two more are
 * needed to tell places apart. */
static _Unwind_Reason_Code look_at(struct _Unwind_Context *frame, void *asked) {
    Asked *a = asked;
    char  *at = (char *)_Unwind_GetIP(frame);
    a->place = (a->place ^ (unsigned)((unsigned long)at >> 1)) * 0x01000193u; /* FNV */
    if (is_helper(at) && !a->own) return _URC_NO_REASON;
    if (a->own == 2 || !is_in(program, at)) return _URC_END_OF_STACK;
    a->own++;
    return _URC_NO_REASON;
}

static int fails(char *caller) {
    Asked a = {0, 0};
    if (has_ended || (!is_in(program, caller) && !is_helper(caller))) return 0;
    _Unwind_Backtrace(look_at, &a);
    if (!a.own) return 0;
    if (!atomic_exchange(&has_begun, 1)) atexit(end);
    long n = ++calls;
    if (n <= LOGGED) place_of[n - 1] = a.place;
    if (fails_at == 0 || (and_later ? n < fails_at : n != fails_at)) return 0;
    if (struck_path) close(open(struck_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *old, size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes); }
void *aligned_alloc(size_t align, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes);
}
int   posix_memalign(void **out, size_t align, size_t bytes) {
    *out = fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}
