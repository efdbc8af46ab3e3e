/* manifest.h - state.json: the description of a checkpoint, and the hashes that prove it.
 *
 * Every file of a checkpoint is covered exactly once by runs, of at most 1 MiB in files of up to 32 GiB, each with the
 * XXH3 of the bytes as they stood in the writer's memory. The manifest ends with a hash of everything before it, so any change to any byte of a
 * checkpoint is seen. The parser is a pure function over bytes and length; names of files are never taken from it: a
 * checkpoint has these and no others.
 *
 *   {"format":"train_gpt checkpoint","version":"1.1","run_id":...,"parent":{"run_id":...,"step":"40"} of a copied run,
 *    "folder":"/where/the/run/is","step":"50",...,"config":{...},
 *    "data":[{"name":"train_000.bin","bytes":"...","tokens":"..."}],
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
/* At most MANIFEST_VALUES values in MANIFEST_LIMIT bytes: reading takes up to 240 MiB for a hostile one, 100 MiB for
 * ours. A run is four values. Runs grow with their file, so that its length takes MANIFEST_RUNS of them at most; half of
 * the room is left for those that end with a row, or with a rank's piece of a bucket. */
enum {
    MANIFEST_EXTENT_BYTES = 1 << 20,
    MANIFEST_RUNS = 1 << 15,
    MANIFEST_LIMIT = 16 << 20,
    MANIFEST_VALUES = 1 << 19,
    MANIFEST_FAULT_BYTES = 1024
};
/* Counts stop here, as the config's integers do: with a run's own tokens (less than 2^62) they fit in 64 bits. */
#define MANIFEST_COUNT_LIMIT ((int64_t)1 << 53)

typedef enum {
    FILE_MODEL,            /* model.safetensors, and so on */
    FILE_OPTIMIZER,
    FILE_CONFIG,
    FILE_GENERATION,       /* from here on a checkpoint may lack files: those before version 1.1 do, and models without text */
    FILE_TOKENIZER_CONFIG,
    FILE_TOKENIZER,
    MANIFEST_FILES
} ManifestFileKind;
extern const char *const manifest_file_name[MANIFEST_FILES];

typedef struct {
    uint64_t offset, bytes, hash; /* bytes: 1 to manifest_extent_bytes of the file */
} ManifestExtent;

typedef struct {
    uint64_t     bytes;                 /* 0: the checkpoint has no such file */
    ManifestExtent *extent;             /* owned, by offset, without a gap */
    int64_t      extents;
} ManifestFile;

typedef struct {                  /* one training shard */
    const char *name;             /* without folder; borrowed */
    uint64_t    bytes;
    int64_t     tokens;
} ManifestData;

typedef struct {                  /* the run whose copied checkpoint this run went on from */
    char    run_id[40];           /* "": none */
    int64_t step;
} RunParent;

typedef struct {
    char          run_id[40], backend[16], precision[16];
    RunParent     parent;         /* absent in a file = none */
    const char   *folder;         /* borrowed: the run's folder, absolute; absent in a file = NULL */
    char          grid[MESH_TEXT]; /* of the ranks that saved it; "": data alone */
    int64_t       step, samples, tokens, seed;
    int64_t       missed;         /* steps that the moments have not seen; in a file "updates", those seen; absent = all */
    int           ranks, threads;
    double        loss_scale;
    int64_t       loss_scale_steps; /* without overflow since it last changed; absent in a file = 0 */
    Guard         guard;          /* absent in a file = empty */
    const cJSON  *gemm;           /* borrowed: the table of model/algorithms_file.h; NULL: there is none */
    const cJSON  *fp8;            /* borrowed: the history of model/fp8.h; NULL: there is none */
    const cJSON  *config;         /* borrowed: the resolved config of the run that saved */
    ManifestData *data;           /* owned */
    int           data_files;
    ManifestFile  file[MANIFEST_FILES];
    Json          json;           /* owned: manifest_parse's borrowed members point into it */
} Manifest;

typedef enum {
    MANIFEST_GOOD,
    MANIFEST_BROKEN,
    MANIFEST_FOREIGN, /* whole, but of a version this program does not read          */
    MANIFEST_UNKNOWN  /* no memory to look at it, or an unreadable disk: it may be good or not */
} ManifestStatus;
/* First words of a MANIFEST_UNKNOWN fault: ranks send each other the text alone. */
#define MANIFEST_NO_MEMORY "there is no memory to verify it"
#define MANIFEST_UNREADABLE "cannot read "

/* Writes a phrase into fault [MANIFEST_FAULT_BYTES]; returns 0, as a failed function does. */
int manifest_fault(char *fault, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Writes the fault of a file that could not be read, from errno: missing, cut short or too long, no memory, or (EIO,
 * EACCES, ESTALE, ...) unreadable. Returns 0. */
int manifest_unread(char *fault, const char *name, int error);

uint64_t manifest_hash(const void *data, size_t bytes);
/* The longest run of a file of so many bytes: MANIFEST_EXTENT_BYTES, or the power of two that makes MANIFEST_RUNS enough. */
uint64_t manifest_extent_bytes(uint64_t file_bytes);

/* The text of state.json: malloc'ed, *bytes of it; NULL when there is no memory. */
char *manifest_write(const Manifest *m, size_t *bytes);

/* Whether a manifest of that many runs and data files is one that manifest_parse reads. */
int manifest_has_room(int64_t runs, int64_t data_files);

/* Reads text [bytes]. A fault goes as a phrase ("state.json is damaged: ...") into fault [MANIFEST_FAULT_BYTES], and
 * *m is then empty. */
ManifestStatus manifest_parse(const char *text, size_t bytes, Manifest *m, char *fault);

/* Compares the files of a folder with the manifest: every size, and the hashes of runs part, part+parts, part+2*parts,
 * ... Returns 1, or 0 with a difference in fault. Links are no files of a checkpoint. progress(ctx), where it
 * is not NULL, is called by this thread with every run that it has read. */
int manifest_verify(const Manifest *m, const char *folder, int part, int parts, void (*progress)(void *ctx), void *ctx,
                    char *fault);

void manifest_free(Manifest *m);

#endif
