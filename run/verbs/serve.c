/* serve.c - the verb serve: the server of islands, training jobs that train one model together. It has a run folder of
 * its own. With several servers, all except the first follow it and have no folder. A server is one process without MPI
 * and without a GPU (DEVICE_NONE). Its weights and momentum are in host memory, in the order and format of a
 * checkpoint. run/outer/server.h has the protocol.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/thread.h"
#include "core/terminal.h"
#include "core/version.h"
#include "model/model.h"
#include "run/checkpoint/checkpoint.h"
#include "run/config/config.h"
#include "run/guard/lock.h"
#include "run/guard/requests.h"
#include "run/log/metrics.h"
#include "run/outer/server.h"
#include "run/outer/rule.h"
#include "run/plan/plan.h"
#include "run/log/progress.h"
#include "run/log/run_folder.h"
#include "run/text/sample.h"
#include "run/verbs/verbs.h"

static const char *listen_at, *asked_part; /* values of listen= and part=; NULL if not given */
static const VerbKey SERVE_KEYS[] = {
    {"listen", "0.0.0.0:7000", NULL, "listen on this address, where it has another name here", .text = &listen_at,
     .unset = "outer.server"},
    {"part", "0/2", NULL, "of outer.server with 2 entries: which of them this is, from 0; 0 leads",
     .text = &asked_part, .unset = "the only one"},
    {.name = NULL},
};

static const double TURN_MS = 200.0;

typedef struct {
    Config          config;
    Tokenizer       tokenizer;
    Dataset         train;
    Comm           *comm;
    RunLock        *lock;
    ServeWeights    weights;
    Stream          stream;
    TrainState      state;
    CheckpointState checkpoint;
    Resumed         resumed;
    Saver          *saver;
    Metrics        *metrics;
    Requests        requests;
    Server         *server;
    const char     *listen;    /* address to listen on; borrowed */
    char            entry[OUTER_ADDRESS_BYTES];
    int             part, parts;
} Serving;

/* --- what it holds ------------------------------------------------------------------------------------------------ */

/* Loads the config, and checks which part of the model this server has: part=, such as "1/3". */
static void read_config(Serving *s, int words, char **word) {
    char *faults = config_load(word[0], word + 1, words - 1, 1, &s->config);
    if (faults) fail_lines(EXIT_CONFIG, faults);
    if (!*s->config.outer.server)
        fail(EXIT_CONFIG, "serve: outer.server is \"\": give the host:port at which training jobs reach this server");
    if (s->config.run.stop_step)
        fail(EXIT_CONFIG,
             "serve: run.stop_step is for training jobs, and a server does not stop there: give run.stop_step=0");
    int  parts = 0;
    char left;
    s->parts = outer_servers(s->config.outer.server);
    if (!asked_part && s->parts > 1)
        fail(EXIT_CONFIG, "serve: outer.server names %d servers: add part=0/%d to the command of the first, up to "
             "part=%d/%d for the last", s->parts, s->parts, s->parts - 1, s->parts);
    if (asked_part && (sscanf(asked_part, "%d/%d%c", &s->part, &parts, &left) != 2 || parts < 1 || s->part < 0 ||
                       s->part >= parts))
        fail(EXIT_CONFIG,
             "serve: part=%s: k/n with k from 0 to n - 1 is expected, as in part=0/%d: n is the number of "
             "servers in outer.server, k the place of this one",
             asked_part, s->parts);
    if (asked_part && parts != s->parts)
        fail(EXIT_CONFIG, "serve: part=%s is of %d servers, and outer.server names %d: give part=%d/%d", asked_part,
             parts, s->parts, s->part < s->parts ? s->part : 0, s->parts);
    s->listen = listen_at ? listen_at : outer_server(s->config.outer.server, s->part, s->entry);
}

/* Makes the world of one process without a GPU. */
static void begin_alone(Serving *s) {
    World *w = world_join((Launch){.size = 1});
    s->comm = world_all(w);
    device_open(DEVICE_NONE, world_threads(w));
    signals_keep_to_main();
}

