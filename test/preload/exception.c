/* exception.c - preloaded into a program; requests more memory from C++ operator new than there is, as oneDNN 3 may.
 * With AT_LOAD it does so in a constructor, before main. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static void throw_bad_alloc(void) {
    void *(*operator_new)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "_Znwm");
    if (operator_new) operator_new((size_t)1 << 62);
}

#ifdef AT_LOAD
__attribute__((constructor)) static void at_load(void) { throw_bad_alloc(); }
#else
int dnnl_engine_create(void **engine, int kind, size_t index) {
    (void)engine, (void)kind, (void)index;
    throw_bad_alloc();
    return 1;
}
#endif
