/* shard.c - see shard.h: reading. Writing is in shard_writer.c. */
#include "data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/shell_word.h"
#include "data/text_file.h"

/* Magic numbers of the llm.c family; token_bytes 0 = holds no tokens to train on. */
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

#define OLD_INDEX "TNTIDX\0\0" /* first bytes of an index of fairseq and of the first Megatron */
#define MEGATRON_MAGIC "MMIDIDX\0" /* and the string's own NUL: nine bytes */

/* Other formats that would pass as headerless tokens: no such file of tokens starts with six or more given bytes. */
static const struct { const char *start; size_t bytes; const char *what; } foreign_files[] = {
    {"BIN.TOK\n", 8, "llmq token file; convert it to llm.c shards"},
    {MEGATRON_MAGIC, 8, "Megatron index; name the .bin beside it, and the index is read with it"},
    {OLD_INDEX, 8, "index of an older Megatron (TNTIDX); make it again with its present tools"},
    {"\x93NUMPY", 6, "NumPy .npy file; write the array with tofile() as uint16, or as uint32 for a vocabulary over 65,536"},
};

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character that starts here (RFC 3629), 0: none. A character that is cut off at the end counts. */
static size_t utf8_character(const uint8_t *data, size_t bytes) {
    uint8_t c = data[0];
    size_t  length = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : (c & 0xF0) == 0xE0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
    uint8_t least = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, most = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < length && i < bytes; i++, least = 0x80, most = 0xBF)
        if (data[i] < least || data[i] > most) return 0;
    return length;
}

/* Without control characters, but for white space, backspace and escape. */
static int is_text(const uint8_t *data, size_t bytes) {
    for (size_t at = 0, length; at < bytes; at += length) {
        uint8_t c = data[at];
        length = utf8_character(data + at, bytes - at);
        if (length == 0 || c == 0x7F || (c < 0x20 && !(c >= 8 && c <= 13) && c != 27)) return 0;
    }
    return bytes > 0;
}

static int is_gzip(const uint8_t *data, size_t bytes) { /* RFC 1952: magic, deflate, flags, level, system */
    return bytes >= 10 && memcmp(data, "\x1f\x8b\x08", 3) == 0 && data[3] < 32 &&
           (data[8] == 0 || data[8] == 2 || data[8] == 4) && (data[9] <= 13 || data[9] == 255);
}

const char *shard_text_kind(const uint8_t *data, size_t bytes) {
    if (bytes > SHARD_START_BYTES) bytes = SHARD_START_BYTES;
    if (is_gzip(data, bytes)) return "gzip";
    if (bytes >= 4 && memcmp(data, "\x28\xb5\x2f\xfd", 4) == 0) return "zstd";
    if (bytes >= 6 && memcmp(data, "\xfd" "7zXZ", 6) == 0) return "xz";
    if (bytes >= 5 && memcmp(data, "PAR1\x15", 5) == 0) return "parquet"; /* 0x15: a page's header begins with its type */
    if (!is_text(data, bytes)) return NULL;
    size_t first = 0;
    while (first < bytes && strchr(" \t\r\n", data[first])) first++;
    return first < bytes && strchr("{[", data[first]) ? "JSON" : "UTF-8 text";
}

/* --- headers ------------------------------------------------------------------------------------------------------ */

int shard_is_llmc(const uint8_t *data, size_t bytes) {
    int32_t magic = 0;
    if (bytes >= sizeof magic) memcpy(&magic, data, sizeof magic);
    for (size_t i = 0; i < sizeof llmc_files / sizeof *llmc_files; i++)
        if (llmc_files[i].magic == magic) return 1;
    return 0;
}

/* Returns the type of numbers that tokens without a header look like, if it is not uint16: "uint32", "64-bit" or
 * "float32"; else NULL. Every second half of a uint32 is 0 or small, three of four quarters of a 64-bit number are 0.
 * Whole numbers as float32 have an exponent from 1 to 2^20, and no bits after the point. None of it is true of uint16
 * tokens of a text. */
