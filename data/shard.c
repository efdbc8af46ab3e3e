/* shard.c - see shard.h. In this order: how a file is recognised by its first bytes, headers and indexes, mapped files,
 * and the writer. */
#include "data/shard.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/io.h"
#include "core/format.h"
#include "data/split.h"
#include "data/text_file.h"

/* Kinds of files of the llm.c family, by their magic number. token_bytes is 0 for files that hold no tokens to train
 * on. */
static const struct { int32_t magic, version; int token_bytes; const char *what; } llmc_files[] = {
    {20240520, 1, 2, "llm.c token shard"},
    {20240801, 7, 4, "llm.c token shard"},
    {20240522, 0, 0, "llm.c eval file"},
    {20240326, 0, 0, "llm.c model checkpoint"},
    {20240803, 0, 0, "llm.c model checkpoint"},
    {20240327, 0, 0, "llm.c debug state"},
    {20240328, 0, 0, "llm.c tokenizer"},
    {20240527, 0, 0, "llm.c optimizer state"},
};

#define OLD_INDEX "TNTIDX\0\0" /* first bytes of an index file of fairseq and of the first Megatron */
/* first bytes of an index file of Megatron: nine, with the NUL that ends this C string */
#define MEGATRON_MAGIC "MMIDIDX\0"

/* Formats of other programs that would pass as tokens without a header. Each begins with six or more fixed bytes, with
 * which no file of tokens begins. */
static const struct { const char *start; size_t bytes; const char *what; } foreign_files[] = {
    {"BIN.TOK\n", 8, "file of tokens of llmq, which is not read: make shards from the text by ./train_gpt tokenize "
     "TEXT out=FOLDER"},
    {MEGATRON_MAGIC, 8, "index of Megatron, which holds no tokens: name the .bin beside it instead"},
    {OLD_INDEX, 8, "index of an older Megatron (TNTIDX), which is not read: make the .bin and the .idx again with "
     "Megatron's present tools"},
    {"\x93NUMPY", 6,
     "NumPy .npy file, not a file of tokens: write the array with tofile() as uint16, or as uint32 for a vocabulary "
     "over 65,536"},
};

/* --- text --------------------------------------------------------------------------------------------------------- */

const char *shard_text_kind(const uint8_t *data, size_t bytes) {
    if (bytes > SHARD_START_BYTES) bytes = SHARD_START_BYTES;
    /* checks the fields of a gzip header (RFC 1952): magic, deflate, flags, level, system */
    if (bytes >= 10 && memcmp(data, "\x1f\x8b\x08", 3) == 0 && data[3] < 32 &&
        (data[8] == 0 || data[8] == 2 || data[8] == 4) && (data[9] <= 13 || data[9] == 255))
        return "gzip";
    if (bytes >= 4 && memcmp(data, "\x28\xb5\x2f\xfd", 4) == 0) return "zstd";
    if (bytes >= 6 && memcmp(data, "\xfd" "7zXZ", 6) == 0) return "xz";
    /* a page follows the magic; 0x15 is the first byte of a page header, the tag of its field `type` */
    if (bytes >= 5 && memcmp(data, "PAR1\x15", 5) == 0) return "parquet";
    /* returns NULL unless the bytes are UTF-8 without control characters, except white space, backspace and escape; a
     * character that the end of the bytes cuts is allowed */
    const char *text = (const char *)data;
    size_t      first = 0, invalid, valid = utf8_valid(text, bytes, SPLIT_END, &invalid);
    for (size_t i = 0; i < valid; i++)
        if (data[i] == 0x7F || (data[i] < 0x20 && !(data[i] >= 8 && data[i] <= 13) && data[i] != 27)) return NULL;
    if (bytes == 0 || (valid < bytes && !utf8_is_cut(text + valid, bytes - valid))) return NULL;
    while (first < bytes && strchr(" \t\r\n", data[first])) first++;
    return first < bytes && strchr("{[", data[first]) ? "JSON" : "UTF-8 text";
}

/* --- numbers of a file without a header --------------------------------------------------------------------------- */

/* Tests that recognise numbers which are not uint16 tokens. Each looks at bits that its type fixes and that uint16
 * tokens leave free: high halves that are 0, bits after the binary point that are 0, bytes that vary less than they
 * should. A test recognises its type only if every number agrees with it and enough numbers show it. So uint16 tokens
 * of any vocabulary are taken for another type with a chance below 2^-16. */
enum { INTEGERS, FLOATS, BFLOATS, TRIPLES, REALS, BREALS, SWAPPED, BYTES };

/* Types of numbers in the order in which they are tried. Wider types are first, because 64-bit numbers also pass the
 * test of 32-bit ones. Floats precede integers, because small big-endian floats also pass the test of uint32. */
static const NumberType TYPES[] = {
    {"float64 numbers", "<f8", 8, 0, FLOATS},
    {"big-endian float64 numbers", ">f8", 8, 1, FLOATS},
    {"64-bit numbers", "<i8", 8, 0, INTEGERS},
    {"big-endian 64-bit numbers", ">i8", 8, 1, INTEGERS},
    {"float32 numbers", "<f4", 4, 0, FLOATS},
    {"big-endian float32 numbers", ">f4", 4, 1, FLOATS},
    {"uint32 numbers", "<i4", 4, 0, INTEGERS},
    {"big-endian uint32 numbers", ">i4", 4, 1, INTEGERS},
    {"numbers of 3 bytes", "u1", 3, 0, TRIPLES},
    {"big-endian numbers of 3 bytes", "u1", 3, 1, TRIPLES},
    {"float16 numbers", NULL, 2, 0, FLOATS},
    {"big-endian float16 numbers", NULL, 2, 1, FLOATS},
    {"bfloat16 numbers", NULL, 2, 0, BFLOATS},
    {"big-endian bfloat16 numbers", NULL, 2, 1, BFLOATS},
    {"float64 numbers with fractions", NULL, 8, 0, REALS},
    {"big-endian float64 numbers with fractions", NULL, 8, 1, REALS},
    {"float32 numbers with fractions", NULL, 4, 0, REALS},
    {"big-endian float32 numbers with fractions", NULL, 4, 1, REALS},
    {"bfloat16 numbers with fractions", NULL, 2, 0, BREALS},
    {"big-endian bfloat16 numbers with fractions", NULL, 2, 1, BREALS},
    {"float16 numbers with fractions", NULL, 2, 0, REALS},
    {"big-endian float16 numbers with fractions", NULL, 2, 1, REALS},
    {"big-endian uint16 numbers", ">u2", 2, 1, SWAPPED},
    {"bytes", "u1", 1, 0, BYTES},
};

