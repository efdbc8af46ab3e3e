/* manifest.h - state.json: the description of a checkpoint, and the hashes that prove it.
 *
 * Extents, which are ranges of bytes, cover every byte of a checkpoint exactly once. In files of up to 32 GiB an extent
 * has at most 1 MiB. Each has the XXH3 of its bytes as they were in the memory of the writer. The manifest ends with a
 * hash of everything before it, so any change to any byte of a checkpoint is seen. The parser is a pure function over
 * bytes and length. It never takes names of files from the text, because a checkpoint has exactly the files of
 * manifest_file_name.
 *
 *   {"format":"train_gpt checkpoint","version":"1.1","run_id":...,"parent":{"run_id":...,"step":"40"} of a copied run,
 *    "folder":"/where/the/run/is","step":"50",...,"config":{...},
 *    "data":[{"name":"train_000.bin","bytes":"...","tokens":"...","ends":"xxh3 hex"}],
 *    "files":[{"name":"model.safetensors","bytes":"...","runs":[["offset","length","xxh3 hex"],...]},...],
 *    "hash":"xxh3 hex of all bytes before ,\"hash\""}
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MANIFEST_H
#define TRAIN_GPT_RUN_CHECKPOINT_MANIFEST_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "core/json.h"
#include "core/mesh.h"
#include "run/guard/guard.h"

#define MANIFEST_NAME "state.json"
/* Limits of a manifest, the description of a checkpoint: at most MANIFEST_VALUES JSON values in MANIFEST_LIMIT bytes.
 * Reading needs up to 240 MiB for a hostile manifest, and 100 MiB for one that this program wrote. An extent (a range
 * of file bytes with its hash) takes four values. Extents grow with their file, so that the length of a file needs at
 * most MANIFEST_EXTENTS of them. Half of the values are left for extents that end early, with a row of a matrix or with
 * the elements that a rank owns. */
enum {
    MANIFEST_EXTENT_BYTES = 1 << 20,
    MANIFEST_EXTENTS = 1 << 15,
    MANIFEST_LIMIT = 16 << 20,
    MANIFEST_VALUES = 1 << 19,
    MANIFEST_FAULT_BYTES = COMM_FAULT_BYTES
};
/* Largest count that a manifest may hold: 2^53, like integers in the config. Added to the tokens of a run (less than
 * 2^62) it fits in 64 bits. */
#define MANIFEST_COUNT_LIMIT ((int64_t)1 << 53)

typedef enum {
    FILE_MODEL,            /* index of the weights file in manifest_file_name[] */
    FILE_OPTIMIZER,
    FILE_CONFIG,
    /* This file and those after it are optional. They are missing before version 1.1, and in a run without text. */
    FILE_GENERATION,
    FILE_TOKENIZER_CONFIG,
    FILE_TOKENIZER,
    MANIFEST_FILES
} ManifestFileKind;
extern const char *const manifest_file_name[MANIFEST_FILES];

typedef struct {
    uint64_t offset, bytes, hash; /* hash: XXH3 of the bytes; bytes: from 1 to manifest_extent_bytes() */
} ManifestExtent;

typedef struct {
    uint64_t        bytes;              /* bytes of the file; 0 if the checkpoint lacks it */
    ManifestExtent *extent;             /* [extents] ranges of the file, sorted by offset, without a gap; owned */
    int64_t         extents;
} ManifestFile;

typedef struct {                  /* one training shard */
    const char *name;             /* name without folder; borrowed */
    uint64_t    bytes;
    int64_t     tokens;
    uint64_t    ends;             /* Shard.ends, a hash of its first and last tokens; 0 if absent */
} ManifestData;

typedef struct {                  /* the run whose checkpoint was copied to begin this one */
    char    run_id[40];           /* run_id of the parent; "": no parent */
    int64_t step;
} RunParent;

