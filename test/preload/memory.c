/* memory.c - preloaded, makes one allocation of the program itself fail: TRAIN_GPT_MALLOC_FAIL=n, the n-th malloc, calloc, realloc or
 * posix_memalign that its own code calls, from 1; "n+" all from there on. Calls of libraries go through. At the end the number of own calls is
 * appended to the file TRAIN_GPT_MALLOC_COUNT, if that is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static char       *program_begin, *program_end; /* its code */
static atomic_long calls;
static long        fails_at;
static int         and_later;

/* The executable is the first line of the map with code in it that belongs to /proc/self/exe. */
__attribute__((constructor)) static void find_program(void) {
    char  exe[4096], line[4400];
    long  n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    FILE *maps = fopen("/proc/self/maps", "r");
    exe[n > 0 ? n : 0] = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char          rights[8];
        if (!strstr(line, exe) || sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[2] != 'x') continue;
        program_begin = (char *)from, program_end = (char *)to;
    }
    if (maps) fclose(maps);
    const char *fail = getenv("TRAIN_GPT_MALLOC_FAIL");
    if (fail) fails_at = strtol(fail, NULL, 10), and_later = fail[strlen(fail) - 1] == '+';
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("TRAIN_GPT_MALLOC_COUNT");
    char        line[32];
    int         fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (fd < 0) return;
    if (write(fd, line, (size_t)snprintf(line, sizeof line, "%ld\n", calls)) < 0) abort();
    close(fd);
}

static int fails(void *caller) {
    if ((char *)caller < program_begin || (char *)caller >= program_end) return 0;
    long n = ++calls;
    if (fails_at == 0 || (and_later ? n < fails_at : n != fails_at)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *old, size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes); }
int   posix_memalign(void **out, size_t align, size_t bytes) {
    *out = fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}