enum {
    MOST_ID = 1 << 20,     /* every id is below this, because no tokenizer has more ids */
    /* numbers down to -1024 count as ids, because labels that a loss leaves out are -1 or -100 */
    LEAST_NEGATIVE = 1024,
    SHOWN = 16,            /* fewest numbers, or bits of numbers, by which a type is recognised */
    SEEN = 4096            /* fewest 16-bit numbers from which the distribution of bytes is judged */
};

static uint64_t bits_of(const NumberType *t, const uint8_t *number) {
    uint64_t bits = 0;
    for (int k = 0; k < t->bytes; k++) bits |= (uint64_t)number[k] << 8 * (t->is_big ? t->bytes - 1 - k : k);
    return bits;
}

/* Returns the value of the number with these bits. Returns infinity for a float of 16 bits whose exponent is full. */
static double value_of(const NumberType *t, uint64_t bits) {
    const int is_bfloat = t->form == BFLOATS || t->form == BREALS;
    const int mantissa_bits = is_bfloat ? 7 : 10, bias = is_bfloat ? 127 : 15;
    uint32_t  low = (uint32_t)bits;
    float     narrow;
    double    v;
    if (t->form == INTEGERS) return t->bytes == 8 ? (double)(int64_t)bits : (int32_t)low;
    if (t->bytes == 8) return memcpy(&v, &bits, sizeof v), v;
    if (t->bytes == 4) return memcpy(&narrow, &low, sizeof narrow), (double)narrow;
    int mantissa = (int)low & ((1 << mantissa_bits) - 1), exponent = ((int)low & 0x7fff) >> mantissa_bits;
    if (exponent == 0x7fff >> mantissa_bits) return INFINITY;
    v = exponent ? ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
                 : ldexp(mantissa, 1 - bias - mantissa_bits);
    return low & 0x8000 ? -v : v;
}

/* Returns 1 if all numbers are whole, at least -LEAST_NEGATIVE and below MOST_ID, and enough of them show the type.
 * Numbers that are 0 show nothing. If some integers of 32 bits exceed 65,535, only those show it that are negative or
 * whose low half is over 255. Among floats of 16 bits only different ones count. Their bits after the binary point, all
 * 0, must also be many enough. */
static int are_whole(const NumberType *t, const uint8_t *data, size_t count, int *has_negatives) {
    uint8_t   seen[1 << 13] = {0}; /* a bit for each 16-bit pattern: 1 if it has occurred */
    size_t    shown = 0, shown_wide = 0;
    const int is_half = t->bytes == 2;
    int       is_wide = 0, places = 0;
    for (size_t i = 0; i < count; i++, data += t->bytes) {
        uint64_t bits = bits_of(t, data);
        double   v = value_of(t, bits);
        /* an id over 65,504 becomes infinity in float16 */
        if (is_half && bits == 0x7c00 && t->form == FLOATS) continue;
        if (v != floor(v) || !(v >= -LEAST_NEGATIVE && v < MOST_ID) || (is_half && bits == 0x8000)) return 0;
        *has_negatives |= v < 0;
        if (v == 0 || (is_half && seen[bits >> 3] & 1 << (bits & 7))) continue;
        if (is_half) {
            int after_point = (t->form == BFLOATS ? 7 : 10) - ilogb(v);
            seen[bits >> 3] |= (uint8_t)(1 << (bits & 7));
            places += after_point > 0 ? after_point : 0;
        }
        is_wide |= v > UINT16_MAX;
        shown++, shown_wide += v < 0 || (bits & 0xffff) > 255;
    }
    if (t->form == INTEGERS) return (is_wide && t->bytes < 8 ? shown_wide : shown) >= SHOWN;
    return shown >= SHOWN / 2 && (!is_half || places >= SHOWN);
}

/* Returns 1 for numbers of 3 bytes: the highest byte is always below 16, and the other two often are not. */
static int are_triples(const NumberType *t, const uint8_t *data, size_t count) {
    size_t shown = 0;
    for (size_t i = 0; i < 3 * count; i++) {
        int is_highest = i % 3 == (t->is_big ? 0 : 2);
        if (is_highest && data[i] >= 16) return 0;
        shown += !is_highest && data[i] >= 16;
    }
    return shown >= 4 * SHOWN;
}

/* --- numbers: how bytes are spread -------------------------------------------------------------------------------- */

/* How often each first and each second byte of 16-bit numbers occurs. */
typedef struct { double count[2][256]; double numbers; } Spread;

static double entropy(const Spread *s, int which) { /* returns the entropy of one of the two bytes, in bits */
    double sum = 0;
    for (int b = 0; b < 256; b++)
        if (s->count[which][b] > 0) sum -= s->count[which][b] / s->numbers * log2(s->count[which][b] / s->numbers);
    return sum;
}

/* Returns 1 for floats such as weights and activations: each is 0, or of a size that leaves most exponents unused. In
 * floats of 32 and 64 bits two bytes of the mantissa must be spread evenly over all values, in those of 16 bits one
 * byte. Those of 16 bits must also have both signs often, and many values. Read as uint16 tokens they would have a
 * large vocabulary without any id in its middle. */
