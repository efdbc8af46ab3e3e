/* messages.c - checks frame headers by kind of message, and writes and reads the JSON of each kind; see messages.h. */
#include "run/outer/messages.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/io.h"
#include "core/error.h"

/* --- kinds -------------------------------------------------------------------------------------------------------- */

typedef enum { HOLDS_JSON, HOLDS_NOTHING, HOLDS_VALUES, HOLDS_F32 } Holds;
typedef struct {
    const char *name;
    unsigned    from;   /* bits 1 << MessageFrom of the senders that may send such a message */
    Holds       holds;  /* kind of payload of the message: nothing, JSON or values */
    size_t      bytes;  /* bytes of the struct for this message, if its payload is JSON */
} Kind;

enum { SERVER = 1 << FROM_SERVER, ISLAND = 1 << FROM_ISLAND, FOLLOWER = 1 << FROM_FOLLOWER, LEADER = 1 << FROM_LEADER };
static const char *const SENDERS[] = {"server", "island", "follower", "leader"};

static const Kind KINDS[MESSAGE_KINDS] = {
    [MESSAGE_HELLO]      = {"HELLO", ISLAND, HOLDS_JSON, sizeof(Hello)},
    [MESSAGE_WELCOME]    = {"WELCOME", SERVER, HOLDS_JSON, sizeof(Welcome)},
    [MESSAGE_REFUSE]     = {"REFUSE", SERVER | LEADER, HOLDS_JSON, sizeof(Refuse)},
    [MESSAGE_OPEN]       = {"OPEN", SERVER, HOLDS_JSON, sizeof(Open)},
    [MESSAGE_GET]        = {"GET", ISLAND, HOLDS_NOTHING, 0},
    [MESSAGE_X]          = {"X", SERVER, HOLDS_F32, 0},
    [MESSAGE_GET_CHANGE] = {"GET_CHANGE", ISLAND, HOLDS_NOTHING, 0},
    [MESSAGE_CHANGE]     = {"CHANGE", SERVER, HOLDS_VALUES, 0},
    [MESSAGE_DELTA]      = {"DELTA", ISLAND, HOLDS_VALUES, 0},
    [MESSAGE_END]        = {"END", ISLAND, HOLDS_JSON, sizeof(End)},
    [MESSAGE_CLOSED]     = {"CLOSED", SERVER, HOLDS_JSON, sizeof(Closed)},
    [MESSAGE_PING]       = {"PING", SERVER | ISLAND | FOLLOWER | LEADER, HOLDS_NOTHING, 0},
    [MESSAGE_BYE]        = {"BYE", ISLAND, HOLDS_JSON, sizeof(Bye)},
    [MESSAGE_FOLLOW]     = {"FOLLOW", FOLLOWER, HOLDS_JSON, sizeof(Follow)},
    [MESSAGE_STATE]      = {"STATE", FOLLOWER | LEADER, HOLDS_F32, 0},
    [MESSAGE_PART_IN]    = {"PART_IN", FOLLOWER, HOLDS_JSON, sizeof(PartIn)},
    [MESSAGE_COUNT]      = {"COUNT", LEADER, HOLDS_JSON, sizeof(Count)},
    [MESSAGE_DROP]       = {"DROP", LEADER, HOLDS_JSON, sizeof(Drop)},
    [MESSAGE_STEP]       = {"STEP", LEADER, HOLDS_JSON, sizeof(Step)},
    [MESSAGE_STEPPED]    = {"STEPPED", FOLLOWER, HOLDS_JSON, sizeof(Stepped)},
    [MESSAGE_COLLECT]    = {"COLLECT", LEADER, HOLDS_NOTHING, 0},
    [MESSAGE_OVER]       = {"OVER", LEADER, HOLDS_JSON, sizeof(Over)},
};

const char *message_name(int kind) { return kind > 0 && kind < MESSAGE_KINDS ? KINDS[kind].name : "?"; }

MessageKind message_answer(int kind) {
    switch (kind) {
        case MESSAGE_GET:        return MESSAGE_X;
        case MESSAGE_GET_CHANGE: return MESSAGE_CHANGE;
        default:                 return (MessageKind)0;
    }
}

