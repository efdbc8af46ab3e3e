/* coverage.c - for scripts/coverage.sh: writes gcov's counts when a process ends in ways that gcov does not notice. It
 * is linked in by --wrap, not preloaded. */
#include <unistd.h>

void __gcov_dump(void);
void __real__exit(int code) __attribute__((noreturn));
void __wrap__exit(int code) __attribute__((noreturn));
int  __real_MPI_Abort(void *comm, int code);
int  __wrap_MPI_Abort(void *comm, int code);

void __wrap__exit(int code) {
    __gcov_dump();
    __real__exit(code);
}

int __wrap_MPI_Abort(void *comm, int code) {
    __gcov_dump();
    return __real_MPI_Abort(comm, code);
}