static int are_reals(const NumberType *t, const uint8_t *data, size_t count) {
    const int is_short = t->bytes == 2;
    double    most = t->form == BREALS || !is_short ? 0x1p20 : 32, least = is_short && t->form == REALS ? 0 : 0x1p-40;
    size_t    below = 0, kinds = 0;
    uint8_t   seen[1 << 13] = {0}; /* a bit for each value of 16 bits of a number: 1 if it has occurred */
    Spread    spread = {{{0}}, 0};
    for (size_t i = 0; i < count; i++, data += t->bytes) {
        uint64_t bits = bits_of(t, data), part = bits >> (t->bytes == 8 ? 32 : 0) & 0xffff;
        uint8_t *byte = &seen[part >> 3], bit = (uint8_t)(1 << (part & 7));
        double   v = value_of(t, bits);
        if (v == 0) continue;
        kinds += !(*byte & bit), *byte |= bit;
        if (!(fabs(v) >= least && fabs(v) < most)) return 0;
        below += v < 0, spread.count[0][part & 255]++, spread.count[1][part >> 8]++, spread.numbers++;
    }
    if (spread.numbers < SEEN / 4 || kinds < SEEN / 8 || entropy(&spread, 0) < 7.5) return 0;
    return is_short ? fmin((double)below, spread.numbers - (double)below) > spread.numbers / 8
                    : entropy(&spread, 1) > 7.5;
}

static int values(const Spread *s, int which) {
    int n = 0;
    for (int b = 0; b < 256; b++) n += s->count[which][b] > 0;
    return n;
}

/* Returns 1 if the numbers are big-endian uint16. The low byte of a token varies at least as much as its high byte. So
 * the second bytes are the low ones if their entropy is larger by over a bit. They also are if they take all 256
 * values while the first bytes stay below 252, as high bytes do if the vocabulary has at most 64,512 ids. */
static int are_swapped(const Spread *s) {
    int most = 255;
    while (most > 0 && s->count[0][most] == 0) most--;
    int ends_early = s->numbers >= SEEN && values(s, 1) == 256 && values(s, 0) == most + 1 && most < 252;
    return ends_early || (s->numbers >= SEEN / 8 && values(s, 1) >= SHOWN / 2 && entropy(s, 1) > entropy(s, 0) + 1);
}

/* Returns 1 if the data are single bytes, by two chi-squared tests. Bytes have the same distribution at even and at odd
 * places. The two bytes of uint16 tokens differ, unless tokens are drawn evenly from all 65,536. */
static int are_bytes(const Spread *s) {
    double differ = 0, uneven = 0, mean = 2 * s->numbers / 256;
    int    kinds = 0;
    for (int b = 0; b < 256; b++) {
        double first = s->count[0][b], second = s->count[1][b], both = first + second;
        if (both > 0) kinds++, differ += (first - second) * (first - second) / both;
        uneven += (both - mean) * (both - mean) / mean;
    }
    return s->numbers >= SEEN && kinds >= SHOWN && differ < 1.5 * kinds + 60 && uneven > 4 * 256;
}

/* --- numbers: the whole ------------------------------------------------------------------------------------------- */

const NumberType *number_type_find(const uint8_t *data, size_t bytes, int *has_negatives) {
    Spread spread = {{{0}}, 0}; /* without zeros, because padding would make a vocabulary look uneven */
    for (size_t i = 0; i < bytes / 2; i++)
        if (data[2 * i] | data[2 * i + 1])
            spread.count[0][data[2 * i]]++, spread.count[1][data[2 * i + 1]]++, spread.numbers++;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        const NumberType *t = &TYPES[i];
        size_t            count = bytes / (size_t)t->bytes;
        *has_negatives = 0;
        if (t->form == TRIPLES   ? are_triples(t, data, count)
            : t->form == SWAPPED ? are_swapped(&spread)
            : t->form == BYTES   ? are_bytes(&spread)
            : t->form >= REALS   ? are_reals(t, data, count)
                                 : are_whole(t, data, count, has_negatives))
            return t;
    }
    *has_negatives = 0;
    return NULL;
}

/* Returns 1 for little-endian uint32 without negatives, the type of tokens if the vocabulary has over 65,536 ids. */
static int is_uint32(const NumberType *type, int has_negatives) {
    return type->form == INTEGERS && type->bytes == 4 && !type->is_big && !has_negatives;
}

/* --- headers ------------------------------------------------------------------------------------------------------ */

int shard_is_llmc(const uint8_t *data, size_t bytes) {
    int32_t magic = 0;
    if (bytes >= sizeof magic) memcpy(&magic, data, sizeof magic);
    for (size_t i = 0; i < sizeof llmc_files / sizeof *llmc_files; i++)
        if (llmc_files[i].magic == magic) return 1;
    return 0;
}

/* Writes the shell command that turns numbers of this type into tokens of the width that the vocabulary needs. The
 * command fails if an id does not fit. */
enum { CONVERSION_CHARS = 256 };
static const char *conversion(const NumberType *t, int64_t vocab_size, char out[CONVERSION_CHARS]) {
    const int is_wide = vocab_size > UINT16_MAX + 1;
    snprintf(out, CONVERSION_CHARS,
             "python3 -c 'import sys,numpy as n;x=n.fromfile(sys.argv[1],\"%s\")%s;assert 0<=x.min()<=x.max()<%s;"
             "x.astype(\"<u%d\").tofile(sys.argv[2])' FILE NEW.bin writes it as uint%d",
             t->numpy, t->bytes != 3 ? "" : t->is_big ? ".reshape(-1,3)@[65536,256,1]" : ".reshape(-1,3)@[1,256,65536]",
             is_wide ? "2**32" : "65536", is_wide ? 4 : 2, is_wide ? 32 : 16);
    return out;
}

#define FAULT(...) return snprintf(fault, SHARD_FAULT_CHARS, __VA_ARGS__), -1

/* Refuses numbers that are neither uint16 nor uint32, or that are uint32 where uint16 is read. Returns 0 if nothing is
 * wrong, otherwise -1 with reason and remedy in fault. */
