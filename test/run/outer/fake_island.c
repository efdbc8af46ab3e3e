/* fake_island.c - a training job (island) without a model, for tests of `train_gpt serve`. It speaks the protocol of
 * run/outer/messages.h. All values of its deltas are one number. It prints a line for each message that it gets.
 *
 *   fake_island config.json id=16HEX [delta=0.01] [rounds=N] [steps=N] [hold] [key=value ...]
 *               [bad=nan|far|short|frame|change]
 *
 * A lease is a range of samples that the server gives it for a round. rounds: after so many it sends BYE and ends;
 * steps: how many steps of the last lease it does, if not all; bad: what is wrong with what it sends in its first
 * round; hold: takes a lease and is silent. Ends with the exit code of a refusal, or with 77 if the server is lost.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "data/dataset.h"
#include "model/params.h"
#include "run/config/config.h"
#include "run/outer/messages.h"

static struct {
    const char *id, *bad;
    double      delta;
    int64_t     rounds, steps;
    int         hold;
} asked = {.bad = "", .delta = 0.01, .rounds = -1, .steps = -1};

static Config   config;
static Channel *server;
static int64_t  elems;
static float   *x;

/* Returns the next frame that is not a PING. Ends the program if the connection is lost. */
static FrameHeader next(const void **payload) {
    FrameHeader h;
    char        fault[MESSAGE_FAULT_BYTES];
    for (;;) {
        int got = channel_next(server, &h, payload);
        if (got < 0) {
            printf("lost %s\n", channel_fault(server)->text);
            exit(EXIT_PEER);
        }
        if (got == 0) channel_wait(&server, 1, -1, 50.0);
        if (got == 0 || h.kind == MESSAGE_PING) continue;
        CHECK(message_check(&h, FROM_SERVER, fault), "the server %s", fault);
        if (h.kind != MESSAGE_REFUSE) return h;
        Refuse refuse;
        CHECK(message_read(MESSAGE_REFUSE, *payload, h.payload_bytes, &refuse, fault), "the server %s", fault);
        printf("refused %d %s\n", refuse.code, refuse.why);
        exit(refuse.code);
    }
}

static void say_hello(void) {
    Dataset    train = dataset_open("data.train", config.data.train.item, NULL, config.data.train.count,
                                    config.batch.seq_len, config.model.shape.vocab_size);
    HelloData *data = hello_data(&train);
    Hello      hello = {.protocol = CHANNEL_PROTOCOL, .ranks = 1, .config = config_to_json(&config), .data = data,
                        .data_files = train.shards, .elems = elems, .samples = train.samples};
    snprintf(hello.island, sizeof hello.island, "%s", asked.id);
    message_send(server, MESSAGE_HELLO, 0, &hello);
    cJSON_Delete(hello.config);
    free(data);
    dataset_close(&train);
}

/* Fetches the server's weights x of the round, or the change of x since the last round. */
static void fetch(MessageKind kind, int64_t round) {
    FrameHeader get = {.kind = (uint8_t)kind, .round = round, .elems = elems};
    const void *payload;
    CHECK(channel_send(server, get, NULL) == 1, "no room for a GET");
    for (int64_t at = 0; at < elems;) {
        FrameHeader h = next(&payload);
        if (h.kind != message_answer(kind)) continue;
        CHECK(h.offset == at && h.round == round, "values of round %" PRId64 " at %" PRId64, h.round, h.offset);
        frame_unpack((FrameType)h.type, x + at, payload, h.elems);
        at += h.elems;
    }
    printf("%s %" PRId64 " %.9g %.9g\n", kind == MESSAGE_GET ? "x" : message_name(message_answer(kind)), round, x[0], x[elems - 1]);
}

/* Sends all values of a delta (this job's change of the weights), then the END message. A bad delta is cut short or has
 * wrong values, as the option `bad` says. */
static void send_round(const Open *o, int64_t samples, int is_bad) {
    float  value = (float)(is_bad && !strcmp(asked.bad, "far") ? 1e4 : asked.delta);
    int64_t count = is_bad && !strcmp(asked.bad, "short") ? elems - 1 : elems;
    float *delta = malloc(sizeof *delta * MESSAGE_ELEMS);
    CHECK(delta, "no memory");
    for (int64_t i = 0; i < MESSAGE_ELEMS; i++) delta[i] = value;
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < 5000 ? count - at : 5000; /* sends the values in frames of at most 5000 */
        float saved = delta[0];
        if (at == 0 && is_bad && !strcmp(asked.bad, "nan")) delta[0] = NAN;
        FrameHeader h = {.kind = MESSAGE_DELTA,
                         .type = FRAME_F32,
                         .round = o->round,
                         .offset = at,
                         .elems = n,
                         .payload_bytes = (uint32_t)(4 * n)};
        while (channel_send(server, h, delta) == 0) channel_wait(&server, 1, -1, 50.0);
        delta[0] = saved;
    }
    free(delta);
    End end = {o->round, samples, samples * config.batch.seq_len, value * value * (double)elems, 2.0, o->lease};
    message_send(server, MESSAGE_END, o->round, &end);
}