static const char *wide_type(const uint8_t *data, size_t bytes) {
    enum { LEAST = 8 };
    uint16_t low = 0, high = 0, odd = 0;
    size_t   count = (bytes < SHARD_START_BYTES ? bytes : SHARD_START_BYTES) / 4, wholes = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t half[2];
        float    value;
        memcpy(half, data + 4 * i, sizeof half), memcpy(&value, data + 4 * i, sizeof value);
        if (half[0] > low) low = half[0];
        if (half[1] > high) high = half[1];
        if (i % 2) odd |= half[0] | half[1];
        wholes += value == 0 || (value >= 1 && value < 1 << 20 && value == (float)(int32_t)value);
    }
    if (count < LEAST) return NULL;
    if (odd == 0 && high < 16 && low > 0 && count >= 2 * LEAST) return "64-bit";
    if (high == 0 ? low > 0 : high < 16 && low > 255) return "uint32";
    return wholes == count && high > 0 ? "float32" : NULL;
}

/* Returns 1 if all uint16 numbers are below `most`. */
static int are_narrow(const uint8_t *data, size_t bytes, int64_t most) {
    for (size_t at = 0; at + 1 < bytes && at < SHARD_START_BYTES; at += 2)
        if ((data[at] | data[at + 1] << 8) >= most) return 0;
    return 1;
}

