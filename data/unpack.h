/* unpack.h - the bytes inside a packed file, as a stream: gzip by zlib, zstd by libzstd, xz by libarchive's xz filter.
 *
 * Damage is a fault even where a library ignores it: a wrong checksum or length, a later member without its header, and
 * bytes after the last member. A file that ends too early is reported as cut off.
 */
#ifndef TRAIN_GPT_DATA_UNPACK_H
#define TRAIN_GPT_DATA_UNPACK_H

#include <stddef.h>
#include <stdint.h>

typedef enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD, PACKED_XZ } Packing;
enum { UNPACK_FAULT_CHARS = 1200 };

/* Reads up to `bytes` of the packed file. Returns how many, 0 at its end, or minus the exit code with the reason in
 * fault. */
typedef int64_t UnpackSource(void *with, char *data, size_t bytes, char fault[UNPACK_FAULT_CHARS]);

typedef struct Unpack Unpack;

/* Returns the packing, detected from the first bytes of a file. */
Packing     unpack_kind(const char *data, size_t bytes);
const char *unpack_name(Packing packing); /* returns "gzip", ...; "none" for PACKED_NOT */
const char *unpack_command(Packing packing); /* returns the filter that unpacks it in a shell; NULL for PACKED_NOT */
/* Creates a stream; source must begin at the first byte of the packed file. `with` is borrowed until unpack_destroy. */
Unpack     *unpack_create(Packing packing, UnpackSource *source, void *with);
/* Reads the next unpacked bytes. Returns their number, 0 at the end, or minus the exit code (65, 71, 74) with the
 * reason in fault. */
int64_t     unpack_read(Unpack *u, char *data, size_t bytes, char fault[UNPACK_FAULT_CHARS]);
void        unpack_destroy(Unpack *u);

#endif
