/* frame.c - writes and parses the frames that islands (training jobs of several sites) and servers exchange (frame.h),
 * and packs the values in them. */
#include "comm/frame.h"

#include <math.h>
#include <string.h>

#include "core/format.h"
#include "core/tensor.h"

static const uint8_t MAGIC[4] = {'T', 'G', 'F', '1'};

/* --- the header --------------------------------------------------------------------------------------------------- */

void frame_write_header(const FrameHeader *h, uint8_t out[FRAME_HEADER_BYTES]) {
    memset(out, 0, FRAME_HEADER_BYTES);
    memcpy(out, MAGIC, sizeof MAGIC);
    out[4] = h->kind, out[5] = h->type;
    little_endian_put(out + 8, (uint64_t)h->round, 8);
    little_endian_put(out + 16, (uint64_t)h->offset, 8);
    little_endian_put(out + 24, (uint64_t)h->elems, 8);
    little_endian_put(out + 32, h->counter, 8);
    little_endian_put(out + 40, h->payload_bytes, 4);
}

int frame_parse_header(const void *bytes, size_t length, int64_t most_elems, FrameHeader *h,
                       char fault[FRAME_FAULT_BYTES]) {
    const uint8_t *at = bytes;
    int64_t        end;
    if (length < FRAME_HEADER_BYTES)
        return fault_text(fault, FRAME_FAULT_BYTES, 0, "sent a message header of %zu bytes, not %d: use the same "
                          "version of train_gpt at both ends", length,
                          FRAME_HEADER_BYTES);
    if (memcmp(at, MAGIC, sizeof MAGIC) != 0 || little_endian(at + 6, 2) != 0 || little_endian(at + 44, 4) != 0)
        return fault_text(fault, FRAME_FAULT_BYTES, 0,
                          "sent bytes that are no message of this program: use the same version of train_gpt at both "
                          "ends");
    *h = (FrameHeader){.kind = at[4],
                       .type = at[5],
                       .round = (int64_t)little_endian(at + 8, 8),
                       .offset = (int64_t)little_endian(at + 16, 8),
                       .elems = (int64_t)little_endian(at + 24, 8),
                       .counter = little_endian(at + 32, 8),
                       .payload_bytes = (uint32_t)little_endian(at + 40, 4)};
    if (h->kind == 0 || h->type >= FRAME_TYPES)
        return fault_text(fault, FRAME_FAULT_BYTES, 0,
                          "sent a message of kind %d and type %d, which this version does not know: use the same "
                          "version of train_gpt at both ends",
                          h->kind, h->type);
    if (h->payload_bytes > FRAME_PAYLOAD_LIMIT)
        return fault_text(fault, FRAME_FAULT_BYTES, 0, "sent a message of %u bytes, more than the limit of %d: use the "
                          "same version of train_gpt at both ends", h->payload_bytes,
                          FRAME_PAYLOAD_LIMIT);
    if (h->round < 0 || h->offset < 0 || h->elems < 0 || __builtin_add_overflow(h->offset, h->elems, &end) ||
        end > most_elems)
        return fault_text(fault, FRAME_FAULT_BYTES, 0,
                          "sent a message of round %lld, offset %lld, with %lld values, more than the %lld expected: "
                          "use the same version of train_gpt at both ends",
                          (long long)h->round, (long long)h->offset, (long long)h->elems, (long long)most_elems);
    if (h->type != FRAME_BYTES &&
        (h->elems > FRAME_PAYLOAD_LIMIT || frame_value_bytes((FrameType)h->type, h->elems) != h->payload_bytes))
        return fault_text(fault, FRAME_FAULT_BYTES, 0, "sent a message of %u bytes that claims %lld values of type %d: "
                          "use the same version of train_gpt at both ends",
                          h->payload_bytes, (long long)h->elems, h->type);
    return 1;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

int64_t frame_value_bytes(FrameType type, int64_t elems) {
    switch (type) {
    case FRAME_F32:  return 4 * elems;
    case FRAME_BF16: return 2 * elems;
    case FRAME_INT8: return elems + 4 * ((elems + INT8_BLOCK - 1) / INT8_BLOCK);
    default:         return 0;
    }
}

/* Each block of values has the scale max|value| / 127, which is NaN if a value is not finite. */
static void pack_int8(uint8_t *at, const float *values, int64_t elems) {
    for (int64_t from = 0, n; from < elems; from += n, at += 4 + n) {
        float most = 0;
        int   is_finite = 1;
        n = smaller_of(elems - from, INT8_BLOCK);
        for (int64_t i = 0; i < n; i++) {
            is_finite &= isfinite(values[from + i]) != 0;
            most = fmaxf(most, fabsf(values[from + i]));
        }
        float scale = is_finite ? most / 127 : NAN, inverse = 1 / scale;
        if (is_finite && !isfinite(inverse)) scale = inverse = 0; /* the values are too small: all become 0 */
        memcpy(at, &scale, 4);
        int8_t *out = (int8_t *)at + 4;
        for (int64_t i = 0; i < n; i++)
            out[i] = isnan(scale) ? 0 : (int8_t)rintf(fminf(127, fmaxf(-127, values[from + i] * inverse)));
    }
}

static void unpack_int8(float *values, const uint8_t *at, int64_t elems) {
    for (int64_t from = 0, n; from < elems; from += n, at += 4 + n) {
        float         scale;
        const int8_t *in = (const int8_t *)at + 4;
        n = smaller_of(elems - from, INT8_BLOCK);
        memcpy(&scale, at, 4);
        for (int64_t i = 0; i < n; i++) values[from + i] = scale * (float)in[i];
    }
}

void frame_pack(FrameType type, void *payload, const float *values, int64_t elems) {
    if (type == FRAME_F32) memcpy(payload, values, 4 * (size_t)elems);
    if (type == FRAME_INT8) pack_int8(payload, values, elems);
    uint16_t *out = payload;
    if (type == FRAME_BF16)
        for (int64_t i = 0; i < elems; i++) out[i] = bf16_from_f32(values[i]);
}

void frame_unpack(FrameType type, float *values, const void *payload, int64_t elems) {
    if (type == FRAME_F32) memcpy(values, payload, 4 * (size_t)elems);
    if (type == FRAME_INT8) unpack_int8(values, payload, elems);
    const uint16_t *in = payload;
    if (type == FRAME_BF16)
        for (int64_t i = 0; i < elems; i++) values[i] = bf16_to_f32(in[i]);
}

void frame_pack_rounded(FrameType type, void *payload, float *values, int64_t elems) {
    frame_pack(type, payload, values, elems);
    frame_unpack(type, values, payload, elems);
}