int shard_parse_header(const uint8_t *data, size_t bytes, uint64_t file_bytes, int64_t vocab_size, ShardHeader *header,
                       char fault[SHARD_FAULT_CHARS]) {
#define FAULT(...) return snprintf(fault, SHARD_FAULT_CHARS, __VA_ARGS__), -1
    int32_t start[3] = {0, 0, 0}; /* magic, version, tokens */
    memcpy(start, data, bytes < sizeof start ? bytes : sizeof start);
    if (file_bytes == 0) FAULT("is empty; copy or make it again");

    for (size_t i = 0; i < sizeof llmc_files / sizeof *llmc_files; i++) {
        if (bytes < 4 || llmc_files[i].magic != start[0]) continue;
        if (llmc_files[i].token_bytes == 0) FAULT("is an %s (magic %d), not tokens to train on", llmc_files[i].what, start[0]);
        if (file_bytes < SHARD_HEADER_BYTES || bytes < sizeof start)
            FAULT("is truncated: it holds %llu bytes, the header of an llm.c shard alone takes %d; copy or make it again",
                  (unsigned long long)file_bytes, SHARD_HEADER_BYTES);
        if (start[1] != llmc_files[i].version)
            FAULT("is an llm.c shard of magic %d, version %d; only version %d of it is known", start[0], start[1],
                  llmc_files[i].version);
        if (start[2] <= 0)
            FAULT("says in its header that it holds %d tokens: damaged, or its writer was interrupted; make it again", start[2]);
        uint64_t due = SHARD_HEADER_BYTES + (uint64_t)llmc_files[i].token_bytes * (uint64_t)start[2];
        if (file_bytes < due)
            FAULT("is truncated: it holds %llu bytes, its %d tokens take %llu; copy or make it again",
                  (unsigned long long)file_bytes, start[2], (unsigned long long)due);
        if (file_bytes > due)
            FAULT("holds %llu bytes after its last token: its %d tokens take %llu bytes, there are %llu; copy or make it again",
                  (unsigned long long)(file_bytes - due), start[2], (unsigned long long)due, (unsigned long long)file_bytes);
        *header = (ShardHeader){llmc_files[i].token_bytes, SHARD_HEADER_BYTES, start[2], 0};
        return 0;
    }
    for (size_t i = 0; i < sizeof foreign_files / sizeof *foreign_files; i++)
        if (bytes >= foreign_files[i].bytes && memcmp(data, foreign_files[i].start, foreign_files[i].bytes) == 0)
            FAULT("is %s %s", strchr("aeiou", foreign_files[i].what[0]) ? "an" : "a", foreign_files[i].what);
    const char *text = shard_text_kind(data, bytes);
    if (text) FAULT("is %s, not tokens: text becomes shards by ./train_gpt tokenize", text);
    const char *other = text_other_kind(data, bytes);
    if (other) FAULT("has no header of tokens: it is %s", other);
    TextEncoding encoding = vocab_size ? text_wide_encoding(data, bytes) : ENCODING_FOUND;
    int          may_be_bytes = encoding == ENCODING_UTF16LE && are_narrow(data, bytes, 256);
    if (encoding != ENCODING_FOUND && !(may_be_bytes && vocab_size <= 256))
        FAULT("has no header and looks like text in %s: ./train_gpt tokenize FILE encoding=%s out=FOLDER makes shards of it%s",
              TEXT_ENCODINGS[encoding - 1], TEXT_ENCODINGS[encoding - 1],
              may_be_bytes ? "; if its tokens are bytes as uint16, give model.vocab_size 256" : "");
    const char *wide = wide_type(data, bytes);
    int         is_wide = wide && strcmp(wide, "uint32") == 0;
    int         token_bytes = (vocab_size ? vocab_size > UINT16_MAX + 1 : is_wide) ? 4 : 2;
    if (wide && !is_wide)
        FAULT("has no header and holds %s numbers, not tokens of uint16 or uint32: write it as uint16, or as uint32 for a "
              "vocabulary over 65,536", wide);
    if (is_wide && file_bytes % 4)
        FAULT("has no header and holds uint32 numbers (every second half is 0 or small), but its %llu bytes are not a multiple "
              "of 4: it was cut, or bytes were added; copy or make it again", (unsigned long long)file_bytes);
    if (token_bytes == 2 && is_wide)
        FAULT("has no header and is read as uint16, as model.vocab_size = %lld is at most 65,536, but holds uint32 numbers: every second "
              "half is 0 or small; write it as uint16, or set model.vocab_size to the size of its tokenizer",
              (long long)vocab_size);
    if (file_bytes % 2 && token_bytes == 2)
        FAULT("is not a token file: without the magic of an llm.c shard it is read as uint16, but it holds an odd number of bytes (%llu)",
              (unsigned long long)file_bytes);
    if (file_bytes % 4 && token_bytes == 4)
        FAULT("is not a token file: without the magic of an llm.c shard it is read as uint32, as model.vocab_size = %lld is over 65,536, "
              "but its %llu bytes are not a multiple of 4; write it as uint32", (long long)vocab_size,
              (unsigned long long)file_bytes);
    if (file_bytes < 4) FAULT("is truncated: it holds %llu bytes", (unsigned long long)file_bytes);
    *header = (ShardHeader){token_bytes, 0, (int64_t)(file_bytes / (uint64_t)token_bytes), 0};
    return 0;
}

/* --- Megatron's index --------------------------------------------------------------------------------------------- */

static const struct { int token_bytes; const char *name; } megatron_types[] = {
    {0, "type 0"}, {0, "uint8"}, {0, "int8"}, {2, "int16"}, {4, "int32"}, {0, "int64"}, {0, "float64"}, {0, "float32"}, {2, "uint16"},
};
enum { MEGATRON_TYPES = sizeof megatron_types / sizeof *megatron_types };

int shard_is_index(const uint8_t *data, size_t bytes) {
    return bytes >= sizeof MEGATRON_MAGIC && memcmp(data, MEGATRON_MAGIC, sizeof MEGATRON_MAGIC) == 0;
}

