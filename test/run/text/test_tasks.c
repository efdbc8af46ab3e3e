/* test_tasks.c - files of questions: what is read, how texts are divided into tokens, what is refused. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/text/tasks.h"
#include "test/run/lib/begin.h"

static const Tokenizer BYTES = {.kind = TOKENIZER_BYTES, .vocab_size = 256};
static TaskReader reader(int64_t positions) { return (TaskReader){&BYTES, positions, 0, 0}; }

static int parse(Task *t, TaskReader r, const char *line, int64_t number, char *fault) {
    return task_parse_line(t, r, line, strlen(line), number == 1, fault);
}

/* Asserts the tokens of a text, how many of them are scored, and the length by which the score is divided. Tokens are
 * bytes, so `whole` is the text itself. */
static void assert_text(const Task *t, int64_t question, int64_t text, const char *whole, int64_t scored, double length) {
    int32_t         ids[256];
    const Question *q = &t->question[question];
    int64_t         count = task_text(t, q, q->first + text, ids);
    assert_int_equal(count, strlen(whole));
    for (int64_t i = 0; i < count; i++) assert_int_equal(ids[i], (unsigned char)whole[i]);
    assert_int_equal(t->text[q->first + text].scored, scored);
    assert_true(t->text[q->first + text].length == length);
}

static Task parsed(TaskReader r, const char *head, const char *line) {
    Task t = {0};
    char fault[TASK_FAULT_CHARS] = "";
    if (head && !parse(&t, r, head, 1, fault)) fail_msg("%s", fault);
    if (!parse(&t, r, line, 2, fault)) fail_msg("%s", fault);
    return t;
}

static void choices_are_divided_as_lm_eval_does(void **state) {
    (void)state;
    Task t = parsed(reader(40), NULL, "{\"context\":\"a b \",\"choices\":[\"cd\",\"c\\u00e9f\"],\"gold\":1}");
    assert_int_equal(t.kind, TASK_CHOICES);
    assert_int_equal(t.questions, 1);
    assert_int_equal(t.question[0].gold, 1);
    /* a space at the end of the context is moved to the choice, so it is scored */
    assert_text(&t, 0, 0, "a b cd", 3, 2);
    assert_text(&t, 0, 1, "a b c\xc3\xa9" "f", 5, 3);   /* the length counts characters, not bytes */
    assert_int_equal(t.text[1].shared, 5);
    task_free(&t);
    t = parsed(reader(40), NULL, "{\"context\":\"a\\u00a0\\u2003\\n\",\"choices\":[\"b\",\"c\"],\"gold\":0}");
    /* white space of any kind at the end of a context is moved to the choice */
    assert_text(&t, 0, 0, "a\xc2\xa0\xe2\x80\x83\nb", 7, 1);
    task_free(&t);
    t = parsed(reader(40), NULL, "{\"context\":\"a\",\"choices\":[\"b\",\"cd\"],\"gold\":0,\"delimiter\":\" \"}");
    /* a space that is the delimiter does not count for the length of the choice */
    assert_text(&t, 0, 1, "a cd", 3, 2);
    task_free(&t);
    t = parsed(reader(40), NULL, "{\"context\":\"\",\"choices\":[\"b\",\"cd\"],\"gold\":0}");
    assert_text(&t, 0, 1, "\ncd", 2, 2);                /* an empty context is replaced by the begin token */
    task_free(&t);
    t = parsed(reader(40), NULL, "{\"context\":\"\",\"choices\":[\"\\nb\",\"c\"],\"gold\":0}");
    assert_text(&t, 0, 0, "\nb", 1, 2);                 /* no begin token is added if the text has one */
    task_free(&t);
    t = parsed(reader(40), NULL, "{\"context\":\" \",\"choices\":[\"b\",\"cd\"],\"gold\":0}");
    assert_text(&t, 0, 1, "\n cd", 3, 2);
    task_free(&t);
}

