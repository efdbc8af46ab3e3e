/* test.h - everything that the test of an op includes. cmocka comes last, because it defines fail() as a macro. */
#ifndef TRAIN_GPT_TEST_REF_TEST_H
#define TRAIN_GPT_TEST_REF_TEST_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/layers.h"
#include "test/ref/compare.h"
#include "test/ref/difference.h"
#include "test/ref/ops.h"
#include "test/ref/record.h"
#include "test/ref/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define OPS_FILE "test/ref/data/ops.rec"
#define NORMS_FILE "test/ref/data/norms.rec"

/* types of activations; this backend computes in the first stage_act_types() of them */
static const DType ACT_TYPES[] = {F32, BF16, F16};

/* Compares a float64 reference with PyTorch's float64. Both round every operation by 2^-53, over at most some hundred
 * terms. */
#define assert_same_float64(got, record)                                                                              \
    do {                                                                                                              \
        const Record *r_ = record;                                                                                    \
        double error_ = compare_doubles(got, (const double *)r_->data, r_->elems);                                     \
        if (!(error_ <= 1e-12)) fail_msg("%s differs from %s by %.3g", #got, r_->head.name, error_);                   \
    } while (0)

/* Redefined here to wait for the work of all stages before an element is read or written. */
#define tensor_get(t, i)    (stage_settle(), tensor_get(t, i))
#define tensor_set(t, i, x) (stage_settle(), tensor_set(t, i, x))
/* Asserts that two tensors have equal bits. */
#define assert_same_bits(a, b) stage_settle(), assert_memory_equal((a).data, (b).data, tensor_bytes(b))

#endif