int shard_parse_index(const uint8_t *data, size_t bytes, uint64_t index_bytes, uint64_t file_bytes, ShardHeader *header,
                      char fault[SHARD_FAULT_CHARS]) {
    uint64_t version, sequences, bounds;
    if (!shard_is_index(data, bytes)) FAULT("has no Megatron index");
    if (bytes < SHARD_INDEX_BYTES) FAULT("has an index that is truncated: it holds %llu bytes", (unsigned long long)index_bytes);
    memcpy(&version, data + 9, 8), memcpy(&sequences, data + 18, 8), memcpy(&bounds, data + 26, 8);
    unsigned type = data[17];
    if (version != 1) FAULT("has an index of version %llu; only version 1 is known", (unsigned long long)version);
    if (type >= MEGATRON_TYPES || megatron_types[type].token_bytes == 0)
        FAULT("holds tokens as %s, says its index; those of uint16, int16 and int32 are read",
              type < MEGATRON_TYPES ? megatron_types[type].name : "an unknown type");
    if (sequences == 0) FAULT("holds no sequence, says its index");
    if (sequences > index_bytes / 12 || bounds > index_bytes / 8 || SHARD_INDEX_BYTES + 12 * sequences + 8 * bounds != index_bytes)
        FAULT("has an index of %llu bytes, which %llu sequences and %llu borders of documents do not take; copy or make both again",
              (unsigned long long)index_bytes, (unsigned long long)sequences, (unsigned long long)bounds);
    int width = megatron_types[type].token_bytes;
    if (file_bytes % (uint64_t)width || file_bytes == 0)
        FAULT("holds %llu bytes, no whole number of its index's %s", (unsigned long long)file_bytes,
              megatron_types[type].name);
    *header = (ShardHeader){width, 0, (int64_t)(file_bytes / (uint64_t)width), (int64_t)sequences};
    return 0;
}
#undef FAULT

/* --- bytes that are gone ------------------------------------------------------------------------------------------ */

/* The shard that this thread reads. A mapped file that is cut short, or whose disk fails, raises SIGBUS in its
 * reader. */
static _Thread_local const Shard *reading;

/* The fault strikes in a reading loop, which holds no lock and leaves nothing half done: fail() ends the job as for
 * an error returned to that loop. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    const Shard   *shard = reading;
    const uint8_t *at = (const uint8_t *)info->si_addr;
    (void)context;
    if (!shard || at < shard->map || at >= shard->map + shard->file_bytes) { /* none of ours: as without this handler */
        struct sigaction as_before = {.sa_handler = SIG_DFL};
        set_action(signal_number, &as_before);
        return;
    }
    fail(EXIT_IO,
         "%s cannot be read any more at byte %lld of %llu: the file was cut short while it was in use, or its disk fails; bring it back, and the "
         "same command goes on from the newest checkpoint",
         shard->path, (long long)(at - shard->map), (unsigned long long)shard->file_bytes);
}

