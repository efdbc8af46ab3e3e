/* memory_copy.h - the file of one copy in memory: its name and its format. memory_copies.c fills it, and
 * memory_rescue.c reads it after a loss.
 *
 * Each host has a folder DIR/train_gpt-UID-HASH-HOST of its own. HASH is that of run.dir. HOST separates hosts that
 * share DIR. The folder contains, for rank 2:
 *
 *   rank_00002.0, rank_00002.1           two slots, filled alternately
 *   rank_00002.0.next, rank_00002.1.next   copies of these on the next host
 *
 * A file is MemoryHeader, the extents that the rank would write, the manifest without files (the "head"), and from
 * data_offset on the bytes of the extents, one after another. The hash in the header covers everything before the data.
 * The hashes of the extents cover the data. A slot that is being filled begins with a zero.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPY_H
#define TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPY_H

#include "run/checkpoint/checkpoint_write.h"

enum { MEMORY_SLOTS = 2, MEMORY_PAGE = 4096 };

typedef struct {
    char     magic[8];                /* MEMORY_MAGIC; zeros: being filled */
    uint64_t hash;                    /* XXH3 of the bytes from `session` on, up to the end of the head */
    uint64_t session;                 /* random number of the job, so that copies of several jobs are never mixed */
    int64_t  step;
    int32_t  rank, ranks;             /* rank that the copy is of; number of ranks */
    uint64_t runs, head_bytes;        /* after the header: WrittenExtent [runs], then the text of the head */
    uint64_t data_offset, data_bytes; /* data_offset: a multiple of MEMORY_PAGE */
    char     run_id[40];
} MemoryHeader;
#define MEMORY_MAGIC "TGMEM01"
enum { MEMORY_META_LIMIT = 64 << 20 }; /* largest data_offset, because that much is read before it is checked */

/* A copy that was read: header, extents and head. */
typedef struct {
    char                *bytes;       /* owned: everything before the data */
    const MemoryHeader  *header;      /* borrowed from bytes, like the next two */
    const WrittenExtent *run;
    const char          *head;
} MemoryCopy;

typedef struct { char text[40]; } MemoryName;
MemoryName memory_name(int rank, int slot, int is_next);
int        memory_is_name(const char *name);
/* Returns the folder of the host of this rank. */
Path memory_folder(const CheckpointState *state);
/* Where rank `rank` is: the number of hosts, the index of its host, the ranks on that host, and its place among
 * them. */
typedef struct { int hosts, host, ranks, place; } MemoryHost;
MemoryHost memory_host(Comm *c, int rank);

/* Returns the bytes before the data in a copy with so many extents (`runs`) and a head of head_bytes. */
uint64_t memory_meta_bytes(uint64_t runs, uint64_t head_bytes);
/* Fills in everything before the data. base: the mapped file. h: all but magic and hash are set, and data_offset leaves
 * enough bytes for extents and head. */
void memory_seal(void *base, MemoryHeader h, const WrittenExtent *run, const char *head);

/* Returns 1 if bytes [count] begin a whole copy in a file of file_bytes. Trusts no value. Points *copy into bytes. On 0
 * the fault is in fault [MANIFEST_FAULT_BYTES]; it is "" if the slot is just being filled. */
int  memory_parse(char *bytes, uint64_t count, uint64_t file_bytes, MemoryCopy *copy, char *fault);
/* Reads a file and parses it with memory_parse. Free *copy with memory_free. */
int  memory_read(const char *path, MemoryCopy *copy, char *fault);
void memory_free(MemoryCopy *copy);
/* Calls put(ctx, extent, its bytes) for every extent whose bytes have its hash. Returns 0 with the fault at the first
 * extent whose bytes have not. put NULL: only checks. */
int  memory_each_run(const char *path, const MemoryCopy *copy, void (*put)(void *ctx, WrittenExtent run, const void *bytes),
                     void *ctx, char *fault);

/* Write and read RUN/run_id, which names the run of the copies. So a run folder that was begun again or removed does
 * not use the copies of an older run. Rank 0. */
int memory_write_run_id(const char *run_dir, const char *run_id);  /* returns 0 or -errno */
int memory_read_run_id(const char *run_dir, char run_id[40]);      /* returns 0 if there is none */

#endif