static void other_forms(void **state) {
    (void)state;
    Task t = parsed(reader(40), NULL, "{\"contexts\":[\"ab\",\"cde\"],\"continuation\":\" f\",\"gold\":1}");
    assert_int_equal(t.kind, TASK_CONTEXTS);
    assert_text(&t, 0, 0, "ab f", 2, 2);
    assert_text(&t, 0, 1, "cde f", 2, 2);
    task_free(&t);
    t = parsed(reader(40), NULL, "{\"context\":\"ab\",\"continuation\":\" cd\"}");
    assert_int_equal(t.kind, TASK_CONTINUATION);
    assert_text(&t, 0, 0, "ab cd", 3, 3);
    task_free(&t);
}

static const char CORE[] = "{\"task\":\"mine\",\"method\":\"core\",\"baseline\":0.25}";

static void core_is_divided_as_nanochat_does(void **state) {
    (void)state;
    Task t = parsed(reader(40), CORE, "{\"context\":\"q \",\"choices\":[\"xya\",\"xybc\"],\"gold\":0,\"delimiter\":\" \"}");
    assert_string_equal(t.name, "mine");
    assert_true(t.is_core && t.by_tokens && t.baseline == 0.25);
    /* CORE, the benchmark of nanochat, scores only the tokens after those with which all choices begin. It counts
     * lengths in tokens, not characters. */
    assert_text(&t, 0, 0, "\nq  xya", 1, 1);
    assert_text(&t, 0, 1, "\nq  xybc", 2, 2);
    task_free(&t);
    t = parsed(reader(40), CORE, "{\"context\":\"q\",\"choices\":[\"ab\",\"abc\"],\"gold\":0}");
    /* nothing of "ab" is scored, because the other choice "abc" begins with it */
    assert_int_equal(t.text[0].scored, 0);
    task_free(&t);
    t = parsed(reader(40), CORE, "{\"contexts\":[\"ae\",\"be\"],\"continuation\":\" c\",\"gold\":0}");
    /* tokens with which the texts of both contexts end are scored */
    assert_text(&t, 0, 1, "\nbe c", 3, 3);
    task_free(&t);
    t = parsed(reader(40), CORE, "{\"context\":\"a\",\"continuation\":\" bc\"}");
    assert_text(&t, 0, 0, "\na bc", 3, 3);
    task_free(&t);
}

static void long_texts_lose_their_beginning(void **state) {
    (void)state;
    const char *line = "{\"context\":\"abcdefgh\",\"choices\":[\"xyz\",\"x\"],\"gold\":0}";
    Task        t = parsed(reader(5), NULL, line);
    /* The model has 5 positions. They hold all tokens but the last, which is only predicted, so 6 tokens are kept. */
    assert_text(&t, 0, 0, "fghxyz", 3, 3);
    assert_text(&t, 0, 1, "defghx", 1, 1);
    assert_int_equal(t.cut, 2);
    task_free(&t);
    t = parsed(reader(5), CORE, line);
    /* Tasks of nanochat's CORE keep as many tokens as the model has positions, here 5. Other tasks keep one more. */
    assert_text(&t, 0, 0, "ghxyz", 2, 2);
    task_free(&t);
    t = parsed(reader(3), NULL, line);
    assert_text(&t, 0, 0, "hxyz", 3, 3);
    task_free(&t);
}