static void leave(int64_t samples) {
    message_send(server, MESSAGE_BYE, 0, &(Bye){samples});
    channel_flush(server, 5000.0);
    channel_end(server);
    const void *payload;
    FrameHeader h;
    while (channel_next(server, &h, &payload) >= 0) channel_wait(&server, 1, -1, 50.0);
    channel_close(server);
    exit(0);
}

static void take_lease(const void *payload, size_t bytes, int is_first) {
    Open o;
    char fault[MESSAGE_FAULT_BYTES];
    CHECK(message_read(MESSAGE_OPEN, payload, bytes, &o, fault), "the server %s", fault);
    printf("open %" PRId64 " step %" PRId64 " steps %" PRId64 " first %" PRId64 " samples %" PRId64 " islands %d\n",
           o.round, o.step, o.steps, o.first, o.samples, o.islands);
    fetch(MESSAGE_GET, o.round);
    if (is_first && !strcmp(asked.bad, "frame")) {
        FrameHeader h = {.kind = MESSAGE_OPEN, .round = o.round, .payload_bytes = 2};
        CHECK(channel_send(server, h, "{}") == 1, "no room");
    }
    if (is_first && !strcmp(asked.bad, "change")) fetch(MESSAGE_GET_CHANGE, o.round);
    if (asked.hold) return;
    int is_last = asked.rounds-- == 1;
    int64_t unit = config.batch.global_tokens / config.batch.seq_len,
            samples = is_last && asked.steps >= 0 ? asked.steps * unit : o.samples;
    send_round(&o, samples, is_first && *asked.bad);
    if (is_last) leave(samples);
}

static void take_closed(const void *payload, size_t bytes) {
    Closed c;
    char   fault[MESSAGE_FAULT_BYTES];
    CHECK(message_read(MESSAGE_CLOSED, payload, bytes, &c, fault), "the server %s", fault);
    printf("closed %" PRId64 " islands %d norm %.6g staleness %" PRId64 " done %d\n", c.round, c.islands, c.norm,
           c.staleness, c.is_done);
    if (!c.is_done) return;
    fetch(MESSAGE_GET, c.round);
    leave(0);
}

static int take_own(const char *word) {
    if (!strncmp(word, "id=", 3)) return asked.id = word + 3, 1;
    if (!strncmp(word, "delta=", 6)) return asked.delta = atof(word + 6), 1;
    if (!strncmp(word, "rounds=", 7)) return asked.rounds = atoll(word + 7), 1;
    if (!strncmp(word, "steps=", 6)) return asked.steps = atoll(word + 6), 1;
    if (!strncmp(word, "bad=", 4)) return asked.bad = word + 4, 1;
    return !strcmp(word, "hold") ? asked.hold = 1 : 0;
}

int main(int argc, char **argv) {
    ChannelFault fault;
    Key          key;
    char         why[KEY_FAULT_BYTES];
    const void  *payload;
    int          kept = 2, first = 1;
    for (int i = 2; i < argc; i++)
        if (!take_own(argv[i])) argv[kept++] = argv[i];
    setvbuf(stdout, NULL, _IOLBF, 0);
    char *faults = config_load(argv[1], argv + 2, kept - 2, 1, &config);
    if (faults) fail_lines(EXIT_CONFIG, faults);
    int code = key_read(config.outer.key, &key, why);
    if (code) fail(code, "%s", why);
    server = channel_connect(config.outer.server, &key, 10e3, NULL, NULL, &fault);
    if (!server) fail(fault.code, "%s", fault.text);
    Layout layout = model_layout(config.model.shape, (LayoutPlace){1, 1, 0, NULL, 1, 0});
    elems = layout.elems;
    x = malloc(sizeof *x * (size_t)elems);
    CHECK(x, "no memory");
    layout_destroy(&layout);
    say_hello();
    for (;;) {
        FrameHeader h = next(&payload);
        if (h.kind == MESSAGE_WELCOME) {
            Welcome w;
            CHECK(message_read(MESSAGE_WELCOME, payload, h.payload_bytes, &w, why), "the server %s", why);
            printf("welcome %d round %" PRId64 " elems %" PRId64 "\n", w.number, w.round, w.elems);
        }
        if (h.kind == MESSAGE_CLOSED) take_closed(payload, h.payload_bytes);
        if (h.kind == MESSAGE_OPEN) take_lease(payload, h.payload_bytes, first), first = 0;
    }
}
