/* bpe_train.c - see bpe_train.h. */
#include "data/bpe_train.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"

/* Bytes of a word. A longer word is counted in slices, so it cannot become a token. */
enum { LONGEST_WORD = 256 };

typedef struct { size_t at; uint32_t bytes; int64_t count; } Word;

/* An adjacent pair: how often it occurs now, and the words in which it has occurred. It may be gone from some of
 * them. */
typedef struct { uint64_t pair; int64_t count; int32_t *word; int32_t words, room; } Pair;
typedef struct { int64_t count; uint64_t pair; } Candidate;

struct BpeTrainer {
    size_t   memory_bytes;
    char    *pool;             /* owned: bytes of the words */
    size_t   pool_bytes, pool_room;
    Word    *word;             /* owned */
    int32_t *place;            /* owned [places]: word + 1, by a hash of its bytes */
    size_t   words, word_room, places;
    int64_t  forgotten;
    int32_t *symbol;           /* owned: symbols of all words; each word has as many places as it had bytes */
    size_t  *begin;            /* owned [words + 1] */
    uint32_t *length;          /* owned [words]: symbols left */
    Pair    *pair;             /* owned [pair_places] */
    size_t   pairs, pair_places;
    uint64_t *fresh;           /* owned: new pairs since feed_heap was last called */
    size_t   freshes, fresh_room;
    Candidate *heap;           /* owned */
    size_t   heaped, heap_room;
};

static void *more(void *old, size_t bytes) { return xrealloc(old, bytes, "learning a vocabulary"); }

BpeTrainer *bpe_trainer_create(size_t memory_bytes) {
    BpeTrainer *t = more(NULL, sizeof *t);
    memset(t, 0, sizeof *t);
    t->memory_bytes = memory_bytes;
    return t;
}

void bpe_trainer_destroy(BpeTrainer *t) {
    for (size_t i = 0; i < t->pair_places; i++) free(t->pair[i].word);
    free(t->pool), free(t->word), free(t->place), free(t->symbol), free(t->begin), free(t->length), free(t->pair),
        free(t->fresh), free(t->heap);
    free(t);
}

int64_t bpe_trainer_forgotten(const BpeTrainer *t) { return t->forgotten; }

/* --- counting words ----------------------------------------------------------------------------------------------- */

static size_t place_of(const BpeTrainer *t, const char *bytes, size_t count) {
    size_t at = XXH3_64bits(bytes, count) & (t->places - 1);
    for (; t->place[at]; at = (at + 1) & (t->places - 1)) {
        const Word *w = &t->word[t->place[at] - 1];
        if (w->bytes == count && memcmp(t->pool + w->at, bytes, count) == 0) break;
    }
    return at;
}

static void enter_all(BpeTrainer *t, size_t places) {
    t->places = places;
    free(t->place);
    t->place = more(NULL, sizeof *t->place * places);
    memset(t->place, 0, sizeof *t->place * places);
    for (size_t i = 0; i < t->words; i++) t->place[place_of(t, t->pool + t->word[i].at, t->word[i].bytes)] = (int32_t)i + 1;
}

static size_t memory_of(const BpeTrainer *t) {
    return t->pool_room + sizeof *t->word * t->word_room + sizeof *t->place * t->places;
}

/* Forgets words with at most `count` occurrences, and closes the gaps. */
static void forget(BpeTrainer *t, int64_t count) {
    size_t kept = 0, bytes = 0;
    for (size_t i = 0; i < t->words; i++) {
        Word w = t->word[i];
        if (w.count <= count) continue;
        memmove(t->pool + bytes, t->pool + w.at, w.bytes);
        w.at = bytes, bytes += w.bytes;
        t->word[kept++] = w;
    }
    t->forgotten += (int64_t)(t->words - kept);
    t->words = kept, t->pool_bytes = bytes;
    enter_all(t, t->places);
}

/* Doubles the memory for words. If that exceeds the limit, forgets words instead. */
static void make_room(BpeTrainer *t) {
    int64_t count = 1;
    while (2 * memory_of(t) > t->memory_bytes && t->words > 0) {
        size_t before = t->words;
        forget(t, count++);
        if (t->words < before / 2) return;
    }
    t->word_room = t->word_room ? 2 * t->word_room : 1 << 12;
    t->word = more(t->word, sizeof *t->word * t->word_room);
    enter_all(t, 2 * t->word_room);
}

static void add_word(BpeTrainer *t, const char *word, size_t bytes) {
    size_t at = t->places ? place_of(t, word, bytes) : 0;
    if (t->places && t->place[at]) {
        t->word[t->place[at] - 1].count++;
        return;
    }
    if (t->words == t->word_room) make_room(t), at = place_of(t, word, bytes);
    if (t->pool_bytes + bytes > t->pool_room) t->pool = more(t->pool, t->pool_room = 2 * (t->pool_bytes + bytes) + 4096);
    memcpy(t->pool + t->pool_bytes, word, bytes);
    t->word[t->words] = (Word){t->pool_bytes, (uint32_t)bytes, 1};
    t->pool_bytes += bytes;
    t->place[at] = (int32_t)++t->words;
}

void bpe_trainer_add(BpeTrainer *t, const char *word, size_t bytes) {
    for (size_t n; bytes > 0; word += n, bytes -= n) {
        n = bytes < LONGEST_WORD ? bytes : LONGEST_WORD;
        add_word(t, word, n);
    }
}