static void watch_bus_errors(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    set_action(SIGBUS, &action);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

#define SAY(exit_code, ...) return snprintf(sentence, SHARD_SENTENCE_CHARS, __VA_ARGS__), exit_code

/* Reads the index beside NAME.bin; *found is 1 if there is one. Its last sequence must end where the file ends. If not,
 * one of the two was cut or belongs to another file. Returns as shard_look. */
static int read_index(const char *path, uint64_t file_bytes, ShardHeader *header, int *found, char *sentence) {
    char     name[4096], fault[SHARD_FAULT_CHARS];
    uint8_t  start[SHARD_INDEX_BYTES];
    size_t   stem = strlen(path) < 4 ? 0 : strlen(path) - 4;
    struct stat st;
    *found = 0;
    if (stem >= sizeof name - 4 || strcmp(path + stem, ".bin") != 0) return 0;
    snprintf(name, sizeof name, "%.*s.idx", (int)stem, path);
    if (stat(name, &st) == 0 && !S_ISREG(st.st_mode)) SAY(EXIT_DATA, "%s %s", name, io_error_text(io_kind(st.st_mode)));
    int64_t bytes = io_file_bytes(name);
    if (bytes < (int64_t)sizeof MEGATRON_MAGIC) return 0;
    size_t start_bytes = bytes < (int64_t)sizeof start ? (size_t)bytes : sizeof start;
    int    fd = io_open(name, IO_READ), rc = fd < 0 ? fd : io_pread(fd, start, start_bytes, 0);
    int    is_index = rc >= 0 && shard_is_index(start, start_bytes), is_good = 0;
    int32_t  length = 0;
    uint64_t offset = 0;
    if (is_index) is_good = shard_parse_index(start, start_bytes, (uint64_t)bytes, file_bytes, header, fault) == 0;
    uint64_t last = (uint64_t)header->sequences - 1;
    if (is_good) rc = io_pread(fd, &length, sizeof length, SHARD_INDEX_BYTES + 4 * last);
    if (is_good && rc == 0) rc = io_pread(fd, &offset, sizeof offset, SHARD_INDEX_BYTES + 4 * (last + 1) + 8 * last);
    if (fd >= 0) io_close(fd);
    if (rc < 0) SAY(EXIT_IO, "cannot read %s: %s", name, io_error_text(rc));
    if (rc == 0 && start_bytes >= 8 && memcmp(start, OLD_INDEX, 8) == 0)
        SAY(EXIT_DATA,
            "%s has an index of an older Megatron (%s, TNTIDX), which is not read: make both again with its present tools, or, if "
            "the tokens are uint16, move the index away",
            path, name);
    if (!is_index) return 0;
    if (!is_good) SAY(EXIT_DATA, "%s %s (%s)", path, fault, name);
    if (length < 0 || offset > file_bytes || file_bytes - offset != (uint64_t)length * (uint64_t)header->token_bytes)
        SAY(EXIT_DATA,
            "%s holds %llu bytes and does not end where the last sequence of its index does (%s): one of the two is "
            "truncated, or they do not belong together; copy or make both again",
            path, (unsigned long long)file_bytes, name);
    *found = 1;
    return 0;
}

/* Returns the packing of a file if what is in it is no text, so that tokens may be in it; else PACKED_NOT. */
static Packing packing_of_tokens(const char *path) {
    TextFile   *file;
    const char *what;
    char        why[TEXT_FILE_FAULT_CHARS];
    if (text_file_open(&file, path, IO_READ, ENCODING_UTF8, why)) return PACKED_NOT; /* damaged: tokenize tells where */
    TextKind kind = text_file_kind(file, &what);
    Packing  packing = kind == TEXT_SHARD || kind == TEXT_BINARY ? text_file_packing(file) : PACKED_NOT;
    text_file_close(file);
    return packing;
}

/* Writes the message for a text file, with the command that turns it into tokens, or for a packed file of tokens. */
static int refuse_text(const char *path, const char *kind, char *sentence) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char        out[4200];
    Packing     packing = packing_of_tokens(path);
    if (packing != PACKED_NOT) {
        snprintf(sentence, SHARD_SENTENCE_CHARS, "%s is packed by %s and holds no text: $ %s < PACKED > NEW.bin unpacks it; if that is a file of tokens, name NEW.bin",
                 path, unpack_name(packing), unpack_command(packing));
        return shell_name_file(sentence + strlen(path), SHARD_SENTENCE_CHARS - strlen(path), path), EXIT_DATA;
    }
    snprintf(out, sizeof out, "out=datasets/%.*s", (int)strcspn(name, "."), name);
    SAY(EXIT_DATA, "%s is %s, not tokens: ./train_gpt tokenize %s %s makes shards of it; name those in data.train", path,
        kind, shell_word(path).text, shell_word(out).text);
}

