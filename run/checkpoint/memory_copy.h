/* memory_copy.h - the file of one copy in memory: what it is called, and what makes it whole. For memory_copies.c, which
 * fills it, and memory_rescue.c, which reads it after a loss.
 *
 * Each host has a folder DIR/train_gpt-UID-HASH-HOST of its own: HASH of run.dir, HOST so that hosts which share DIR do not
 * meet. In it, for rank 2:
 *
 *   rank_00002.0, rank_00002.1           two slots, filled in turn
 *   rank_00002.0.next, rank_00002.1.next   on the next host: the same
 *
 * A file is MemoryHeader, the runs that the rank would write, the manifest without files (the "head"), and from
 * data_offset on the bytes of the runs, one after another. The header's hash covers all before the data, the runs' hashes
 * the data. A slot that is being filled begins with a zero.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPY_H
#define TRAIN_GPT_RUN_CHECKPOINT_MEMORY_COPY_H

#include "run/checkpoint/checkpoint_write.h"

enum { MEMORY_SLOTS = 2, MEMORY_PAGE = 4096 };

typedef struct {
    char     magic[8];                /* MEMORY_MAGIC; zeros: being filled */
    uint64_t hash;                    /* of the bytes from `session` on, up to the end of the head */
    uint64_t session;                 /* drawn by the job that made it: copies of several jobs are never mixed */
    int64_t  step;
    int32_t  rank, ranks;             /* whose it is, of how many */
    uint64_t runs, head_bytes;        /* behind the header: WrittenExtent [runs], then the head's text */
    uint64_t data_offset, data_bytes; /* data_offset: a multiple of MEMORY_PAGE */
    char     run_id[40];
} MemoryHeader;
#define MEMORY_MAGIC "TGMEM01"
enum { MEMORY_META_LIMIT = 64 << 20 }; /* of data_offset: all that is read before it is believed */

/* One that was read: header, runs and head. */
typedef struct {
    char                *bytes;       /* owned: all before the data */
    const MemoryHeader  *header;      /* these point into it */
    const WrittenExtent *run;
    const char          *head;
} MemoryCopy;

typedef struct { char text[40]; } MemoryName;
MemoryName memory_name(int rank, int slot, int is_next);
int        memory_is_name(const char *name);
/* Of this rank's host. */
Path memory_folder(const CheckpointState *state);
/* Ranks on the host of rank `rank`, and its place among them; the hosts, in order of their ranks. */
typedef struct { int hosts, host, ranks, place; } MemoryHost;
MemoryHost memory_host(Comm *c, int rank);

/* What a copy of so many runs takes before its data, with room for a head of head_bytes. */
uint64_t memory_meta_bytes(uint64_t runs, uint64_t head_bytes);
/* Fills in all before the data. base: the file's map. The rest of h is set; h.data_offset has room for runs and head. */
void memory_seal(void *base, MemoryHeader h, const WrittenExtent *run, const char *head);

/* Whether `bytes` begin a whole copy in a file of so many bytes. Believes nothing. Points *copy into bytes. 0: the fault
 * is in fault [MANIFEST_FAULT_BYTES], "" where the slot is only being filled. */
int  memory_parse(char *bytes, uint64_t count, uint64_t file_bytes, MemoryCopy *copy, char *fault);
/* The same of a file. memory_free it. */
int  memory_read(const char *path, MemoryCopy *copy, char *fault);
void memory_free(MemoryCopy *copy);
/* Calls put(ctx, run, its bytes) for every run whose bytes have its hash. Returns 0 and the fault for the first that has
 * not. put: NULL, only to check. */
int  memory_each_run(const char *path, const MemoryCopy *copy, void (*put)(void *ctx, WrittenExtent run, const void *bytes),
                     void *ctx, char *fault);

/* RUN/run_id names the run whose copies these are: a folder that began anew, or was removed, has nothing to do with
 * copies that an older one has left. Rank 0. */
int memory_write_run_id(const char *run_dir, const char *run_id);  /* 0 or -errno */
int memory_read_run_id(const char *run_dir, char run_id[40]);      /* 1, or 0: there is none */

#endif