/* --- pairs -------------------------------------------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static Pair *pair_place(const BpeTrainer *t, uint64_t pair) {
    size_t at = (size_t)(pair * 0x9E3779B97F4A7C15u >> 20) & (t->pair_places - 1);
    while (t->pair[at].room && t->pair[at].pair != pair) at = (at + 1) & (t->pair_places - 1);
    return &t->pair[at];
}

static Pair *find_pair(BpeTrainer *t, uint64_t pair) {
    if (2 * t->pairs >= t->pair_places) {
        Pair  *old = t->pair;
        size_t places = t->pair_places;
        t->pair_places = places ? 2 * places : 1 << 14;
        t->pair = more(NULL, sizeof *t->pair * t->pair_places);
        memset(t->pair, 0, sizeof *t->pair * t->pair_places);
        for (size_t i = 0; i < places; i++)
            if (old[i].room) *pair_place(t, old[i].pair) = old[i];
        free(old);
    }
    Pair *p = pair_place(t, pair);
    if (p->room) return p;
    *p = (Pair){.pair = pair, .word = more(NULL, sizeof *p->word * 2), .room = 2};
    t->pairs++;
    if (t->freshes == t->fresh_room)
        t->fresh = more(t->fresh, sizeof *t->fresh * (t->fresh_room = t->fresh_room ? 2 * t->fresh_room : 1 << 12));
    t->fresh[t->freshes++] = pair;
    return p;
}

static void count_pair(BpeTrainer *t, int32_t left, int32_t right, int32_t word, int64_t count) {
    Pair *p = find_pair(t, pair_of(left, right));
    p->count += count;
    if (count < 0 || (p->words > 0 && p->word[p->words - 1] == word)) return;
    if (p->words == p->room) p->word = more(p->word, sizeof *p->word * (size_t)(p->room *= 2));
    p->word[p->words++] = word;
}

/* --- the most frequent first -------------------------------------------------------------------------------------- */

static int is_before(Candidate a, Candidate b) { return a.count > b.count || (a.count == b.count && a.pair < b.pair); }

static void push(BpeTrainer *t, Candidate c) {
    if (t->heaped == t->heap_room)
        t->heap = more(t->heap, sizeof c * (t->heap_room = t->heap_room ? 2 * t->heap_room : 1 << 12));
    size_t at = t->heaped++;
    for (; at > 0 && is_before(c, t->heap[(at - 1) / 2]); at = (at - 1) / 2) t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = c;
}

static Candidate pop(BpeTrainer *t) {
    Candidate first = t->heap[0], last = t->heap[--t->heaped];
    size_t    at = 0;
    for (size_t child; (child = 2 * at + 1) < t->heaped; at = child) {
        if (child + 1 < t->heaped && is_before(t->heap[child + 1], t->heap[child])) child++;
        if (!is_before(t->heap[child], last)) break;
        t->heap[at] = t->heap[child];
    }
    t->heap[at] = last;
    return first;
}

/* --- learning ----------------------------------------------------------------------------------------------------- */

static void spell_out(BpeTrainer *t) {
    t->begin = more(NULL, sizeof *t->begin * (t->words + 1));
    t->length = more(NULL, sizeof *t->length * t->words);
    t->symbol = more(NULL, sizeof *t->symbol * t->pool_bytes);
    for (size_t w = 0, at = 0; w < t->words; w++) {
        t->begin[w] = at, t->length[w] = t->word[w].bytes;
        for (uint32_t i = 0; i < t->word[w].bytes; i++, at++) t->symbol[at] = (unsigned char)t->pool[t->word[w].at + i];
        for (uint32_t i = 0; i + 1 < t->length[w]; i++)
            count_pair(t, t->symbol[t->begin[w] + i], t->symbol[t->begin[w] + i + 1], (int32_t)w, t->word[w].count);
    }
}

/* Adds the new pairs to the heap. The count of a pair only falls afterwards, so a count in the heap can be too large
 * but never too small. */
static void feed_heap(BpeTrainer *t) {
    for (size_t i = 0; i < t->freshes; i++) push(t, (Candidate){pair_place(t, t->fresh[i])->count, t->fresh[i]});
    t->freshes = 0;
}

/* Joins left and right to id, wherever they are adjacent in a word, and updates the counts of the pairs around them. */
static void merge_in(BpeTrainer *t, int32_t word, int32_t left, int32_t right, int32_t id) {
    int32_t *s = t->symbol + t->begin[word];
    uint32_t n = t->length[word], to = 0;
    int64_t  count = t->word[word].count;
    for (uint32_t i = 0; i < n; i++, to++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[to] = s[i];
            continue;
        }
        if (to > 0) {
            count_pair(t, s[to - 1], left, word, -count);
            count_pair(t, s[to - 1], id, word, count);
        }
        if (i + 2 < n) {
            count_pair(t, right, s[i + 2], word, -count);
            count_pair(t, id, s[i + 2], word, count);
        }
        s[to] = id;
        i++;
    }
    t->length[word] = to;
}

int32_t bpe_trainer_learn(BpeTrainer *t, int32_t most, int32_t *left, int32_t *right) {
    int32_t made = 0;
    if (most > 0) spell_out(t);
    for (feed_heap(t); made < most && t->heaped > 0; feed_heap(t)) {
        Candidate c = pop(t);
        Pair     *p = pair_place(t, c.pair);
        if (p->count != c.count) { /* the count has changed since */
            if (p->count > 1) push(t, (Candidate){p->count, c.pair});
            continue;
        }
        if (c.count < 2) break;
        Pair    all = *p; /* the table may move */
        int32_t id = 256 + made;
        left[made] = (int32_t)(c.pair >> 32), right[made] = (int32_t)(uint32_t)c.pair;
        p->word = more(NULL, sizeof *p->word * 2), p->words = 0, p->room = 2;
        for (int32_t i = 0; i < all.words; i++) merge_in(t, all.word[i], left[made], right[made], id);
        free(all.word);
        pair_place(t, c.pair)->count = 0;
        made++;
    }
    return made;
}