int shard_look(const char *path, int64_t vocab_size, ShardHeader *header, char sentence[SHARD_SENTENCE_CHARS]) {
    struct stat st;
    uint8_t     start[SHARD_START_BYTES];
    char        fault[SHARD_FAULT_CHARS];
    int         has_index;
    *header = (ShardHeader){0, 0, 0, 0};
    if (stat(path, &st) < 0 && errno == ENOENT) SAY(EXIT_DATA, "%s does not exist", path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        SAY(EXIT_DATA, "%s is a folder, not a token file; name the files in it, for example \"%s/train_*.bin\"", path, path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
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

Shard shard_open(const char *path, int64_t vocab_size) {
    struct stat st;
    char        sentence[SHARD_SENTENCE_CHARS];
    Shard       shard = {NULL, NULL, 0, {0, 0, 0, 0}};
    int         exit_code = shard_look(path, vocab_size, &shard.header, sentence);
    if (exit_code) fail(exit_code, "%s", sentence);
    int fd = io_open(path, IO_READ);
    if (fd < 0) fail(EXIT_IO, "cannot read %s: %s", path, io_error_text(fd));
    if (fstat(fd, &st) < 0) fail(EXIT_IO, "cannot read %s: %s", path, io_error_text(errno));
    shard.file_bytes = (uint64_t)st.st_size;
    if (shard.file_bytes < shard.header.data_offset + (uint64_t)shard.header.token_bytes * (uint64_t)shard.header.tokens)
        fail(EXIT_IO, "%s was cut short while it was opened; copy or make it again", path);
    void *map = mmap(NULL, (size_t)shard.file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) fail(EXIT_IO, "cannot map %s into memory: %s", path, io_error_text(errno));
    io_close(fd);
    shard.map = map;
    shard.path = strdup(path);
    if (!shard.path) fail(EXIT_MEMORY, "no memory for the name of %s", path);
    watch_bus_errors();
    return shard;
}

void shard_close(Shard *shard) {
    munmap((void *)shard->map, (size_t)shard->file_bytes);
    free(shard->path);
    *shard = (Shard){NULL, NULL, 0, {0, 0, 0, 0}};
}

const char *shard_name(const Shard *shard) {
    const char *slash = strrchr(shard->path, '/');
    return slash ? slash + 1 : shard->path;
}

uint32_t shard_token(const Shard *shard, int64_t i) {
    const uint8_t *tokens = shard->map + shard->header.data_offset;
    return shard->header.token_bytes == 2 ? ((const uint16_t *)tokens)[i] : ((const uint32_t *)tokens)[i];
}

/* Unmaps the pages of tokens [first, first + count); the next look maps them again from the page cache. */
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

/* Largest of count tokens, on plain loops that vectorise. */
static uint16_t max_u16(const uint16_t *t, int64_t count) {
    uint16_t max = 0;
    for (int64_t i = 0; i < count; i++) max = t[i] > max ? t[i] : max;
    return max;
}
static uint32_t max_u32(const uint32_t *t, int64_t count) {
    uint32_t max = 0;
    for (int64_t i = 0; i < count; i++) max = t[i] > max ? t[i] : max;
    return max;
}

int64_t shard_find_foreign(const Shard *shard, int64_t vocab_size) {
    enum { BLOCK = 1 << 20 }; /* tokens; small enough that mapped pages do not add up */
    const uint8_t *tokens = shard->map + shard->header.data_offset;
    const int      wide = shard->header.token_bytes == 4;
    const int64_t  n = shard->header.tokens;
    int64_t        bad_block = INT64_MAX;
    if (vocab_size > (wide ? (int64_t)UINT32_MAX : (int64_t)UINT16_MAX)) return -1;
    #pragma omp parallel for schedule(static) reduction(min : bad_block)
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t count = n - at < BLOCK ? n - at : BLOCK;
        reading = shard;
        int64_t max = wide ? max_u32((const uint32_t *)tokens + at, count) : max_u16((const uint16_t *)tokens + at, count);
        reading = NULL;
        if (max >= vocab_size && at < bad_block) bad_block = at;
        drop_pages(shard, at, count);
    }
    if (bad_block == INT64_MAX) return -1;
    while (shard_token(shard, bad_block) < vocab_size) bad_block++;
    return bad_block;
}