static int refuse_type(const NumberType *t, int has_negatives, int64_t vocab_size, char fault[SHARD_FAULT_CHARS]) {
    char cure[CONVERSION_CHARS];
    if (!t || (is_uint32(t, has_negatives) && (!vocab_size || vocab_size > UINT16_MAX + 1))) return 0;
    if (has_negatives)
        FAULT("has no header and holds %s, some below 0: these are labels of a loss, where -100 or -1 leaves a token "
              "out; name the file of the input ids, as uint16, or as uint32 for a vocabulary over 65,536",
              *t->name == 'u' ? "int32 numbers" : t->name);
    if (t->form == REALS || t->form == BREALS)
        FAULT("has no header and holds %s, as weights have, not tokens: name files of tokens, which ./train_gpt "
              "tokenize makes from text", t->name);
    if (!t->numpy)
        FAULT("has no header and holds %s, not tokens: this type holds whole numbers only up to %d, so larger ids are "
              "lost; make the file from the text again, as uint16", t->name, t->form == BFLOATS ? 256 : 2048);
    if (is_uint32(t, 0))
        FAULT("has no header and is read as uint16, as model.vocab_size = %lld is at most 65,536, but holds uint32 "
              "numbers: every second half is 0 or small; write it as uint16, or set model.vocab_size to the size of "
              "its tokenizer (%s)", (long long)vocab_size, conversion(t, vocab_size, cure));
    FAULT("has no header and holds %s, not tokens of uint16 or uint32: %s%s", t->name, conversion(t, vocab_size, cure),
          t->bytes <= 3 ? "; if these are uint16 tokens after all, write them with a header of llm.c "
                          "(docs/formats.md)" : "");
}

int shard_parse_header(const uint8_t *data, size_t bytes, uint64_t file_bytes, int64_t vocab_size, ShardHeader *header,
                       char fault[SHARD_FAULT_CHARS]) {
    const unsigned long long size = file_bytes;
    int32_t start[3] = {0, 0, 0}; /* the first three numbers of a file: magic, version, tokens */
    if (bytes > SHARD_START_BYTES) bytes = SHARD_START_BYTES;
    memcpy(start, data, bytes < sizeof start ? bytes : sizeof start);
    if (file_bytes == 0) FAULT("is empty; copy or make it again");

    for (size_t i = 0; i < sizeof llmc_files / sizeof *llmc_files; i++) {
        if (bytes < 4 || llmc_files[i].magic != start[0]) continue;
        if (llmc_files[i].token_bytes == 0)
            FAULT("is an %s (magic %d), not tokens to train on: ./train_gpt tokenize TEXT out=FOLDER makes shards of a "
                  "text", llmc_files[i].what, start[0]);
        if (file_bytes < SHARD_HEADER_BYTES || bytes < sizeof start)
            FAULT("is truncated: it holds %llu bytes, the header of an llm.c shard alone takes %d; copy or make it "
                  "again", size, SHARD_HEADER_BYTES);
        if (start[1] != llmc_files[i].version)
            FAULT("is an llm.c shard of magic %d, version %d; only version %d of it is known: make it again by "
                  "./train_gpt tokenize TEXT out=FOLDER", start[0], start[1], llmc_files[i].version);
        if (start[2] <= 0)
            FAULT("has a header that counts %d tokens: the file is damaged, or its writer was interrupted; make the "
                  "file again",
                  start[2]);
        unsigned long long due = SHARD_HEADER_BYTES + (uint64_t)llmc_files[i].token_bytes * (uint64_t)start[2];
        if (size < due)
            FAULT("is truncated: the file holds %llu bytes, but its %d tokens take %llu; copy or make the file again",
                  size, start[2],
                  due);
        if (size > due)
            FAULT("holds %llu bytes after its last token: its %d tokens take %llu bytes, and the file has %llu; copy "
                  "or make the file again", size - due, start[2], due, size);
        *header = (ShardHeader){llmc_files[i].token_bytes, SHARD_HEADER_BYTES, start[2], 0};
        return 0;
    }
    for (size_t i = 0; i < sizeof llmc_files / sizeof *llmc_files; i++)
        if (bytes >= 4 && (uint32_t)llmc_files[i].magic == __builtin_bswap32((uint32_t)start[0]))
            FAULT("is an %s in big-endian order, and only little-endian ones are read: python3 -c 'import sys,numpy as "
                  "n;b=open(sys.argv[1],\"rb\").read();open(sys.argv[2],\"wb\").write(n.frombuffer(b[:1024],\">i4\")."
                  "astype(\"<i4\").tobytes()+n.frombuffer(b[1024:],\">u%d\").astype(\"<u%d\").tobytes())' FILE NEW.bin "
                  "converts it to little-endian",
                  llmc_files[i].what, llmc_files[i].token_bytes == 4 ? 4 : 2, llmc_files[i].token_bytes == 4 ? 4 : 2);
    for (size_t i = 0; i < sizeof foreign_files / sizeof *foreign_files; i++)
        if (bytes >= foreign_files[i].bytes && memcmp(data, foreign_files[i].start, foreign_files[i].bytes) == 0)
            FAULT("is %s %s", strchr("aeiou", foreign_files[i].what[0]) ? "an" : "a", foreign_files[i].what);
    const char *text = shard_text_kind(data, bytes);
    if (text) FAULT("is %s, not tokens: text becomes shards by ./train_gpt tokenize TEXT out=FOLDER", text);
    const char *other = text_other_kind(data, bytes);
    if (other) FAULT("is not a file of tokens but %s; make shards from a text by ./train_gpt tokenize TEXT out=FOLDER",
                     other);
    TextEncoding encoding = vocab_size ? text_wide_encoding(data, bytes) : ENCODING_FOUND;
    /* 1: the bytes look like UTF-16, but every second byte is 0, so they may also be bytes as tokens of uint16 */
    int          may_be_bytes = encoding == ENCODING_UTF16LE;
    for (size_t at = 1; may_be_bytes && at < bytes; at += 2) may_be_bytes = data[at] == 0;
    if (encoding != ENCODING_FOUND && !(may_be_bytes && vocab_size <= 256))
        FAULT("has no header and looks like text in %s: ./train_gpt tokenize FILE encoding=%s out=FOLDER makes shards "
              "of it%s", TEXT_ENCODINGS[encoding - 1], TEXT_ENCODINGS[encoding - 1],
              may_be_bytes ? "; if its tokens are bytes as uint16, give model.vocab_size 256" : "");
    int               has_negatives;
    const NumberType *type = number_type_find(data, bytes, &has_negatives);
    int               is_wide = type && is_uint32(type, has_negatives);
    int               token_bytes = (vocab_size ? vocab_size > UINT16_MAX + 1 : is_wide) ? 4 : 2;
    if (is_wide && file_bytes % 4)
        FAULT("has no header and holds uint32 numbers (every second half is 0 or small), but its %llu bytes are not a "
              "multiple of 4: it was cut, or bytes were added; copy or make it again", size);
    if (refuse_type(type, has_negatives, vocab_size, fault)) return -1;
    if (file_bytes % 2 && token_bytes == 2)
        FAULT("is not a token file: without the magic of an llm.c shard it is read as uint16, but it holds an odd "
              "number of bytes (%llu); name a token file, or make it again", size);
    if (file_bytes % 4 && token_bytes == 4)
        FAULT("is not a token file: without the magic of an llm.c shard it is read as uint32, as model.vocab_size = "
              "%lld is over 65,536, but its %llu bytes are not a multiple of 4; write it as uint32",
              (long long)vocab_size, size);
    if (file_bytes < 4) FAULT("is truncated: it holds %llu bytes; copy or make it again", size);
    *header = (ShardHeader){token_bytes, 0, (int64_t)(file_bytes / (uint64_t)token_bytes), 0};
    return 0;
}