/* Opens the data and the run folder. Loads the weights of the newest checkpoint. Without one, loads those of
 * model.init_from, or makes new ones. */
static void open_run(Serving *s) {
    const Config *c = &s->config;
    run_folder_check(c);
    s->tokenizer = run_tokenizer(c);
    run_documents(c, &s->tokenizer);
    s->train = dataset_open("data.train", c->data.train.item, c->data.train.share, c->data.train.count,
                            c->batch.seq_len, c->model.shape.vocab_size);
    s->train.tokenizer = tokenizer_fingerprint(&s->tokenizer);
    checkpoint_precheck_source(&s->config, &s->tokenizer);
    begin_alone(s);
    s->lock = lock_run_folder(c->run.dir, s->comm, NULL, LOCK_BEAT_MS);
    checkpoint_precheck(c);
    s->weights = serve_weights_create(c, 0);
    s->stream = stream_create(0);
    s->checkpoint = (CheckpointState){
        .config = c, .best_step = -1, .comm = s->comm, .optimizer = &s->weights.optimizer, .stream = &s->stream,
        .train = &s->train, .tokenizer = &s->tokenizer, .lock = s->lock, .precision = "fp32",
        .threads = device_threads(), .train_state = &s->state};
    s->state.loss_scale = loss_scale_start(F32);
    s->resumed = checkpoint_resume(&s->checkpoint);
    if (s->resumed.ranks == 0 && c->model.init_from[0]) checkpoint_init_from(c->model.init_from, &s->checkpoint);
    else if (s->resumed.ranks == 0) masters_init(&s->weights.optimizer, &s->stream, (uint64_t)c->run.seed, NULL, NULL);
    if (s->resumed.step % c->outer.every)
        fail(EXIT_CONFIG,
             "the newest checkpoint in %s is of step %lld, which is no multiple of outer.every = %lld: give the server "
             "a run.dir of its own",
             c->run.dir, (long long)s->resumed.step, (long long)c->outer.every);
}

static void open_server(Serving *s) {
    const Config *c = &s->config;
    s->requests = requests_start(s->comm, c->run.dir, c->run.max_minutes, clock_ms(),
                                 (double)checkpoint_disk_bytes(&s->weights.shards->layout, s->weights.optimizer.kind));
    s->server = server_create((ServerParts){
        .config = c, .train = &s->train, .weights = &s->weights.optimizer, .shards = s->weights.shards,
        .parts = s->parts, .listen = s->listen, .step = s->resumed.step, .tokens = s->state.start.tokens,
        .samples = s->state.start.samples, .note = progress_note});
}

static void end(Serving *s) {
    server_destroy(s->server);
    saver_destroy(s->saver);
    metrics_close(s->metrics);
    dataset_close(&s->train);
    tokenizer_destroy(&s->tokenizer);
    serve_weights_destroy(&s->weights);
    stream_destroy(&s->stream);
    say_end_log();
    lock_release(s->lock);
    world_leave(comm_world(s->comm));
    config_free(&s->config);
}

/* --- its rounds --------------------------------------------------------------------------------------------------- */

static void report_saved(Serving *s, double ms) {
    if (ms <= 0.0) return;
    s->requests.save_ms = ms;
    metrics_event(s->metrics, "save", saver_step(s->saver), (Metric[]){{"ms", ms}}, 1);
    progress_note("saved %s/checkpoints/step_%08lld in %.2f s", s->config.run.dir, (long long)saver_step(s->saver),
                  ms * 1e-3);
}

static void save(Serving *s) {
    char    fault[METRICS_FAULT_BYTES] = "";
    int64_t step = server_step(s->server);
    if (saver_step(s->saver) == step || (s->resumed.ranks > 0 && s->resumed.step == step)) return;
    report_saved(s, saver_finish(s->saver));
    server_collect(s->server);
    s->state.start = server_position(s->server);
    int logged = metrics_catch_up(s->metrics, fault);
    saver_start(s->saver, step, logged ? NULL : fault);
    metrics_draw(s->metrics);
}

