/* frame.h - the frames between islands (training jobs of several sites) and servers, and the values in them: pure
 * functions over (bytes, length).
 *
 * A frame is a header of 48 bytes and a payload. Little-endian:
 *   0 u32 magic "TGF1"   4 u8 kind    5 u8 type     6 u16 0
 *   8 i64 round          16 i64 offset             24 i64 elems
 *   32 u64 counter: 0, 1, 2, ... in each direction
 *   40 u32 payload bytes, at most 4 MiB            44 u32 0
 * Offsets and elems count parameters in the model's flat order (core/layout.h). The kinds, and what a frame of each
 * must hold, are in run/outer/messages.h: in this file a kind is a number from 1.
 */
#ifndef TRAIN_GPT_COMM_FRAME_H
#define TRAIN_GPT_COMM_FRAME_H

#include <stddef.h>
#include <stdint.h>

enum { FRAME_HEADER_BYTES = 48, FRAME_PAYLOAD_LIMIT = 4 << 20, FRAME_FAULT_BYTES = 200 };

/* Types of the values in a payload. FRAME_INT8 is a sequence of blocks: an f32 scale, then up to INT8_BLOCK values as
 * int8, value = scale * int8. */
typedef enum { FRAME_BYTES, FRAME_F32, FRAME_BF16, FRAME_INT8, FRAME_TYPES } FrameType;
enum { INT8_BLOCK = 4096 };

typedef struct {
    uint8_t  kind, type;
    int64_t  round, offset, elems; /* round: number of the exchange of weights between training jobs; offset: first
                                    * parameter that the frame is about; elems: number of parameters. Each is 0 if
                                    * frames of this kind do not use it */
    uint64_t counter;              /* number of the frame in its direction on the connection; set by the channel, not by
                                    * the sender */
    uint32_t payload_bytes;
} FrameHeader;

void frame_write_header(const FrameHeader *h, uint8_t out[FRAME_HEADER_BYTES]);

/* Reads a header from the first FRAME_HEADER_BYTES of bytes [length]. offset + elems may be at most most_elems
 * (INT64_MAX if not known yet). Returns 1, or 0 with the rest of a sentence in fault: "sent a frame of ...". A good
 * header's payload has at most FRAME_PAYLOAD_LIMIT bytes, and for types with values exactly the bytes of `elems`
 * values. */
int frame_parse_header(const void *bytes, size_t length, int64_t most_elems, FrameHeader *h,
                       char fault[FRAME_FAULT_BYTES]);

/* Returns the payload bytes of `elems` values (elems >= 0); 0 for FRAME_BYTES. */
int64_t frame_value_bytes(FrameType type, int64_t elems);

/* Convert values to a payload [frame_value_bytes] and back. bf16 rounds to nearest, ties to even. int8 uses the scale
 * max|value| / 127 for each block. A block with a value that is not finite becomes all NaN after unpacking, so that the
 * receiver sees the fault. */
void frame_pack(FrameType type, void *payload, const float *values, int64_t elems);
void frame_unpack(FrameType type, float *values, const void *payload, int64_t elems);
/* Converts values to a payload as frame_pack does. Also sets each value to the rounded one that the receiver will
 * unpack. */
void frame_pack_rounded(FrameType type, void *payload, float *values, int64_t elems);

#endif