/* --- Megatron's index --------------------------------------------------------------------------------------------- */

static const struct { int token_bytes; const char *name; } megatron_types[] = {
    {0, "type 0"}, {0, "uint8"}, {0, "int8"}, {2, "int16"}, {4, "int32"}, {0, "int64"}, {0, "float64"}, {0, "float32"},
    {2, "uint16"}};
enum { MEGATRON_TYPES = sizeof megatron_types / sizeof *megatron_types };

int shard_is_index(const uint8_t *data, size_t bytes) {
    return bytes >= sizeof MEGATRON_MAGIC && memcmp(data, MEGATRON_MAGIC, sizeof MEGATRON_MAGIC) == 0;
}

int shard_parse_index(const uint8_t *data, size_t bytes, uint64_t index_bytes, uint64_t file_bytes, ShardHeader *header,
                      char fault[SHARD_FAULT_CHARS]) {
    uint64_t version, sequences, bounds;
    if (!shard_is_index(data, bytes))
        FAULT("has a file .idx beside it that is not an index of Megatron; make the .bin and the .idx again, or move "
              "the .idx away");
    if (bytes < SHARD_INDEX_BYTES)
        FAULT("has a truncated index: the .idx holds %llu bytes; copy or make the .bin and the .idx again",
              (unsigned long long)index_bytes);
    memcpy(&version, data + 9, 8), memcpy(&sequences, data + 18, 8), memcpy(&bounds, data + 26, 8);
    unsigned type = data[17];
    if (version != 1)
        FAULT("has an index (.idx) of version %llu, and only version 1 is read: make the .bin and the .idx again with "
              "Megatron's present tools",
              (unsigned long long)version);
    if (type >= MEGATRON_TYPES || megatron_types[type].token_bytes == 0)
        FAULT("holds tokens of type %s, as its index (.idx) says; only uint16, int16 and int32 are read: make the .bin "
              "and the .idx again with one of these types",
              type < MEGATRON_TYPES ? megatron_types[type].name : "an unknown type");
    if (sequences == 0) FAULT("holds no tokens, as its index (.idx) says; make the .bin and the .idx again from a text "
                              "that is not empty");
    if (sequences > index_bytes / 12 ||
        bounds > index_bytes / 8 || SHARD_INDEX_BYTES + 12 * sequences + 8 * bounds != index_bytes)
        FAULT("has a damaged index: the .idx holds %llu bytes, which do not fit its %llu sequences and %llu ends of "
              "documents; copy or make the .bin and the .idx again", (unsigned long long)index_bytes,
              (unsigned long long)sequences,
              (unsigned long long)bounds);
    int width = megatron_types[type].token_bytes;
    if (file_bytes % (uint64_t)width || file_bytes == 0)
        FAULT("holds %llu bytes, which is not a whole number of tokens of %s, the type in its index (.idx): the .bin "
              "was cut off, or the .idx belongs to other data; copy or make the .bin and the .idx again",
              (unsigned long long)file_bytes, megatron_types[type].name);
    *header = (ShardHeader){width, 0, (int64_t)(file_bytes / (uint64_t)width), (int64_t)sequences};
    return 0;
}
#undef FAULT

/* --- bytes that are gone ------------------------------------------------------------------------------------------ */

/* The shard that this thread is reading, NULL if none. If a mapped file is cut short or its disk fails, the thread that
 * reads it gets SIGBUS. */
static _Thread_local const Shard *volatile reading;

/* Handles SIGBUS. The signal arrives in a loop that reads a mapped file. The loop holds no lock and leaves nothing half
 * done. So fail() may end the job from here. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    const Shard   *shard = reading;
    const uint8_t *at = (const uint8_t *)info->si_addr;
    (void)context;
    /* the address is in no shard that is being read, so the default action follows, as without this handler */
    if (!shard || at < shard->map || at >= shard->map + shard->file_bytes) {
        set_action(signal_number, &(struct sigaction){.sa_handler = SIG_DFL});
        return;
    }
    fail(EXIT_IO, "%s cannot be read any more at byte %lld of %llu: the file was cut short while it was in use, or its "
         "disk fails; restore the file and start the same command again: the run continues from the newest checkpoint",
         shard->path,
         (long long)(at - shard->map), (unsigned long long)shard->file_bytes);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

#define SAY(exit_code, ...) return snprintf(sentence, SHARD_SENTENCE_CHARS, __VA_ARGS__), exit_code