static void log_round(Serving *s, const ServerRound *r) {
    const Config *c = &s->config;
    double        rate = (double)r->own_tokens / r->ms * 1e3;
    char          took[32];
    if (r->ms < 10e3) snprintf(took, sizeof took, "%.0fms", r->ms);
    else duration_text(took, r->ms);
    metrics_outer(s->metrics, &(OuterMetrics){
        .round = r->round, .step = r->step, .tokens = r->tokens, .islands = r->islands, .staleness = r->staleness,
        .norm = r->norm, .ms = r->ms, .tokens_per_s = rate, .loss = r->loss});
    progress_note("round %lld/%lld  %5.1f%% | loss %.4f | norm %.3g | %d island%s | %.1fk tok/s | %s",
                  (long long)r->round, (long long)(c->run.steps / c->outer.every),
                  100.0 * (double)r->step / (double)c->run.steps, r->loss, r->norm, r->islands,
                  plural(r->islands), rate * 1e-3, took);
}

/* Returns 1 unless a request to stop has arrived. Ends the program if another job has taken over the run folder. */
static int goes_on(Serving *s) {
    if (lock_is_lost(s->lock)) lock_fail(s->lock);
    return !requests_stop(&s->requests, 0.0);
}

static void serve_rounds(Serving *s) {
    ServerRound over;
    int64_t     every = s->config.checkpoint.every;
    while (!server_is_done(s->server) && goes_on(s)) {
        error_set_step(server_step(s->server));
        if (server_turn(s->server, TURN_MS, &over)) {
            log_round(s, &over);
            if (every > 0 && over.step / every > (over.step - s->config.outer.every) / every) save(s);
        }
        if (requests_save(&s->requests)) save(s);
        if (saver_ready(s->saver)) report_saved(s, saver_next(s->saver));
    }
    if (!server_is_done(s->server) && server_end_round(s->server, &over)) log_round(s, &over);
}

/* Waits until the islands (training jobs) have fetched the last weights and left. Waits at least `minutes`, so that
 * late islands get an answer, too. An island without an answer would end with exit code 77, however often it is
 * started. */
static void see_them_off(Serving *s, double minutes) {
    double      until_ms = clock_ms() + minutes * 60e3;
    ServerRound over;
    server_linger(s->server);
    while ((server_islands(s->server) > 0 || clock_ms() < until_ms) && goes_on(s))
        server_turn(s->server, TURN_MS, &over);
}

/* Serves training jobs of a run that was already over at the start. Writes nothing. */
static void serve_finished(Serving *s) {
    const Config *c = &s->config;
    double        minutes = c->outer.linger_minutes;
    char          lingers[160] = "nothing to do";
    if (minutes > 0)
        snprintf(lingers, sizeof lingers,
                 "nothing to do but to answer late islands for %g minutes (outer.linger_minutes); Ctrl-C stops the "
                 "server",
                 minutes);
    progress_note("%s is at step %lld of run.steps = %lld already: %s", c->run.dir, (long long)s->resumed.step,
                  (long long)c->run.steps, lingers);
    if (minutes <= 0) return;
    open_server(s);
    see_them_off(s, minutes);
    server_dismiss(s->server, EXIT_DONE);
    requests_end(&s->requests);
}

/* --- another server's part ---------------------------------------------------------------------------------------- */

static void say_ready(const Server *server) {
    char address[CHANNEL_PEER_BYTES];
    server_address(server, address);
    progress_note("serving on %s", address);
}

/* Serves one part of the model as a server other than the first. It has no run folder, because the first server saves
 * its part. */
