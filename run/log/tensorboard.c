/* tensorboard.c - writes the event file for TensorBoard: see tensorboard.h. Records are TFRecords: length, checksum of
 * the length, data, checksum of the data. The data is an Event in the wire format of protocol buffers. Only these
 * fields are written:
 *
 *   Event       1 double wall_time, 2 int64 step, 3 string file_version, 5 Summary, 7 SessionLog
 *   Summary     1 Value: 1 string tag, 2 float simple_value
 *   SessionLog  1 enum status: 1 = START, readers drop the points from the step of the Event on
 */
#include "run/log/tensorboard.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/format.h"
#include "core/io.h"
#include "core/thread.h"

#define NAME "events.out.tfevents."

enum { BUFFER_BYTES = 1 << 16, EVENT_BYTES = 2048, TAG_BYTES = 300 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
static const double FLUSH_MS = 1000.0;

struct TensorBoard {
    char     path[4400];
    int      fd;
    uint64_t written;              /* bytes of the file up to its last complete TensorBoard record */
    uint8_t  waiting[BUFFER_BYTES];
    size_t   waiting_bytes;
    double   flushed_ms;           /* time of the last write, on clock_ms() */
    int      has_warned;
};

/* --- protocol buffers --------------------------------------------------------------------------------------------- */

typedef struct { uint8_t data[EVENT_BYTES]; size_t bytes; } Message;

static void put_bytes(Message *m, const void *data, size_t bytes) {
    CHECK(m->bytes + bytes <= sizeof m->data, "an event of more than %zu bytes", sizeof m->data);
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void put_little_endian(Message *m, uint64_t value, int bytes) {
    uint8_t data[sizeof value];
    little_endian_put(data, value, bytes);
    put_bytes(m, data, (size_t)bytes);
}

static void put_varint(Message *m, uint64_t value) {
    do {
        put_little_endian(m, (value & 0x7f) | (value > 0x7f ? 0x80 : 0), 1);
        value >>= 7;
    } while (value);
}

static void put_key(Message *m, int field, int wire) { put_varint(m, (uint64_t)(field << 3 | wire)); }

static void put_double(Message *m, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, WIRE_64);
    put_little_endian(m, bits, 8);
}

static void put_string(Message *m, int field, const void *data, size_t bytes) {
    put_key(m, field, WIRE_BYTES);
    put_varint(m, bytes);
    put_bytes(m, data, bytes);
}

static Message event_at(double time, int64_t step) {
    Message m = {.bytes = 0};
    put_double(&m, 1, time);
    put_key(&m, 2, WIRE_VARINT);
    put_varint(&m, (uint64_t)step);
    return m;
}

/* --- records ------------------------------------------------------------------------------------------------------ */

/* Returns the CRC-32C (reflected polynomial 0x82F63B78) with the mask of TFRecords. */
static uint32_t checksum(const uint8_t *data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Writes the TensorBoard records that wait. After a failed write the file is cut to its complete records. */
static void flush(TensorBoard *t) {
    int error = t->waiting_bytes ? io_write(t->fd, t->waiting, t->waiting_bytes) : 0;
    if (error) io_truncate(t->fd, t->written);
    else t->written += t->waiting_bytes;
    if (error && !t->has_warned)
        warn("cannot write %s: %s; the run goes on, and TensorBoard will not show the points that were not written",
             t->path, strerror(-error));
    t->has_warned |= error != 0;
    t->waiting_bytes = 0;
    t->flushed_ms = clock_ms();
}

static void write_record(TensorBoard *t, const Message *event) {
    Message length = {.bytes = 0}, sums = {.bytes = 0};
    put_little_endian(&length, event->bytes, 8);
    put_little_endian(&length, checksum(length.data, 8), 4);
    put_little_endian(&sums, checksum(event->data, event->bytes), 4);
    if (t->waiting_bytes + length.bytes + event->bytes + sums.bytes > BUFFER_BYTES) flush(t);
    const Message *parts[] = {&length, event, &sums};
    for (int i = 0; i < 3; i++) {
        memcpy(t->waiting + t->waiting_bytes, parts[i]->data, parts[i]->bytes);
        t->waiting_bytes += parts[i]->bytes;
    }
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Returns the number of seconds for the name of a new file. Readers read the files in the order of names, so it is
 * greater than that of all existing files, even if the clock is behind. */
static long long next_second(const char *folder, double time) {
    long long      second = (long long)time, there;
    struct dirent *entry;
    DIR           *d = opendir(folder);
    while (d && (entry = readdir(d)))
        if (sscanf(entry->d_name, NAME "%lld.", &there) == 1 && there >= second && there < 9999999999)
            second = there + 1;
    if (d) closedir(d);
    return second;
}

TensorBoard *tensorboard_open(const char *dir, int64_t step, double time) {
    char         folder[4200], host[256] = "host";
    TensorBoard *t = xcalloc(1, sizeof *t, "a file for TensorBoard");
    gethostname(host, sizeof host - 1);
    snprintf(folder, sizeof folder, "%s/tb", dir);
    int error = io_mkdirs(folder);
    snprintf(t->path, sizeof t->path, "%s/" NAME "%010lld.%.100s", folder, next_second(folder, time), host);
    t->fd = error ? error : io_open(t->path, IO_APPEND);
    if (t->fd < 0) {
        warn("cannot write %s: %s; the run goes on without a file for TensorBoard", t->path, strerror(-t->fd));
        free(t);
        return NULL;
    }
    Message version = {.bytes = 0};
    put_double(&version, 1, time);
    put_string(&version, 3, "brain.Event:2", strlen("brain.Event:2"));
    write_record(t, &version);
    tensorboard_forget(t, step, time);
    flush(t);
    return t;
}

void tensorboard_forget(TensorBoard *t, int64_t step, double time) {
    if (!t) return;
    static const uint8_t START[] = {1 << 3 | WIRE_VARINT, 1};
    Message              m = event_at(time, step > 0 ? step + 1 : 0);
    put_string(&m, 7, START, sizeof START);
    write_record(t, &m);
}

void tensorboard_add(TensorBoard *t, int64_t step, double time, const Metric *metric, int metrics) {
    if (!t) return;
    Message event = event_at(time, step), summary = {.bytes = 0};
    for (int i = 0; i < metrics; i++) {
        Message  value = {.bytes = 0};
        float    number = (float)metric[i].value;
        uint32_t bits;
        if (!isfinite(metric[i].value)) continue;
        memcpy(&bits, &number, sizeof bits);
        put_string(&value, 1, metric[i].name, strnlen(metric[i].name, TAG_BYTES));
        put_key(&value, 2, WIRE_32);
        put_little_endian(&value, bits, 4);
        put_string(&summary, 1, value.data, value.bytes);
    }
    put_string(&event, 5, summary.data, summary.bytes);
    if (summary.bytes > 0) write_record(t, &event);
    if (clock_ms() - t->flushed_ms >= FLUSH_MS) flush(t);
}

void tensorboard_close(TensorBoard *t) {
    if (!t) return;
    flush(t);
    io_close(t->fd);
    free(t);
}