static void faults_are_named(void **state) {
    (void)state;
    static const struct { const char *line, *says; } cases[] = {
        {"", "column 1"},
        {"[]", "a line has \"context\", \"choices\" and \"gold\""},
        {"{}", "a line has \"context\", \"choices\" and \"gold\""},
        {"{\"context\":\"a\"}", "a line has \"context\", \"choices\" and \"gold\""},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0,\"id\":3}", "unknown key \"id\""},
        {"{\"choices\":[\"b\",\"c\"],\"gold\":0}", "\"context\" must be a text"},
        {"{\"context\":3,\"choices\":[\"b\",\"c\"],\"gold\":0}", "\"context\" must be a text"},
        {"{\"context\":\"a\",\"choices\":\"b\",\"gold\":0}", "\"choices\" must be a list of 2"},
        {"{\"context\":\"a\",\"choices\":[\"b\"],\"gold\":0}", "\"choices\" must be a list of 2"},
        {"{\"context\":\"a\",\"choices\":[\"b\",2],\"gold\":0}", "\"choices\" must hold only texts (strings)"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"]}", "\"gold\" must be the number of the right entry of \"choices\", 0 to 1"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":2}", "\"gold\" must be the number"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":-1}", "\"gold\" must be the number"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0.5}", "\"gold\" must be the number"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":\"0\"}", "\"gold\" must be the number"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"\"],\"gold\":0}", "choice 1 has no token of its own"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"123456\"],\"gold\":0}", "a continuation of 6 tokens is longer than the 5 positions"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0,\"delimiter\":1}", "\"delimiter\" must be a text"},
        {"{\"contexts\":[\"a\",\"b\"],\"continuation\":1,\"gold\":0}", "\"continuation\" must be a text"},
        {"{\"context\":\"a\",\"continuation\":1}", "\"continuation\" must be a text"},
        {"{\"context\":\"a\",\"continuation\":\"b\",\"gold\":0}", "unknown key \"gold\""},
        {"{\"context\":\"\xff\",\"continuation\":\"b\"}", "UTF-8"},
        {"{\"context\":\"a\",\"context\":\"a\",\"continuation\":\"b\"}", "duplicate key"},
        {"{\"context\":\"a\",\"continuation\":\"b\"} {", "column"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Task t = {0};
        char fault[TASK_FAULT_CHARS] = "";
        if (parse(&t, reader(5), cases[i].line, 1, fault) || !strstr(fault, cases[i].says))
            fail_msg("%s: \"%s\" and not \"%s\"", cases[i].line, fault, cases[i].says);
        assert_int_equal(t.questions, 0);
        task_free(&t);
    }
    static const char *const heads[] = {"{\"task\":1}", "{\"task\":\"\"}", "{\"task\":\"a\",\"method\":\"x\"}", "{\"task\":\"a\",\"baseline\":1}",
                                        "{\"task\":\"a\",\"baseline\":-0.1}", "{\"task\":\"a\",\"more\":0}"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        Task t = {0};
        char fault[TASK_FAULT_CHARS] = "";
        assert_int_equal(parse(&t, reader(5), heads[i], 1, fault), 0);
        assert_true(*fault);
        task_free(&t);
    }
    Task t = parsed(reader(5), NULL, "{\"context\":\"a\",\"continuation\":\"b\"}");
    char fault[TASK_FAULT_CHARS] = "";
    assert_int_equal(parse(&t, reader(5), "{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0}", 3, fault), 0);
    assert_non_null(strstr(fault, "are not those of the lines before"));
    /* refused: only the first line of a file may describe the task */
    assert_int_equal(parse(&t, reader(5), "{\"task\":\"late\"}", 3, fault), 0);
    task_free(&t);
}

/* --- llm.c's file ------------------------------------------------------------------------------------------------- */

typedef struct { int32_t head[256]; uint16_t word[64]; } EvalFile;
/* A file in llm.c's format with two questions. The first has a context of 2 tokens and two answers, of 1 and 2 tokens.
 * The second has a context of 1 token and two answers of 1 token. */
static const EvalFile GOOD = {{20240522, 1, 2, 26},
                              {65535, 26, 0, 1, 2, 2, 10, 11, 1, 20, 2, 21, 22, 65535, 22, 1, 0, 2, 1, 12, 1, 30, 1, 31}};
enum { GOOD_BYTES = 1024 + 2 * (13 + 11) };

static void hellaswag_is_read(void **state) {
    (void)state;
    Task t = {0};
    char fault[TASK_FAULT_CHARS] = "";
    assert_true(task_is_hellaswag(&GOOD, GOOD_BYTES));
    assert_false(task_is_hellaswag("{", 1));
    assert_int_equal(task_parse_hellaswag(&t, reader(40), &GOOD, GOOD_BYTES, fault), 1);
    assert_int_equal(t.questions, 2);
    assert_int_equal(t.texts, 4);
    assert_int_equal(t.question[0].gold, 1);
    assert_true(t.by_tokens && !t.is_core);
    int32_t ids[8];
    assert_int_equal(task_text(&t, &t.question[0], 1, ids), 4);
    assert_true(ids[0] == 10 && ids[1] == 11 && ids[2] == 21 && ids[3] == 22);
    assert_int_equal(t.text[1].scored, 2);
    assert_true(t.text[1].length == 2);
    assert_int_equal(task_text(&t, &t.question[1], 3, ids), 2);
    assert_true(ids[0] == 12 && ids[1] == 31);
    task_free(&t);
}

