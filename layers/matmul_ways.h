/* matmul_ways.h - the CPU's ways to compute a product, for the file that times them. Internal to layers. */
#ifndef TRAIN_GPT_LAYERS_MATMUL_WAYS_H
#define TRAIN_GPT_LAYERS_MATMUL_WAYS_H

#include "layers/matmul.h"

typedef enum { BY_SGEMM, BY_PRIMITIVE, BY_PANELS } Way;

int  matmul_has_native_bf16(void);                   /* oneDNN multiplies bf16 on this processor; otherwise panels of
                                                      * f32 are used */
void matmul_by(Stream *s, Matmul product, Way way);  /* way: BY_SGEMM or BY_PRIMITIVE */

#endif