static int serve_part(Serving *s) {
    const Config *c = &s->config;
    begin_alone(s);
    s->weights = serve_weights_create(c, s->part);
    s->server = server_create((ServerParts){
        .config = c, .shards = s->weights.shards, .memory = s->weights.part, .part = s->part, .parts = s->parts,
        .listen = s->listen, .note = progress_note});
    progress_note("part %d of %d: %lld of %lld parameters, %s of memory; waiting for the first server of %s", s->part,
                  s->parts, (long long)server_part_elems(s->server), (long long)s->weights.shards->layout.elems,
                  bytes_text((double)serve_bytes(c, s->part).all).text, c->outer.server);
    int code = server_follow(s->server, say_ready);
    progress_note(code == EXIT_DONE ? "done" : "stopped; the first server has saved the run");
    server_destroy(s->server);
    serve_weights_destroy(&s->weights);
    world_leave(comm_world(s->comm));
    config_free(&s->config);
    return code;
}

static int verb_serve(int words, char **word) {
    Serving       serving = {.parts = 1}, *s = &serving;
    const Config *c = &s->config;
    char          address[CHANNEL_PEER_BYTES];
    signals_install();
    signals_answer((Launch){.size = 1});
    read_config(s, words, word);
    if (s->part > 0) return serve_part(s);
    open_run(s);
    int64_t steps = c->run.steps;
    if (s->resumed.step >= steps) {
        serve_finished(s);
        end(s);
        return EXIT_DONE;
    }

    lock_sign(s->lock);
    checkpoint_make_room(&s->checkpoint);
    s->saver = saver_create(&s->checkpoint);
    run_folder_keep_log(c);
    run_folder_keep_config(c);
    MetricsAbout about = {NAN, program_commit(), s->weights.shards->layout.elems, c->log.tensorboard};
    s->metrics = metrics_open(c->run.dir, s->resumed.step, about);
    if (s->resumed.ranks > 0) metrics_event(s->metrics, "resume", s->resumed.step, (Metric[]){{"ranks", 1}}, 1);
    s->checkpoint.log = metrics_path(s->metrics), s->checkpoint.log_fd = metrics_fd(s->metrics);
    open_server(s);
    server_address(s->server, address);
    progress_note("serving %s on %s at step %lld of %lld: rounds of %lld steps, %s of memory", c->run.dir, address,
                  (long long)s->resumed.step, (long long)steps, (long long)c->outer.every,
                  bytes_text((double)serve_bytes(c, 0).all).text);
    serve_rounds(s);
    save(s);
    report_saved(s, saver_finish_last(s->saver));
    int    is_done = server_is_done(s->server);
    double minutes = c->outer.linger_minutes;
    metrics_draw(s->metrics);
    if (is_done && minutes > 0)
        progress_note("saved step %lld, the last: training jobs that end late are answered for %g minutes "
                      "(outer.linger_minutes); Ctrl-C stops the server",
                      (long long)steps, minutes);
    if (is_done) see_them_off(s, minutes);
    server_dismiss(s->server, is_done ? EXIT_DONE : EXIT_STOPPED);
    progress_note(is_done ? "done: step %lld of %lld"
                          : "stopped at step %lld of %lld, saved; the same command goes on from here",
                  (long long)server_step(s->server), (long long)steps);
    requests_end(&s->requests);
    end(s);
    return is_done ? EXIT_DONE : EXIT_STOPPED;
}

const Verb SERVE_VERB = {
    "serve", "config.json [key=value ...]", "the server of islands: jobs that train one model",
    "Holds the weights of a run that several jobs train, its islands: jobs with the same config and outer.server. It "
    "gives each its samples, and makes new weights of what they send after outer.every steps. It needs a run.dir of "
    "its own. outer.key is made where it is not there: the islands' hosts need a copy. Config keys may follow the "
    "file, beside:",
    SERVE_KEYS, "./train_gpt serve run.json outer.server=head:7000 run.dir=runs/server", verb_serve,
    {VERB_CONFIG, 0, "a config file"},
};