/* Checks a Megatron index against itself and against the file of tokens: lengths and places of sequences, ends of
 * documents. Returns 0; 1 with the fault, worded to follow the name of the index; or -errno. Reads the whole index, in
 * blocks. */
static int check_index(int fd, const ShardHeader *h, uint64_t index_bytes, uint64_t file_bytes,
                       char fault[SHARD_FAULT_CHARS]) {
#define WRONG(...) return snprintf(fault, SHARD_FAULT_CHARS, __VA_ARGS__), 1
    enum { BLOCK = 8192 };
    static _Thread_local struct { int32_t length[BLOCK]; int64_t place[BLOCK]; } block;
    const unsigned long long size = file_bytes, sequences = (uint64_t)h->sequences,
                             places = SHARD_INDEX_BYTES + 4 * sequences, borders = places + 8 * sequences;
    unsigned long long       due = 0, border = 0;
    for (uint64_t at = 0, n; at < sequences; at += n) {
        n = sequences - at < BLOCK ? sequences - at : BLOCK;
        int rc = io_pread(fd, block.length, 4 * n, SHARD_INDEX_BYTES + 4 * at);
        if (rc == 0) rc = io_pread(fd, block.place, 8 * n, places + 8 * at);
        if (rc < 0) return rc;
        for (uint64_t i = 0; i < n; i++) {
            const unsigned long long number = at + i;
            if (block.length[i] < 0) WRONG("gives sequence %llu a length of %d", number, block.length[i]);
            if (block.place[i] < 0 || (uint64_t)block.place[i] != due)
                WRONG("says that sequence %llu begins at byte %lld, and the sequences before it end at %llu", number,
                      (long long)block.place[i], due);
            due += (uint64_t)block.length[i] * (uint64_t)h->token_bytes;
            if (due > size)
                WRONG("says that sequence %llu ends at byte %llu, and the tokens hold %llu bytes", number, due, size);
        }
    }
    for (uint64_t at = borders, n; at < index_bytes; at += 8 * n) {
        n = (index_bytes - at) / 8 < BLOCK ? (index_bytes - at) / 8 : BLOCK;
        int rc = io_pread(fd, block.place, 8 * n, at);
        if (rc < 0) return rc;
        for (uint64_t i = 0; i < n; border = (uint64_t)block.place[i++])
            if (block.place[i] < (int64_t)border || (uint64_t)block.place[i] > sequences)
                WRONG("has a border of documents at sequence %lld, after %llu, of %llu", (long long)block.place[i],
                      border, sequences);
    }
    if (due < size)
        WRONG("ends its last sequence at byte %llu, and the tokens hold %llu bytes: one of the two was cut", due, size);
    return 0;
#undef WRONG
}

/* Reads the Megatron index NAME.idx of a file NAME.bin. *found is 1 if there is one. Refuses an index that does not
 * describe the file. Returns 0, or an exit code with a message in sentence. */
static int read_index(const char *path, uint64_t file_bytes, ShardHeader *header, int *found, char *sentence) {
    char     name[4096], fault[SHARD_FAULT_CHARS];
    uint8_t  start[SHARD_INDEX_BYTES];
    size_t   stem = strlen(path) < 4 ? 0 : strlen(path) - 4;
    struct stat st;
    *found = 0;
    if (stem >= sizeof name - 4 || strcmp(path + stem, ".bin") != 0) return 0;
    snprintf(name, sizeof name, "%.*s.idx", (int)stem, path);
    int is_there = stat(name, &st) == 0;
    if (!is_there && errno == ENOENT) return 0;
    if (is_there && !S_ISREG(st.st_mode)) SAY(EXIT_DATA, "%s %s", name, io_error_text(io_kind(st.st_mode)));
    int64_t bytes = io_file_bytes(name);
    size_t  start_bytes = bytes < 0 ? 0 : bytes < (int64_t)sizeof start ? (size_t)bytes : sizeof start;
    int     fd = io_open(name, IO_READ), rc = fd < 0 ? fd : io_pread(fd, start, start_bytes, 0);
    int     is_index = rc >= 0 && shard_is_index(start, start_bytes), is_good = 0, is_wrong = 0;
    if (is_index) is_good = shard_parse_index(start, start_bytes, (uint64_t)bytes, file_bytes, header, fault) == 0;
    if (is_good) is_wrong = check_index(fd, header, (uint64_t)bytes, file_bytes, fault);
    if (is_wrong < 0) rc = is_wrong;
    if (fd >= 0) io_close(fd);
    if (rc < 0) SAY(EXIT_IO, "cannot read %s: %s", name, io_error_text(rc));
    if (start_bytes >= 8 && memcmp(start, OLD_INDEX, 8) == 0)
        SAY(EXIT_DATA, "%s has an index of an older Megatron (%s, TNTIDX), which is not read: make the .bin "
            "and the .idx again with Megatron's present tools, or, if the tokens are uint16, move the index away",
            path, name);
    if (!is_index)
        SAY(EXIT_DATA,
            "%s lies where a Megatron index of %s would, and is none%s: copy or make it again, or, if the tokens are "
            "uint16 without an index, give it another name",
            name, path, bytes == 0 ? ", it is empty" : "");
    if (!is_good) SAY(EXIT_DATA, "%s %s (%s)", path, fault, name);
    if (is_wrong) SAY(EXIT_DATA, "%s %s: it is damaged, or not that of %s; copy or make the .bin and the .idx again",
                      name, fault, path);
    *found = 1;
    return 0;
}

/* Writes the message for a text file that was named as a file of tokens, with the command that turns it into tokens.
 * For a packed file of tokens the command unpacks it. */
