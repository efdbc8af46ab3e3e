/* number_type.h - which numbers a file of tokens without a header holds, judged by its first bytes. Such a file is read
 * as uint16 or uint32. Numbers of any other type would pass as tokens where the vocabulary is large.
 */
#ifndef TRAIN_GPT_DATA_NUMBER_TYPE_H
#define TRAIN_GPT_DATA_NUMBER_TYPE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;     /* for a message: "64-bit numbers" */
    const char *numpy;    /* dtype that reads them; NULL: the numbers no longer hold the ids */
    int         bytes;    /* bytes of one number */
    int         is_big;   /* big-endian */
    int         form;     /* which test of number_type.c it is */
} NumberType;

/* Returns the type of the numbers at data, or NULL if they are uint16, or nothing shows that they are not.
 * *has_negatives is 1 if some are negative, as the labels of a loss are. */
const NumberType *number_type_find(const uint8_t *data, size_t bytes, int *has_negatives);
/* Returns 1 for uint32, little-endian and without negatives: the type of a vocabulary over 65,536. */
int               number_type_is_uint32(const NumberType *type, int has_negatives);

#endif
