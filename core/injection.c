/* injection.c - puts the wrong numbers that a test requests (injection.h) into a training step. */
#include "core/injection.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/failpoints.h"
#include "core/rng.h"

static int is_word(Failpoint f, const char *word) { return f.word[0] && strcmp(f.word, word) == 0; }

void inject_gradient(Stream *s, Tensor wpe, Tensor ln_f_bias) {
    if (s->ledger) return;
    Failpoint f = failpoint("guard.gradient");
    float     wrong = is_word(f, "inf") ? INFINITY : NAN;
    if (f.word[0]) device_from_host(s, tensor_slice(is_word(f, "lone") ? ln_f_bias : wpe, 1, 1), &wrong);
}

double inject_loss(double tokens) { return is_word(failpoint("guard.loss"), "rise") ? 6.0 * tokens : 0.0; }

void inject_flip(Stream *s, const char *name, Tensor x) {
    if (s->ledger || !is_word(failpoint(name), "flip")) return;
    uint32_t random[4];
    uint8_t  bytes[sizeof(float)];
    size_t   width = dtype_bytes(x.type);
    rng_words(random, 0, RNG_TEST, (uint64_t)failpoint_calls(name));
    int64_t  at = (int64_t)(((uint64_t)random[0] << 32 | random[1]) % (uint64_t)x.dim[0]);
    Tensor   one = tensor_slice(x, at, 1);
    device_to_host(s, bytes, one);
    bytes[random[2] % width] ^= (uint8_t)(1 << random[3] % 8);
    device_from_host(s, one, bytes);
    fprintf(stderr, "injected: %s, bit %u of byte %zu of element %lld\n", name, random[3] % 8, random[2] % width,
            (long long)at);
}