typedef struct {
    char          run_id[40], backend[16], precision[16];
    RunParent     parent;         /* the run whose folder was copied to make this one; run_id "" if none */
    const char   *folder;         /* borrowed: absolute folder of the run; NULL if absent */
    char          grid[MESH_TEXT]; /* how the ranks that saved the checkpoint divided the model: "tensor 2 x shard 4";
                                    * "": only data parallel */
    int64_t       step, samples, tokens, seed;
    int64_t       missed;         /* steps that the Adam moments have not seen. The file has the field "updates", the
                                   * number of steps that they have seen; it lacks the field if they have seen all */
    int           ranks, threads;
    uint64_t      session;        /* 0; in a copy in memory the random number of its job (memory_copies.h) */
    int           rank;           /* in a copy in memory: the rank whose part of the state it holds */
    double        loss_scale;
    int64_t       loss_scale_steps; /* steps without overflow since the scale changed; 0 if absent */
    Guard         guard;          /* recent losses, and counts of skipped steps and rollbacks; empty if absent */
    const cJSON  *gemm;           /* borrowed: table of matrix-product algorithms; NULL: there is none */
    const cJSON  *fp8;            /* borrowed: fp8 scales and the maxima they come from; NULL: there is none */
    const cJSON  *config;         /* borrowed: the config of the run that saved, with every option */
    ManifestData *data;           /* [data_files] the training shards; owned */
    int           data_files;
    ManifestFile  file[MANIFEST_FILES];
    Json          json;           /* owned: parsed text of the manifest, from which the borrowed members are */
} Manifest;

typedef enum {
    MANIFEST_GOOD,
    MANIFEST_BROKEN,
    MANIFEST_FOREIGN, /* undamaged, but of a version that this program does not read */
    MANIFEST_UNKNOWN  /* could not be verified, because the disk cannot be read */
} ManifestStatus;
/* First words of a MANIFEST_UNKNOWN fault. Ranks send each other only the text of a fault, and recognize the kind by
 * these words. */
#define MANIFEST_UNREADABLE "cannot read "

/* Writes the reason of a failure into fault [MANIFEST_FAULT_BYTES]. Returns 0, so that a caller can return it. */
#define manifest_fault(fault, ...) fault_text(fault, MANIFEST_FAULT_BYTES, 0, __VA_ARGS__)
/* Writes the fault of a file that could not be read. error is its errno, and the text says what it means: missing, cut
 * short, too long, or not readable (EIO, EACCES, ESTALE, ...). Returns 0. */
int manifest_unread(char *fault, const char *name, int error);

uint64_t manifest_hash(const void *data, size_t bytes);
/* Returns the most bytes of an extent (a range with a hash) in a file of file_bytes: MANIFEST_EXTENT_BYTES, or the
 * power of two at which MANIFEST_EXTENTS extents are enough. */
uint64_t manifest_extent_bytes(uint64_t file_bytes);

/* Returns the text of state.json, malloc'ed, with its length in *bytes. */
char *manifest_write(const Manifest *m, size_t *bytes);

/* Returns 1 if manifest_parse can read a manifest of so many extents (ranges of file bytes) and data files. */
int manifest_has_room(int64_t extents, int64_t data_files);

/* Reads text [bytes]. With a fault, writes a phrase ("state.json is damaged: ...") to fault [MANIFEST_FAULT_BYTES], and
 * *m is then empty. */
ManifestStatus manifest_parse(const char *text, size_t bytes, Manifest *m, char *fault);
/* Reads the manifest of a copy in memory. It has a session (random number of its job), and lists only the extents
 * (ranges of file bytes) of one rank, in any order. */
ManifestStatus manifest_parse_copy(const char *text, size_t bytes, Manifest *m, char *fault);

/* Compares the files of a folder with the manifest: every size, and the hashes of the extents (ranges of file bytes).
 * Each rank of c compares its share of them; c NULL: this process compares all. Returns 1, or 0 with a difference in
 * fault. A link does not count as a file. *moved counts extents read by the calling thread; NULL: no counter. */
int manifest_verify(const Manifest *m, const char *folder, Comm *c, _Atomic int64_t *moved, char *fault);

void manifest_free(Manifest *m);

#endif