static int refuse_text(const char *path, const char *kind, char *sentence) {
    const char *name = basename(path);
    char        out[4200], why[TEXT_FILE_FAULT_CHARS];
    const char *what;
    TextFile   *file;
    Packing     packing = PACKED_NOT;
    /* a damaged file is not refused here, because tokenize prints where it is damaged */
    if (text_file_open(&file, path, IO_READ, ENCODING_UTF8, why) == 0) {
        TextKind inside = text_file_kind(file, &what);
        if (inside == TEXT_SHARD || inside == TEXT_BINARY) packing = text_file_form(file).packing;
        text_file_close(file);
    }
    if (packing != PACKED_NOT) {
        snprintf(sentence, SHARD_SENTENCE_CHARS, "%s is packed by %s and holds no text: $ %s < PACKED > NEW.bin "
                 "unpacks it; if that is a file of tokens, name NEW.bin", path, PACKINGS[packing].name,
                 PACKINGS[packing].command);
        return shell_name_file(sentence + strlen(path), SHARD_SENTENCE_CHARS - strlen(path), path), EXIT_DATA;
    }
    snprintf(out, sizeof out, "out=datasets/%.*s", (int)strcspn(name, "."), name);
    SAY(EXIT_DATA, "%s is %s, not tokens: ./train_gpt tokenize %s %s makes shards of it; name those in data.train",
        path, kind, shell_word(path).text, shell_word(out).text);
}

int shard_look(const char *path, int64_t vocab_size, ShardHeader *header, char sentence[SHARD_SENTENCE_CHARS]) {
    struct stat st;
    uint8_t     start[SHARD_START_BYTES];
    char        fault[SHARD_FAULT_CHARS];
    int         has_index;
    *header = (ShardHeader){0, 0, 0, 0};
    int is_there = stat(path, &st) == 0;
    if (!is_there && errno == ENOENT) SAY(EXIT_DATA, "%s does not exist", path);
    if (is_there && S_ISDIR(st.st_mode))
        SAY(EXIT_DATA, "%s is a folder, not a token file; name the files in it, for example \"%s/train_*.bin\"", path,
            path);
    if (is_there && !S_ISREG(st.st_mode))
        SAY(EXIT_DATA, "%s %s: name a file of tokens", path, io_error_text(io_kind(st.st_mode)));
    int fd = io_open(path, IO_READ), rc = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : 0;
    uint64_t file_bytes = rc < 0 ? 0 : (uint64_t)st.st_size;
    size_t   start_bytes = file_bytes < sizeof start ? (size_t)file_bytes : sizeof start;
    if (rc == 0) rc = io_pread(fd, start, start_bytes, 0);
    if (fd >= 0) io_close(fd);
    if (rc < 0) SAY(EXIT_IO, "cannot read %s: %s", path, io_error_text(rc));
    rc = read_index(path, file_bytes, header, &has_index, sentence);
    if (rc || has_index) return rc;
    if (shard_parse_header(start, start_bytes, file_bytes, vocab_size, header, fault) == 0) return 0;
    const char *text = shard_text_kind(start, start_bytes);
    if (text) return refuse_text(path, text, sentence);
    snprintf(sentence, SHARD_SENTENCE_CHARS, "%s %s", path, fault);
    shell_name_file(sentence, SHARD_SENTENCE_CHARS, path);
    return EXIT_DATA;
}
#undef SAY

/* Returns XXH3 of the first and the last END tokens of a shard, or of all of them twice if it has fewer. */
static uint64_t hash_ends(const Shard *shard) {
    enum { END = 1024 };
    int32_t  token[END];
    int64_t  n = shard->header.tokens < END ? shard->header.tokens : END;
    uint64_t hash = 0;
    for (int last = 0; last <= 1; last++) {
        shard_read(shard, last ? shard->header.tokens - n : 0, n, token);
        hash = XXH3_64bits_withSeed(token, sizeof *token * (size_t)n, hash);
    }
    return hash;
}

Shard shard_open(const char *path, int64_t vocab_size) {
    struct stat st;
    char        sentence[SHARD_SENTENCE_CHARS];
    Shard       shard = {NULL, NULL, 0, {0, 0, 0, 0}, 0};
    int         exit_code = shard_look(path, vocab_size, &shard.header, sentence);
    if (exit_code) fail(exit_code, "%s", sentence);
    int fd = io_open(path, IO_READ);
    if (fd < 0) fail(EXIT_IO, "cannot read %s: %s", path, io_error_text(fd));
    if (fstat(fd, &st) < 0) fail(EXIT_IO, "cannot read %s: %s", path, io_error_text(errno));
    shard.file_bytes = (uint64_t)st.st_size;
    const ShardHeader *h = &shard.header;
    if (shard.file_bytes < h->data_offset + (uint64_t)h->token_bytes * (uint64_t)h->tokens)
        fail(EXIT_IO, "%s was cut short while it was opened; copy or make it again", path);
    void *map = mmap(NULL, (size_t)shard.file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) fail(EXIT_IO, "cannot map %s into memory: %s", path, io_error_text(errno));
    io_close(fd);
    shard.map = map;
    shard.path = xstrdup(path, "the name of a token file");
    set_action(SIGBUS, &(struct sigaction){.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO});
    shard.ends = hash_ends(&shard);
    return shard;
}

void shard_close(Shard *shard) {
    munmap((void *)shard->map, (size_t)shard->file_bytes);
    free(shard->path);
    *shard = (Shard){NULL, NULL, 0, {0, 0, 0, 0}, 0};
}

const char *shard_name(const Shard *shard) { return basename(shard->path); }

uint32_t shard_token(const Shard *shard, int64_t i) {
    const uint8_t *tokens = shard->map + shard->header.data_offset;
    reading = shard;
    uint32_t token = shard->header.token_bytes == 2 ? ((const uint16_t *)tokens)[i] : ((const uint32_t *)tokens)[i];
    reading = NULL;
    return token;
}

/* Unmaps the memory pages of tokens [first, first + count). The next access maps them again from the system's page
 * cache. */
static void drop_pages(const Shard *shard, int64_t first, int64_t count) {
    uintptr_t page  = (uintptr_t)sysconf(_SC_PAGESIZE), width = (uintptr_t)shard->header.token_bytes;
    uintptr_t begin = (uintptr_t)shard->map + shard->header.data_offset + (uintptr_t)first * width;
    uintptr_t from  = begin / page * page, end = begin + (uintptr_t)count * width;
    madvise((void *)from, end - from, MADV_DONTNEED);
}