int message_check(const FrameHeader *h, MessageFrom from, char fault[MESSAGE_FAULT_BYTES]) {
    const Kind *kind = h->kind < MESSAGE_KINDS ? &KINDS[h->kind] : NULL;
    if (!kind || !kind->name || !(kind->from & 1u << from))
        return message_fault(fault, "sent a message of kind %d (%s), which no %s sends", h->kind, message_name(h->kind),
                             SENDERS[from]);
    int has_values = kind->holds == HOLDS_VALUES || kind->holds == HOLDS_F32;
    int is_type = has_values ? h->type == FRAME_F32 || (kind->holds == HOLDS_VALUES && h->type != FRAME_BYTES)
                             : h->type == FRAME_BYTES;
    if (!is_type) return message_fault(fault, "sent %s with values of type %d", kind->name, h->type);
    if (has_values && (h->elems < 1 || h->elems > MESSAGE_ELEMS))
        return message_fault(fault, "sent %s with %lld values: 1 to %d are allowed", kind->name, (long long)h->elems,
                             MESSAGE_ELEMS);
    if (has_values) return 1;
    if (kind->holds == HOLDS_JSON && (h->payload_bytes < 2 || h->payload_bytes > MESSAGE_JSON_LIMIT))
        return message_fault(fault, "sent %s of %u bytes: 2 to %d are allowed", kind->name, h->payload_bytes,
                             MESSAGE_JSON_LIMIT);
    if (kind->holds == HOLDS_NOTHING && h->payload_bytes != 0)
        return message_fault(fault, "sent %s of %u bytes: it holds none", kind->name, h->payload_bytes);
    if (message_answer(h->kind) && h->elems < 1)
        return message_fault(fault, "sent %s for %lld values", kind->name, (long long)h->elems);
    if (!message_answer(h->kind) && (h->offset != 0 || h->elems != 0))
        return message_fault(fault, "sent %s with offset %lld and %lld values: both must be 0", kind->name,
                             (long long)h->offset, (long long)h->elems);
    return 1;
}

/* --- fields: what the JSON of each kind has, in this order -------------------------------------------------------- */

typedef enum {
    FIELD_NUMBER,  /* a whole number; int or int64_t in the struct */
    FIELD_FLAG,    /* true or false; int in the struct */
    FIELD_REAL,    /* any number; double in the struct */
    FIELD_NORM,    /* at least 0, or NaN; double in the struct */
    FIELD_WEIGHT,  /* more than 0; double in the struct */
    FIELD_HEX,     /* `least` to `most` hex digits; char [] with a NUL in the struct */
    FIELD_TEXT,    /* a string, cut to `most` bytes; char [] in the struct */
    FIELD_NAME,    /* a string that stays in the JSON tree that was read; const char * in the struct */
    FIELD_SQUARES, /* a sum of squares as hex digits; Exact in the struct */
    FIELD_CONFIG,  /* an object that stays in the JSON tree that was read; cJSON * in the struct */
    FIELD_DATA     /* the list of data files in a HELLO message; HelloData * in the struct */
} FieldType;

typedef struct {
    int         kind;        /* kind of the message whose JSON has this field, or DATA_FILE */
    const char *key;
    FieldType   type;
    size_t      at, bytes;   /* offset and size of the member in the struct of the message */
    int64_t     least, most; /* bounds of a number, or of the length of a string */
    size_t      below;       /* offset of an int member; this field must be smaller than that member. 0: no such rule */
    size_t      with;        /* offset of an int64_t member; its sum with this field is at most `most`. 0: no such
                              * rule */
} Field;

enum { DATA_FILE = MESSAGE_KINDS /* Field.kind for an entry of the list of data files in a HELLO message */ };

/* ROW_AS(kind, struct, member, key, field type, C type, bounds) describes one field. The compiler checks that the
 * member has the C type. */
#define ROW_AS(K, S, m, key, field, type, ...) \
    {K, key, field, offsetof(S, m) + 0 * sizeof(_Generic(&((S *)0)->m, type *: 0)), sizeof(((S *)0)->m), __VA_ARGS__}