static void broken_hellaswag_is_refused(void **state) {
    (void)state;
    static const struct { int word, value; const char *says; } cases[] = {
        {0, 1, "question 0 of 2: it does not begin"},      {1, 25, "its number of bytes is odd"},
        {1, 60, "its number of bytes is odd"},             {1, 24, "an answer ends too early"},
        {2, 1, "it does not begin"},                       {3, 2, "the right answer is none"},
        {4, 1, "no answers to choose from"},               {4, 3, "an answer has no tokens"},
        {5, 0, "it has no context"},                       {5, 60, "its context ends too early"},
        {6, 256, "ids that the model lacks"},            {9, 256, "ids that the model lacks"},
        {8, 0, "an answer has no tokens"},                 {10, 1, "bytes are left over at its end"},
        {15, 0, "question 1 of 2: it does not begin"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EvalFile bad = GOOD;
        Task     t = {0};
        char     fault[TASK_FAULT_CHARS] = "";
        bad.word[cases[i].word] = (uint16_t)cases[i].value;
        if (task_parse_hellaswag(&t, reader(40), &bad, GOOD_BYTES, fault) || !strstr(fault, cases[i].says))
            fail_msg("word %d = %d: \"%s\" and not \"%s\"", cases[i].word, cases[i].value, fault, cases[i].says);
        task_free(&t);
    }
    /* a file with another length than its head gives is refused */
    for (size_t bytes = 0; bytes <= sizeof GOOD; bytes++) {
        Task t = {0};
        char fault[TASK_FAULT_CHARS] = "";
        if (bytes != GOOD_BYTES) assert_int_equal(task_parse_hellaswag(&t, reader(40), &GOOD, bytes, fault), 0);
        task_free(&t);
    }
    EvalFile bad = GOOD;
    Task     t = {0};
    char     fault[TASK_FAULT_CHARS] = "";
    bad.head[1] = 2;
    assert_int_equal(task_parse_hellaswag(&t, reader(40), &bad, GOOD_BYTES, fault), 0);
    assert_int_equal(task_parse_hellaswag(&t, reader(1), &GOOD, GOOD_BYTES, fault), 0);
    assert_non_null(strstr(fault, "longer than the model's positions"));
    task_free(&t);
}

/* For a tokenizer with a begin token, one is put before each context, as lm-eval does by default. An empty context
 * becomes only the begin token. */
static void begin_tokens_come_first(void **state) {
    (void)state;
    static const struct { const char *head, *line; int32_t ids[8], count, scored; } CASES[] = {
        {NULL, "{\"context\":\"ab \",\"continuation\":\"c\"}", {256, 'a', 'b', ' ', 'c'}, 5, 2},
        {NULL, "{\"context\":\"\",\"continuation\":\"c\"}", {256, 'c'}, 2, 1},
        {NULL, "{\"context\":\"<s>a\",\"continuation\":\"c\"}", {256, 'a', 'c'}, 3, 1},
        {"{\"task\":\"t\",\"method\":\"core\",\"baseline\":0}", "{\"context\":\"a\",\"continuation\":\"c\"}", {256, 'a', 'c'}, 3, 1}};
    Tokenizer tokenizer = begin_tokenizer();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Task    t = parsed((TaskReader){&tokenizer, 40, 0, 0}, CASES[i].head, CASES[i].line);
        int32_t ids[64];
        assert_int_equal(task_text(&t, t.question, 0, ids), CASES[i].count);
        assert_memory_equal(ids, CASES[i].ids, sizeof *ids * (size_t)CASES[i].count);
        assert_int_equal(t.text[0].scored, CASES[i].scored);
        task_free(&t);
    }
    tokenizer_destroy(&tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_divided_as_lm_eval_does), cmocka_unit_test(other_forms),
        cmocka_unit_test(core_is_divided_as_nanochat_does),    cmocka_unit_test(long_texts_lose_their_beginning),
        cmocka_unit_test(faults_are_named),                    cmocka_unit_test(hellaswag_is_read),
        cmocka_unit_test(broken_hellaswag_is_refused),         cmocka_unit_test(begin_tokens_come_first),
    };
    return cmocka_run_group_tests_name("tasks", tests, NULL, NULL);
}
