/* injection.c - see injection.h. */
#include "run/injection.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/failpoints.h"
#include "core/rng.h"

static int is_word(Failpoint f, const char *word) { return f.word[0] && strcmp(f.word, word) == 0; }

void inject_gradient(Gpt *g, Stream *s) {
    Failpoint f = failpoint("guard.gradient");
    float     wrong = is_word(f, "inf") ? INFINITY : NAN;
    if (f.word[0]) device_from_host(s, tensor_slice(is_word(f, "lone") ? g->dln_f_b : g->dwpe, 1, 1), &wrong);
}

double inject_loss(double tokens) { return is_word(failpoint("guard.loss"), "rise") ? 6.0 * tokens : 0.0; }

#ifdef FAILPOINTS
static uint64_t flips_so_far(void) { return (uint64_t)failpoint_calls("guard.weight"); }
#else
static uint64_t flips_so_far(void) { return 0; }
#endif

void inject_weight(Gpt *g, Stream *s) {
    if (!is_word(failpoint("guard.weight"), "flip")) return;
    uint32_t random[4];
    uint8_t  bytes[sizeof(float)];
    size_t   width = dtype_bytes(g->params.type);
    rng_words(random, 0, RNG_TEST, flips_so_far());
    int64_t  at = (int64_t)(((uint64_t)random[0] << 32 | random[1]) % (uint64_t)g->params.dim[0]);
    Tensor   one = tensor_slice(g->params, at, 1);
    device_to_host(s, bytes, one);
    bytes[random[2] % width] ^= (uint8_t)(1 << random[3] % 8);
    device_from_host(s, one, bytes);
    fprintf(stderr, "injected: bit %u of byte %zu of weight %lld\n", random[3] % 8, random[2] % width, (long long)at);
}