#define ROW(K, S, m, field, type, ...) ROW_AS(K, S, m, #m, field, type, __VA_ARGS__)
#define INT(K, S, m, ...)              ROW(K, S, m, FIELD_NUMBER, int, __VA_ARGS__)
#define NUMBER(K, S, m, ...)           ROW(K, S, m, FIELD_NUMBER, int64_t, __VA_ARGS__)
#define COUNT(K, S, m, least)          ROW(K, S, m, FIELD_NUMBER, int64_t, least, MESSAGE_COUNT_LIMIT)
#define REAL(K, S, m, field)           ROW(K, S, m, field, double, 0, 0)
#define CHARS(K, S, m, field, least) \
    {K, #m, field, offsetof(S, m), sizeof(((S *)0)->m), least, sizeof(((S *)0)->m) - 1}

/* clang-format off */
static const Field FIELDS[] = {
    INT(MESSAGE_HELLO, Hello, protocol, CHANNEL_PROTOCOL, CHANNEL_PROTOCOL),
    CHARS(MESSAGE_HELLO, Hello, island, FIELD_HEX, ISLAND_ID_BYTES - 1),
    INT(MESSAGE_HELLO, Hello, ranks, 1, MESSAGE_RANKS),
    INT(MESSAGE_HELLO, Hello, rank, 0, MESSAGE_RANKS, .below = offsetof(Hello, ranks)),
    COUNT(MESSAGE_HELLO, Hello, elems, 1),
    COUNT(MESSAGE_HELLO, Hello, samples, 0),
    ROW(MESSAGE_HELLO, Hello, config, FIELD_CONFIG, cJSON *, 0, 0),
    ROW(MESSAGE_HELLO, Hello, data, FIELD_DATA, HelloData *, 0, 0),
    ROW(DATA_FILE, HelloData, name, FIELD_NAME, const char *, 0, 0),
    COUNT(DATA_FILE, HelloData, tokens, 0),
    CHARS(DATA_FILE, HelloData, fingerprint, FIELD_HEX, 1),
    INT(MESSAGE_WELCOME, Welcome, number, 0, MESSAGE_ISLANDS),
    COUNT(MESSAGE_WELCOME, Welcome, round, 0),
    COUNT(MESSAGE_WELCOME, Welcome, elems, 1),
    INT(MESSAGE_WELCOME, Welcome, parts, 1, MESSAGE_PARTS),
    INT(MESSAGE_WELCOME, Welcome, part, 0, MESSAGE_PARTS, .below = offsetof(Welcome, parts)),
    ROW(MESSAGE_WELCOME, Welcome, changes, FIELD_FLAG, int, 0, 0),
    ROW_AS(MESSAGE_REFUSE, Refuse, code, "exit", FIELD_NUMBER, int, 1, 255),
    CHARS(MESSAGE_REFUSE, Refuse, why, FIELD_TEXT, 0),
    COUNT(MESSAGE_OPEN, Open, round, 0),
    COUNT(MESSAGE_OPEN, Open, step, 0),
    NUMBER(MESSAGE_OPEN, Open, steps, 1, MESSAGE_COUNT_LIMIT, .with = offsetof(Open, step)),
    COUNT(MESSAGE_OPEN, Open, first, 0),
    NUMBER(MESSAGE_OPEN, Open, samples, 1, MESSAGE_COUNT_LIMIT, .with = offsetof(Open, first)),
    INT(MESSAGE_OPEN, Open, islands, 1, MESSAGE_ISLANDS),
    COUNT(MESSAGE_OPEN, Open, lease, 0),
    COUNT(MESSAGE_END, End, round, 0),
    COUNT(MESSAGE_END, End, samples, 0),
    COUNT(MESSAGE_END, End, tokens, 0),
    REAL(MESSAGE_END, End, norm, FIELD_NORM),
    REAL(MESSAGE_END, End, loss, FIELD_REAL),
    COUNT(MESSAGE_END, End, lease, 0),
    COUNT(MESSAGE_CLOSED, Closed, round, 0),
    INT(MESSAGE_CLOSED, Closed, islands, 0, MESSAGE_ISLANDS),
    REAL(MESSAGE_CLOSED, Closed, norm, FIELD_NORM),
    COUNT(MESSAGE_CLOSED, Closed, staleness, 0),
    ROW_AS(MESSAGE_CLOSED, Closed, is_done, "done", FIELD_FLAG, int, 0, 0),
    COUNT(MESSAGE_BYE, Bye, samples, 0),
    INT(MESSAGE_FOLLOW, Follow, protocol, CHANNEL_PROTOCOL, CHANNEL_PROTOCOL),
    INT(MESSAGE_FOLLOW, Follow, parts, 2, MESSAGE_PARTS),
    INT(MESSAGE_FOLLOW, Follow, part, 1, MESSAGE_PARTS, .below = offsetof(Follow, parts)),
    COUNT(MESSAGE_FOLLOW, Follow, elems, 1),
    ROW(MESSAGE_FOLLOW, Follow, config, FIELD_CONFIG, cJSON *, 0, 0),
    COUNT(MESSAGE_PART_IN, PartIn, lease, 0),
    ROW(MESSAGE_PART_IN, PartIn, squares, FIELD_SQUARES, Exact, 0, 0),
    COUNT(MESSAGE_COUNT, Count, lease, 0),
    REAL(MESSAGE_COUNT, Count, weight, FIELD_WEIGHT),
    COUNT(MESSAGE_DROP, Drop, lease, 0),
    INT(MESSAGE_STEP, Step, rule, 0, STEP_RULES - 1),
    REAL(MESSAGE_STEP, Step, learning_rate, FIELD_REAL),
    REAL(MESSAGE_STEP, Step, momentum, FIELD_REAL),
    REAL(MESSAGE_STEP, Step, scale, FIELD_REAL),
    REAL(MESSAGE_STEP, Step, beta2, FIELD_REAL),
    REAL(MESSAGE_STEP, Step, eps, FIELD_REAL),
    REAL(MESSAGE_STEP, Step, weight_decay, FIELD_REAL),
    COUNT(MESSAGE_STEP, Step, update, 0),
    ROW(MESSAGE_STEPPED, Stepped, squares, FIELD_SQUARES, Exact, 0, 0),
    ROW_AS(MESSAGE_OVER, Over, code, "exit", FIELD_NUMBER, int, 0, 255),
};
/* clang-format on */
enum { FIELDS_COUNT = sizeof FIELDS / sizeof *FIELDS };

/* Returns the JSON tree that a HELLO or FOLLOW keeps, or NULL for other kinds. */
static Json *json_of(MessageKind kind, void *m) {
    return kind == MESSAGE_HELLO ? &((Hello *)m)->json : kind == MESSAGE_FOLLOW ? &((Follow *)m)->json : NULL;
}

HelloData *hello_data(const Dataset *train) {
    HelloData *data = xcalloc((size_t)train->shards + 1, sizeof *data, "a list of data files");
    uint64_t   seen = dataset_fingerprint(train);
    for (int i = 0; i < train->shards; i++) {
        data[i].name = shard_name(&train->shard[i]);
        data[i].tokens = train->shard[i].header.tokens;
        snprintf(data[i].fingerprint, sizeof data[i].fingerprint, "%016" PRIx64, seen);
    }
    return data;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Writes a sum of squares as hex digits, 8 for each of its words. Moves carries into the next word first, so that each
 * word has 32 bits. */
enum { WORD_DIGITS = 8, SQUARES_DIGITS = EXACT_WORDS * WORD_DIGITS };
static void write_squares(FILE *out, const Exact *sum) {
    int64_t carry = 0;
    fputc('"', out);
    for (int i = 0; i < EXACT_WORDS; i++) {
        int64_t word = sum->word[i] + (i < EXACT_DIGITS ? carry : 0);
        carry = word >> 32;
        fprintf(out, "%08x", i < EXACT_DIGITS ? (unsigned)(word & 0xffffffff) : word != 0);
    }
    fputc('"', out);
}

static int64_t number_at(const void *m, size_t at, size_t bytes) {
    return bytes == sizeof(int) ? *(const int *)((const char *)m + at) : *(const int64_t *)((const char *)m + at);
}

static void write_fields(FILE *out, int kind, const void *m);

static void write_value(FILE *out, const Field *f, const void *m) {
    const void  *at = (const char *)m + f->at;
    const Hello *hello = (const Hello *)m;
    char         text[SHOWN_BYTES], *config;
    switch (f->type) {
        case FIELD_NUMBER:  fprintf(out, "%" PRId64, number_at(m, f->at, f->bytes)); break;
        case FIELD_FLAG:    fputs(*(const int *)at ? "true" : "false", out); break;
        case FIELD_REAL:
        case FIELD_NORM:
        case FIELD_WEIGHT:  fputs(isfinite(*(const double *)at) ? number_text(*(const double *)at, text) : "null", out);
                            break;
        case FIELD_HEX:     fprintf(out, "\"%s\"", (const char *)at); break;
        case FIELD_TEXT:    json_print_string(out, at); break;
        case FIELD_NAME:    json_print_string(out, *(const char *const *)at); break;
        case FIELD_SQUARES: write_squares(out, at); break;
        case FIELD_CONFIG:
            config = cJSON_PrintUnformatted(*(cJSON *const *)at);
            fputs(config, out);
            free(config);
            break;
        case FIELD_DATA:
            fputc('[', out);
            for (int i = 0; i < hello->data_files; i++) {
                if (i) fputc(',', out);
                write_fields(out, DATA_FILE, &hello->data[i]);
            }
            fputc(']', out);
            break;
    }
}

static void write_fields(FILE *out, int kind, const void *m) {
    char before = '{';
    for (const Field *f = FIELDS; f < FIELDS + FIELDS_COUNT; f++) {
        if (f->kind != kind) continue;
        fprintf(out, "%c\"%s\":", before, f->key);
        write_value(out, f, m);
        before = ',';
    }
    fputc('}', out);
}

char *message_write(MessageKind kind, const void *m, size_t *bytes) {
    char *text = NULL;
    FILE *out = memory_file_open(&text, bytes);
    write_fields(out, kind, m);
    fclose(out);
    if (*bytes <= MESSAGE_JSON_LIMIT) return text;
    free(text);
    return NULL;
}

void message_send(Channel *c, MessageKind kind, int64_t round, const void *m) {
    size_t bytes = 0;
    char  *text = m ? message_write(kind, m, &bytes) : NULL;
    if (m && !text)
        fail(EXIT_CONFIG,
             "outer.server: the config%s has %zu bytes, too many to send (at most %d): name the files of data.train by "
             "a pattern, or join the data into fewer files",
             kind == MESSAGE_HELLO ? " with the names of its data files" : "", bytes, MESSAGE_JSON_LIMIT);
    channel_queue(c, (FrameHeader){.kind = (uint8_t)kind, .type = FRAME_BYTES, .round = round,
                                   .payload_bytes = (uint32_t)bytes}, text);
    free(text);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* A message that is being read. After the first fault, later reads do nothing. */
typedef struct {
    int   kind;
    char *fault;   /* [MESSAGE_FAULT_BYTES] the first fault; borrowed */
    int   is_good; /* 1 until the first fault, then 0 */
} Reading;

static void reading_refuse(Reading *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void reading_refuse(Reading *r, const char *fmt, ...) {
    const char *name = KINDS[r->kind].name;
    char        text[MESSAGE_FAULT_BYTES - 128];
    va_list     args;
    if (!r->is_good) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(r->fault, MESSAGE_FAULT_BYTES, "sent the message %s %s" OTHER_VERSION, name, text);
    r->is_good = 0;
}

static void read_number(Reading *r, const Field *f, const cJSON *value, void *m) {
    char   shown[SHOWN_BYTES];
    double n = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    int64_t most = f->below ? number_at(m, f->below, sizeof(int)) - 1
                   : f->with ? f->most - number_at(m, f->with, sizeof(int64_t)) : f->most;
    if (!(n >= (double)f->least && n <= (double)most && n == floor(n)))
        reading_refuse(r, "whose %s is %s: it must be from %lld to %lld", f->key, value_text(value, shown),
                       (long long)f->least, (long long)most);
    else if (f->bytes == sizeof(int)) *(int *)((char *)m + f->at) = (int)n;
    else *(int64_t *)((char *)m + f->at) = (int64_t)n;
}

static void read_real(Reading *r, const Field *f, const cJSON *value, double *out) {
    char shown[SHOWN_BYTES];
    *out = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    if (!cJSON_IsNumber(value) && !cJSON_IsNull(value))
        reading_refuse(r, "whose %s is %s: it must be a number or null", f->key, value_text(value, shown));
    else if (f->type == FIELD_NORM && *out < 0)
        reading_refuse(r, "whose %s is %g: it must be at least 0", f->key, *out);
    else if (f->type == FIELD_WEIGHT && !(*out > 0))
        reading_refuse(r, "whose %s is %g: it must be over 0", f->key, *out);
}

/* Copies a JSON string of `least` to `most` hex digits to out, which has space for `most` digits and a NUL. Any other
 * value is a fault of the message. */
static void read_hex(Reading *r, const char *key, const cJSON *value, size_t least, size_t most, char *out) {
    char        shown[SHOWN_BYTES];
    const char *word = cJSON_IsString(value) ? value->valuestring : "";
    size_t      length = strlen(word);
    if (length < least || length > most || strspn(word, "0123456789abcdef") != length)
        reading_refuse(r, "whose %s is %s: it must be %zu to %zu hex digits", key, value_text(value, shown), least,
                       most);
    else memcpy(out, word, length + 1);
}

static void read_squares(Reading *r, const Field *f, const cJSON *value, Exact *sum) {
    char hex[SQUARES_DIGITS + 1];
    read_hex(r, f->key, value, SQUARES_DIGITS, SQUARES_DIGITS, hex);
    for (int i = 0; r->is_good && i < EXACT_WORDS; i++) {
        char digits[WORD_DIGITS + 1] = {0};
        memcpy(digits, hex + i * WORD_DIGITS, WORD_DIGITS);
        sum->word[i] = (int64_t)strtoull(digits, NULL, 16);
    }
}

/* Copies as much of the text as fits into `most` bytes, without cutting a UTF-8 character. */
static void copy_cut(char *out, size_t most, const char *text) {
    size_t length = strnlen(text, most);
    while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) length--;
    memcpy(out, text, length);
    out[length] = 0;
}

static void read_fields(Reading *r, int kind, const cJSON *object, void *m);

static void read_value(Reading *r, const Field *f, const cJSON *value, void *m) {
    void        *at = (char *)m + f->at;
    Hello       *hello = (Hello *)m;
    const cJSON *file;
    switch (f->type) {
        case FIELD_NUMBER: read_number(r, f, value, m); break;
        case FIELD_FLAG:
            if (!cJSON_IsBool(value)) reading_refuse(r, "whose %s is neither true nor false", f->key);
            *(int *)at = cJSON_IsTrue(value);
            break;
        case FIELD_REAL:
        case FIELD_NORM:
        case FIELD_WEIGHT: read_real(r, f, value, at); break;
        case FIELD_HEX:    read_hex(r, f->key, value, (size_t)f->least, (size_t)f->most, at); break;
        case FIELD_TEXT:
        case FIELD_NAME:
            if (!cJSON_IsString(value)) reading_refuse(r, "whose %s is not a string", f->key);
            else if (f->type == FIELD_TEXT) copy_cut(at, (size_t)f->most, value->valuestring);
            else *(const char **)at = value->valuestring;
            break;
        case FIELD_SQUARES: read_squares(r, f, value, at); break;
        case FIELD_CONFIG:
            if (!cJSON_IsObject(value)) reading_refuse(r, "whose %s is not a JSON object", f->key);
            *(const cJSON **)at = value;
            break;
        case FIELD_DATA:
            if (!cJSON_IsArray(value)) reading_refuse(r, "whose %s is not a list", f->key);
            hello->data = xcalloc((size_t)cJSON_GetArraySize(value) + 1, sizeof *hello->data, "files of a HELLO");
            cJSON_ArrayForEach(file, value) read_fields(r, DATA_FILE, file, &hello->data[hello->data_files++]);
            break;
    }
}

static void read_fields(Reading *r, int kind, const cJSON *object, void *m) {
    for (const Field *f = FIELDS; f < FIELDS + FIELDS_COUNT && r->is_good; f++) {
        if (f->kind != kind) continue;
        const cJSON *value = json_member(object, f->key);
        if (value) read_value(r, f, value, m);
        else reading_refuse(r, "without \"%s\"", f->key);
    }
}

int message_read(MessageKind kind, const char *text, size_t bytes, void *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json      json = {0};
    Reading   r = {kind, fault, 1};
    JsonFault why;
    memset(m, 0, KINDS[kind].bytes);
    fault[0] = 0;
    if (!json_parse(text, bytes, MESSAGE_JSON_LIMIT, &json, &why)) {
        reading_refuse(&r, "that is not valid JSON: %s, at byte %d of line %d", why.text, why.at.column, why.at.line);
        return 0;
    }
    if (cJSON_IsObject(json.root)) read_fields(&r, kind, json.root, m);
    else reading_refuse(&r, "that is not a JSON object");
    if (json_of(kind, m)) *json_of(kind, m) = json;
    else json_free(&json);
    if (!r.is_good) message_free(kind, m);
    return r.is_good;
}

void message_free(MessageKind kind, void *m) {
    Json *json = json_of(kind, m);
    if (!json) return;
    if (kind == MESSAGE_HELLO) free(((Hello *)m)->data);
    json_free(json);
    memset(m, 0, KINDS[kind].bytes);
}
