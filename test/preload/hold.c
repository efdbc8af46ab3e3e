/* hold.c - preloaded into a program. The process stops itself (SIGSTOP) before its first rename() to a name that ends
 * with HOLD_AT. With NO_FLOCK set, flock() fails as on a file system that has none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

int rename(const char *from, const char *to) {
    static int was_held;
    int (*real)(const char *, const char *);
    const char *end = getenv("HOLD_AT");
    size_t      length = strlen(to), tail = end ? strlen(end) : 0;
    *(void **)&real = dlsym(RTLD_NEXT, "rename");
    if (end && !was_held && length >= tail && strcmp(to + length - tail, end) == 0) was_held = 1, raise(SIGSTOP);
    return real(from, to);
}

int flock(int fd, int operation) {
    int (*real)(int, int);
    *(void **)&real = dlsym(RTLD_NEXT, "flock");
    return getenv("NO_FLOCK") ? errno = ENOLCK, -1 : real(fd, operation);
}
