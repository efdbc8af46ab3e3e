/* model_card.c - see model_card.h. */
#include "run/verbs/model_card.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/version.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/log/run_log.h"

/* --- losses, from metrics.jsonl ----------------------------------------------------------------------------------- */

typedef struct { int64_t step; double loss; } Loss; /* step -1: none */
typedef struct { Loss train, val, best; } Losses;

static void take_line(Losses *l, const MetricsLine *line) {
    Loss now = {line->step, line->loss};
    if (line->kind == LINE_TRAIN) l->train = now;
    if (line->kind != LINE_EVAL) return;
    if (l->best.step < 0 || now.loss < l->best.loss) l->best = now;
    l->val = now;
}

/* Reads the losses of the steps up to last_step from metrics.jsonl. */
static Losses read_losses(const char *run, int64_t last_step) {
    Losses      l = {{-1, 0}, {-1, 0}, {-1, 0}};
    MetricsLine line;
    Path        path = path_of("%s/metrics.jsonl", run ? run : "");
    FILE       *in = run ? io_open_stream(path.text, IO_READ) : NULL;
    if (run && !in) io_expect_file(path.text, -errno);
    while (in && metrics_line_next(in, &line) != LINE_OTHER)
        if (line.step <= last_step && isfinite(line.loss)) take_line(&l, &line);
    if (in) fclose(in);
    return l;
}

static void put_loss(FILE *out, const char *what, Loss loss) {
    if (loss.step >= 0) fprintf(out, "| %s | %" PRId64 " | %.4f |\n", what, loss.step, loss.loss);
}

static void put_losses(FILE *out, Losses l, const ModelCard *card) {
    if (l.train.step < 0 && l.val.step < 0) return;
    fprintf(out, "\n## Losses\n\nIn nats per token.\n\n| | step | loss |\n|---|---|---|\n");
    put_loss(out, "training, last", l.train);
    put_loss(out, "validation, last", l.val);
    put_loss(out, "validation, best", l.best);
    if (card->has_picture) fprintf(out, "\n![losses by step](loss.svg)\n");
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Writes a file name or a config value into a cell of a table. Escapes Markdown, and replaces control characters. */
static void put_text(FILE *out, const char *text) {
    for (int length; *text; text += length ? length : 1) {
        length = utf8_bytes(text, strnlen(text, 4));
        if (length == 0 || (unsigned char)*text < ' ' || *text == 0x7f) fputc('?', out);
        else if (strchr("\\`*{}[]<>#|!~$", *text)) fprintf(out, "\\%c", *text);
        else fprintf(out, "%.*s", length, text);
    }
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *title_of(const Manifest *m) {
    const cJSON *dir = json_member(json_member(m->config, "run"), "dir");
    const char  *title = cJSON_IsString(dir) ? last_part(dir->valuestring) : "";
    return title[0] ? title : "GPT";
}

static int64_t size_in(const Manifest *m, const char *section, const char *key) {
    const cJSON *value = json_member(json_member(m->config, section), key);
    return cJSON_IsNumber(value) ? (int64_t)value->valuedouble : 0;
}

static void put_model(FILE *out, const ModelCard *card) {
    const Manifest *m = card->manifest;
    fprintf(out, "A language model of type %s with %" PRId64 " parameters, trained with train_gpt: %" PRId64 " layers, %" PRId64
            " heads, width %" PRId64 ", %" PRId64 " positions, vocabulary %" PRId64 ".\n\n",
            card->model_type, card->parameters, size_in(m, "model", "n_layer"), size_in(m, "model", "n_head"),
            size_in(m, "model", "n_embd"), size_in(m, "model", "n_positions"), size_in(m, "model", "vocab_size"));
    fprintf(out, "The weights are those after step %" PRId64 " of %" PRId64, m->step, size_in(m, "run", "steps"));
    if (strcmp(card->dtype, "float32") == 0) fprintf(out, ", in float32, as the optimizer has them.\n");
    else fprintf(out, ", rounded from float32 to %s, to nearest, ties to even.\n", card->dtype);
}

static void put_loading(FILE *out, const ModelCard *card) {
    char name[1024];
    json_quote(name, sizeof name, card->name);
    fprintf(out, "\n## Load it\n\n```python\nfrom transformers import AutoModelForCausalLM%s\n",
            card->has_tokenizer ? ", AutoTokenizer" : "");
    fprintf(out, "model = AutoModelForCausalLM.from_pretrained(%s)\n", name);
    if (card->has_tokenizer) fprintf(out, "tokenizer = AutoTokenizer.from_pretrained(%s)\n", name);
    fprintf(out, "```\n");
    if (!card->has_tokenizer) fprintf(out, "\nThis folder has no tokenizer: the model takes token ids.\n");
}

/* --- how it was trained ------------------------------------------------------------------------------------------- */

static void put_value(FILE *out, const char *section, const cJSON *value) {
    char shown[SHOWN_BYTES];
    int  is_text = cJSON_IsString(value) && value->valuestring[0];
    if (!is_text && !cJSON_IsNumber(value) && !cJSON_IsBool(value)) return;
    fprintf(out, "| %s.", section);
    put_text(out, value->string);
    fprintf(out, " | ");
    if (is_text) put_text(out, value->valuestring);
    else fputs(cJSON_IsNumber(value) ? number_text(number_value(value), shown) : cJSON_IsTrue(value) ? "true" : "false", out);
    fprintf(out, " |\n");
}

static void put_training(FILE *out, const Manifest *m) {
    static const char *const sections[] = {"model", "batch", "optimizer", "schedule"};
    fprintf(out, "\n## Training\n\n| | |\n|---|---|\n| steps | %" PRId64 " of %" PRId64 " |\n| tokens | %" PRId64 " |\n",
            m->step, size_in(m, "run", "steps"), m->tokens);
    fprintf(out, "| precision | %s |\n| ranks | %d |\n", m->precision, m->ranks);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const cJSON *value, *section = json_member(m->config, sections[i]);
        cJSON_ArrayForEach(value, section) put_value(out, sections[i], value);
    }
}

static void put_data(FILE *out, const Manifest *m) {
    enum { SHOWN = 50 };
    int64_t tokens = 0;
    fprintf(out, "\n## Data\n\n| file | tokens |\n|---|---|\n");
    for (int i = 0; i < m->data_files; i++) {
        tokens += m->data[i].tokens;
        if (i >= SHOWN) continue;
        fprintf(out, "| ");
        put_text(out, m->data[i].name);
        fprintf(out, " | %" PRId64 " |\n", m->data[i].tokens);
    }
    fprintf(out, "| all %d | %" PRId64 " |\n", m->data_files, tokens);
}

char *model_card_text(const ModelCard *card, size_t *bytes) {
    const Manifest *m = card->manifest;
    char           *text = NULL;
    FILE           *out = memory_file_open(&text, bytes);
    if (!out) fail(EXIT_MEMORY, "no memory for the model card");
    fprintf(out, "---\nlibrary_name: transformers\npipeline_tag: text-generation\n");
    fprintf(out, "tags:\n- %s\n- text-generation\n- train_gpt\n---\n\n# ", card->model_type);
    put_text(out, title_of(m));
    fprintf(out, "\n\n");
    put_model(out, card);
    put_loading(out, card);
    put_losses(out, read_losses(card->run, m->step), card);
    put_training(out, m);
    put_data(out, m);
    fprintf(out, "\nExported by train_gpt %s.\n", program_version());
    if (fclose(out) != 0) fail(EXIT_MEMORY, "no memory for the model card");
    return text;
}