void shard_read(const Shard *shard, int64_t first, int64_t count, int32_t *tokens) {
    const uint8_t *at = shard->map + shard->header.data_offset + first * shard->header.token_bytes;
    reading = shard;
    if (shard->header.token_bytes == 2)
        for (int64_t i = 0; i < count; i++) tokens[i] = ((const uint16_t *)at)[i];
    else memcpy(tokens, at, (size_t)count * 4);
    reading = NULL;
    drop_pages(shard, first, count);
}

int64_t shard_find_foreign(const Shard *shard, int64_t vocab_size) {
    /* number of tokens that are read at once; few, so that little of the file is mapped into this process */
    enum { BLOCK = 1 << 20 };
    const uint8_t *tokens = shard->map + shard->header.data_offset;
    const int      wide = shard->header.token_bytes == 4;
    const int64_t  n = shard->header.tokens;
    int64_t        bad_block = INT64_MAX;
    if (vocab_size > (wide ? (int64_t)UINT32_MAX : (int64_t)UINT16_MAX)) return -1;
    #pragma omp parallel for schedule(static) reduction(min : bad_block)
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t         count = n - at < BLOCK ? n - at : BLOCK;
        const uint16_t *narrow = (const uint16_t *)tokens + at;
        const uint32_t *token = (const uint32_t *)tokens + at;
        uint16_t        most_narrow = 0;
        uint32_t        most = 0;
        reading = shard;
        /* plain loops, which the compiler vectorizes */
        for (int64_t i = 0; wide && i < count; i++) most = token[i] > most ? token[i] : most;
        for (int64_t i = 0; !wide && i < count; i++) most_narrow = narrow[i] > most_narrow ? narrow[i] : most_narrow;
        reading = NULL;
        if ((wide ? most : most_narrow) >= vocab_size && at < bad_block) bad_block = at;
        drop_pages(shard, at, count);
    }
    if (bad_block == INT64_MAX) return -1;
    while (shard_token(shard, bad_block) < vocab_size) bad_block++;
    return bad_block;
}

int64_t shard_zero_tail(const Shard *shard) {
    enum { BLOCK = 1 << 16 };
    const uint8_t *tokens = shard->map + shard->header.data_offset;
    const size_t   width = (size_t)shard->header.token_bytes;
    int64_t        end = shard->header.tokens;
    for (int64_t at = end; at > 0;) {
        int64_t count = at < BLOCK ? at : BLOCK, n = 0;
        at -= count;
        reading = shard;
        for (size_t i = (size_t)count * width; i > 0 && tokens[(size_t)at * width + i - 1] == 0; i--) n++;
        reading = NULL;
        drop_pages(shard, at, count);
        if (n < count * (int64_t)width) return end - at - count + n / (int64_t)width;
    }
    return end;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

enum { WRITER_BYTES = 1 << 20 };

struct ShardWriter {
    char   *path, *tmp;      /* owned; path of the shard, and path.tmp, where it is written; tmp is NULL once renamed */
    int     fd;              /* file descriptor of tmp; -1 once closed */
    int     token_bytes;
    int64_t tokens, vocab_size;
    size_t  used_bytes;      /* bytes of `buffer` that are not yet written to the file */
    uint8_t buffer[WRITER_BYTES];
};

int shard_writer_create(ShardWriter **out, const char *path, int64_t vocab_size) {
    ShardWriter *w = xcalloc(1, sizeof *w, "the writer of a shard");
    w->token_bytes = vocab_size <= 65536 ? 2 : 4;
    w->vocab_size = vocab_size;
    /* the header stays zero until shard_writer_finish, so a shard whose writer died has no tokens */
    w->used_bytes = SHARD_HEADER_BYTES;
    w->path = xstrdup(path, "the path of a shard");
    w->tmp = xformat("the path of a shard", "%s.tmp", path);
    w->fd = io_open(w->tmp, IO_CREATE);
    if (w->fd < 0) {
        int rc = w->fd;
        shard_writer_destroy(w);
        return rc;
    }
    *out = w;
    return 0;
}

static int flush(ShardWriter *w) {
    int rc = io_write(w->fd, w->buffer, w->used_bytes);
    w->used_bytes = 0;
    return rc;
}

int shard_writer_put(ShardWriter *w, const int32_t *tokens, int64_t count) {
    if (count > INT32_MAX - w->tokens) return -EFBIG;
    for (int64_t i = 0; i < count; i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < w->vocab_size, "token %d of a vocabulary of %lld", tokens[i],
              (long long)w->vocab_size);
        /* copies the low bytes, which come first because the machine is little-endian */
        memcpy(w->buffer + w->used_bytes, &tokens[i], (size_t)w->token_bytes);
        w->used_bytes += (size_t)w->token_bytes;
        if (w->used_bytes == WRITER_BYTES) {
            int rc = flush(w);
            if (rc < 0) return rc;
        }
    }
    w->tokens += count;
    return 0;
}

int shard_writer_finish(ShardWriter *w) {
    CHECK(w->tokens > 0, "a shard without tokens: %s", w->path);
    const int32_t header[3] = {w->token_bytes == 2 ? 20240520 : 20240801, w->token_bytes == 2 ? 1 : 7,
                               (int32_t)w->tokens};
    int           rc = flush(w);
    if (rc == 0) rc = io_pwrite(w->fd, header, sizeof header, 0);
    if (rc == 0) rc = io_fsync(w->fd);
    if (rc == 0) {
        rc = io_close(w->fd);
        w->fd = -1;
    }
    if (rc == 0) rc = io_rename(w->tmp, w->path);
    if (rc == 0) free(w->tmp), w->tmp = NULL;
    shard_writer_destroy(w);
    return rc;
}

void shard_writer_destroy(ShardWriter *w) {
    if (!w) return;
    if (w->fd >= 0) io_close(w->fd);
    if (w->tmp) io_unlink(w->tmp);
    free(w->path);
    free(w->tmp);
    free(w);
}
