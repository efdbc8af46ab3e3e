/* bpe.c - see bpe.h. First the vocabulary and encoding by it, then learning a vocabulary. */
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"

/* purposes of allocations in the message "no memory for ..." */
static const char MEMORY[] = "a tokenizer", LEARNING[] = "learning a vocabulary";

/* --- texts found by their bytes ----------------------------------------------------------------------------------- */

/* The text of a token or a word: bytes [at, at + bytes) of Texts.pool. count: occurrences of a word. is_there: 0 for an
 * id without a token. is_apart: 1 for a special token, which is not in the hash table of texts. */
typedef struct { size_t at; uint32_t bytes; uint8_t is_there, is_apart; int64_t count; } Text;

typedef struct {
    char    *pool;                 /* owned: bytes of all texts, one text after another */
    size_t   pool_bytes, pool_room;
    Text    *text;                 /* owned [room]: the text of each id or word */
    size_t   texts, room;
    int32_t *place;                /* owned [places]: hash table from the bytes of a text to its index + 1; 0: free */
    size_t   places;
} Texts;

/* Returns the place in the hash table of the text with these bytes, or the free place where it belongs. */
static size_t place_of(const Texts *t, const void *bytes, size_t count) {
    size_t at = XXH3_64bits(bytes, count) & (t->places - 1);
    for (; t->place[at]; at = (at + 1) & (t->places - 1)) {
        const Text *x = &t->text[t->place[at] - 1];
        if (x->bytes == count && memcmp(t->pool + x->at, bytes, count) == 0) break;
    }
    return at;
}

/* Makes the hash table of texts anew with `places` places. Returns the number of texts in it. */
static size_t enter_all(Texts *t, size_t places, const char *what) {
    size_t entered = 0;
    free(t->place);
    t->places = places;
    t->place = xcalloc(places, sizeof *t->place, what);
    for (size_t i = 0; i < t->texts; i++) {
        const Text *x = &t->text[i];
        if (!x->is_there || x->is_apart) continue;
        t->place[place_of(t, t->pool + x->at, x->bytes)] = (int32_t)i + 1;
        entered++;
    }
    return entered;
}

/* Appends the bytes of a text to the pool, which holds all texts. Returns the index of the first one in the pool. */
static size_t put_bytes(Texts *t, const void *bytes, size_t count, const char *what) {
    if (t->pool_bytes + count > t->pool_room) {
        t->pool_room = 2 * (t->pool_bytes + count) + 4096;
        t->pool = xrealloc(t->pool, t->pool_room, what);
    }
    if (count > 0) memcpy(t->pool + t->pool_bytes, bytes, count);
    t->pool_bytes += count;
    return t->pool_bytes - count;
}

static void free_texts(Texts *t) { free(t->pool), free(t->text), free(t->place); }

/* --- the vocabulary ----------------------------------------------------------------------------------------------- */

/* a special token; its text, as the encoder searches for it, is bytes [at, at + bytes) of the pool of Bpe.token */
typedef struct { int32_t id; BpeForm form; size_t at, bytes; } Special;
/* A merge of two tokens into token `id`. pair: left id << 32 | right id. Merges of lower rank are applied first. rank
 * -1: a free place of the hash table. */
typedef struct { uint64_t pair; int32_t rank, id; } Merge;

/* Cache of encoded pieces (words) of text and their ids. Each place of the hash table holds one piece. It serves most
 * of a text, which consists of a few thousand words. */
enum { WORDS = 1 << 17, WORD_BYTES = 24, WORD_IDS = 8 };
typedef struct { uint8_t bytes, ids; char text[WORD_BYTES]; int32_t id[WORD_IDS]; } Cached;

struct Bpe {
    Texts    token;                                  /* bytes of the token of each id */
    size_t   entered;                                /* number of tokens in the hash table of `token` */
    Merge   *merge;                                  /* owned [merge_places]: hash table of merges by their pair */
    size_t   merge_places, merges;
    int32_t  byte_id[256];
    int      takes_whole, specials;
    Special *special;                                /* owned [specials]: the special tokens */
    /* [form][byte]: 1 if a special token of this BpeForm begins with this byte */
    uint8_t  starts_special[2][256];
    size_t   longest_special[2];
    /* owned [WORDS]: cache of encoded pieces; NULL before the first piece */
    Cached    *word;
    /* owned: scratch memory for the piece that is being encoded: its list of symbols and its heap of merges */
    int32_t *links;
    size_t   links_room;
};

Bpe *bpe_create(void) {
    Bpe *b = xcalloc(1, sizeof *b, MEMORY);
    for (int i = 0; i < 256; i++) b->byte_id[i] = -1;
    return b;
}

void bpe_destroy(Bpe *b) {
    free_texts(&b->token), free(b->merge), free(b->special), free(b->word), free(b->links);
    free(b);
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

static void put_token(Bpe *b, int32_t id, const void *bytes, size_t count, int is_special) {
    Texts *t = &b->token;
    size_t at = (size_t)id;
    if (at >= t->room) {
        size_t room = id < 1024 ? 1024 : id < BPE_MOST_IDS / 2 ? 2 * at : BPE_MOST_IDS;
        /* from xcalloc, so if ids are far apart, only the memory pages of used ids are touched */
        Text  *grown = xcalloc(room, sizeof *grown, MEMORY);
        if (t->room > 0) memcpy(grown, t->text, sizeof *grown * t->room);
        free(t->text);
        t->text = grown, t->room = room;
    }
    t->text[at] = (Text){put_bytes(t, bytes, count, MEMORY), (uint32_t)count, 1, (uint8_t)is_special, 0};
    if (at >= t->texts) t->texts = at + 1;
}

/* Returns the free place of these bytes in the hash table of tokens, which it enlarges if need be. Returns NULL if a
 * token with these bytes is in the table. */
static int32_t *new_place(Bpe *b, const void *bytes, size_t count) {
    if (2 * b->entered >= b->token.places)
        b->entered = enter_all(&b->token, b->token.places ? 2 * b->token.places : 1 << 12, MEMORY);
    int32_t *place = &b->token.place[place_of(&b->token, bytes, count)];
    return *place ? NULL : place;
}

int bpe_add(Bpe *b, int32_t id, const void *bytes, size_t count) {
    CHECK(id >= 0 && id < BPE_MOST_IDS, "id %d", id);
    size_t own;
    if (count == 0 || bpe_bytes(b, id, &own)) return 0;
    int32_t *place = new_place(b, bytes, count);
    if (!place) return 0;
    put_token(b, id, bytes, count, 0);
    *place = id + 1;
    b->entered++;
    if (count == 1) b->byte_id[*(const uint8_t *)bytes] = id;
    return 1;
}

void bpe_enter_special(Bpe *b, int32_t id) {
    size_t      count;
    const char *bytes = bpe_bytes(b, id, &count);
    int32_t    *place = bytes ? new_place(b, bytes, count) : NULL;
    if (!place) return;
    b->token.text[id].is_apart = 0;
    *place = id + 1;
    b->entered++;
    if (count == 1) b->byte_id[*(const uint8_t *)bytes] = id;
}

static void index_specials(Bpe *b) {
    memset(b->starts_special, 0, sizeof b->starts_special);
    b->longest_special[BPE_VERBATIM] = b->longest_special[BPE_NORMALIZED] = 0;
    for (int k = 0; k < b->specials; k++) {
        const Special *x = &b->special[k];
        b->starts_special[x->form][(uint8_t)b->token.pool[x->at]] = 1;
        if (x->bytes > b->longest_special[x->form]) b->longest_special[x->form] = x->bytes;
    }
}

int bpe_add_special(Bpe *b, int32_t id, const char *text, size_t count) {
    CHECK(id >= 0 && id < BPE_MOST_IDS, "id %d", id);
    size_t      own;
    const char *there = bpe_bytes(b, id, &own);
    if (count == 0 || (there && (own != count || memcmp(there, text, count) != 0))) return 0;
    if (bpe_is_special(b, id, text, count)) return 1;
    if (!there) put_token(b, id, text, count, 1);
    b->special = xrealloc(b->special, sizeof *b->special * (size_t)(b->specials + 1), MEMORY);
    b->special[b->specials++] = (Special){id, BPE_VERBATIM, b->token.text[id].at, count};
    index_specials(b);
    return 1;
}

void bpe_match_normalized(Bpe *b, int32_t id, const char *form, size_t count) {
    size_t at = put_bytes(&b->token, form, count, MEMORY);
    for (int k = 0; k < b->specials; k++)
        if (b->special[k].id == id) b->special[k] = (Special){id, BPE_NORMALIZED, at, count};
    index_specials(b);
}

int32_t bpe_find(const Bpe *b, const void *bytes, size_t count) {
    return b->token.places ? b->token.place[place_of(&b->token, bytes, count)] - 1 : -1;
}

int bpe_is_special(const Bpe *b, int32_t id, const char *text, size_t count) {
    size_t      own;
    const char *there = bpe_bytes(b, id, &own);
    return there && b->token.text[id].is_apart && own == count && memcmp(there, text, count) == 0;
}

int32_t bpe_find_special(const Bpe *b, const char *text) {
    for (int i = 0; i < b->specials; i++) {
        const Text *t = &b->token.text[b->special[i].id];
        if (t->bytes == strlen(text) && memcmp(b->token.pool + t->at, text, t->bytes) == 0) return b->special[i].id;
    }
    return -1;
}

const char *bpe_bytes(const Bpe *b, int32_t id, size_t *count) {
    if (id < 0 || id >= bpe_ids(b) || !b->token.text[id].is_there) return NULL;
    *count = b->token.text[id].bytes;
    return b->token.pool + b->token.text[id].at;
}

int32_t bpe_ids(const Bpe *b) { return (int32_t)b->token.texts; }

int bpe_missing_byte(const Bpe *b) {
    for (int i = 0; i < 256; i++)
        if (b->byte_id[i] < 0) return i;
    return -1;
}

void bpe_take_whole(Bpe *b) { b->takes_whole = 1; }
int  bpe_takes_whole(const Bpe *b) { return b->takes_whole; }
int  bpe_id_is_special(const Bpe *b, int32_t id) {
    for (int i = 0; i < b->specials; i++)
        if (b->special[i].id == id) return 1;
    return 0;
}

/* --- merges ------------------------------------------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

/* Returns the index at which the search for a pair begins in a hash table of `places` places, a power of two. The index
 * is made of bits from 36 up of Knuth's multiplicative hash. Its lower 32 bits do not depend on the left id, so an
 * index of them would be the same for all pairs that have the second id in common. */
static size_t first_place(uint64_t pair, size_t places) {
    return (size_t)(pair * 0x9E3779B97F4A7C15u >> 36) & (places - 1);
}

static Merge *merge_place(const Bpe *b, uint64_t pair) {
    size_t at = first_place(pair, b->merge_places);
    while (b->merge[at].rank >= 0 && b->merge[at].pair != pair) at = (at + 1) & (b->merge_places - 1);
    return &b->merge[at];
}

void bpe_add_merge(Bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id) {
    if (2 * b->merges >= b->merge_places) {
        Merge *old = b->merge;
        size_t places = b->merge_places;
        b->merge_places = places ? 2 * places : 1 << 12;
        b->merge = xmalloc(sizeof *b->merge * b->merge_places, MEMORY);
        for (size_t i = 0; i < b->merge_places; i++) b->merge[i].rank = -1;
        for (size_t i = 0; i < places; i++)
            if (old[i].rank >= 0) *merge_place(b, old[i].pair) = old[i];
        free(old);
    }
    Merge *m = merge_place(b, pair_of(left, right));
    b->merges += m->rank < 0;
    *m = (Merge){pair_of(left, right), rank, id};
}

void bpe_merge_all(Bpe *b) {
    for (int32_t id = 0; id < bpe_ids(b); id++) {
        const Text  t = b->token.text[id];
        const char *text = b->token.pool + t.at;
        for (uint32_t cut = 1; t.is_there && !t.is_apart && cut < t.bytes; cut++) {
            int32_t left = bpe_find(b, text, cut), right = bpe_find(b, text + cut, t.bytes - cut);
            if (left >= 0 && right >= 0) bpe_add_merge(b, left, right, id, id);
        }
    }
}

static int by_rank(const void *a, const void *b) {
    const Merge *x = (const Merge *)a, *y = (const Merge *)b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

int64_t bpe_merges(const Bpe *b, int32_t **pair) {
    Merge *all = xmalloc(sizeof *all * (b->merges + 1), MEMORY);
    size_t n = 0;
    for (size_t i = 0; i < b->merge_places; i++)
        if (b->merge[i].rank >= 0) all[n++] = b->merge[i];
    qsort(all, n, sizeof *all, by_rank);
    *pair = xmalloc(2 * sizeof **pair * (n + 1), MEMORY);
    for (size_t i = 0; i < n; i++)
        (*pair)[2 * i] = (int32_t)(all[i].pair >> 32), (*pair)[2 * i + 1] = (int32_t)(uint32_t)all[i].pair;
    free(all);
    return (int64_t)n;
}

/* --- candidates for the next merge -------------------------------------------------------------------------------- */

/* A candidate for the next merge, and a heap of candidates. The first one of the heap has the least order. Among equal
 * orders it has the least pair. */
typedef struct { uint64_t order, pair; } Candidate;
typedef struct { Candidate *at; size_t count; } Heap;

/* Returns whether candidate a comes before b. Compares order and pair as one number, because a branch costs 12 % of the
 * time to encode rare words. */
static int is_before(Candidate a, Candidate b) {
    return ((unsigned __int128)a.order << 64 | a.pair) < ((unsigned __int128)b.order << 64 | b.pair);
}

static void push(Heap *h, Candidate c) {
    size_t at = h->count++;
    for (; at > 0 && is_before(c, h->at[(at - 1) / 2]); at = (at - 1) / 2) h->at[at] = h->at[(at - 1) / 2];
    h->at[at] = c;
}

static Candidate pop(Heap *h) {
    Candidate first = h->at[0], last = h->at[--h->count];
    size_t    at = 0;
    for (size_t child; (child = 2 * at + 1) < h->count; at = child) {
        if (child + 1 < h->count && is_before(h->at[child + 1], h->at[child])) child++;
        if (!is_before(h->at[child], last)) break;
        h->at[at] = h->at[child];
    }
    h->at[at] = last;
    return first;
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* A piece of text that is being merged. Symbol i has the id id[i], and its neighbours are before[i] and after[i], -1 at
 * the ends. id -1: the symbol was joined to the one before it. heap: the possible merges. The order of a merge is its
 * rank << 32 | index of its left symbol. Its pair is the id of the right symbol. */
typedef struct { int32_t *id, *before, *after; Heap heap; } Piece;

static void consider(const Bpe *b, Piece *p, int32_t place) {
    int32_t after = place < 0 ? -1 : p->after[place];
    if (after < 0 || !b->merges) return;
    const Merge *m = merge_place(b, pair_of(p->id[place], p->id[after]));
    if (m->rank >= 0) push(&p->heap, (Candidate){(uint64_t)m->rank << 32 | (uint32_t)place, (uint32_t)p->id[after]});
}

/* Encodes a piece of text by merges. Writes its ids and returns their number. If last is not NULL, it gets the left and
 * right id of the last merge. */
static size_t merge_piece(Bpe *b, const char *text, size_t count, int32_t *ids, int32_t last[2]) {
    /* space for three lists of symbols, and for a heap of at most 3 candidates for each byte */
    if (4 * count * 4 + 64 > b->links_room) {
        b->links_room = 16 * count + 4096;
        b->links = xrealloc(b->links, sizeof *b->links * b->links_room, MEMORY);
    }
    Piece p = {b->links, b->links + count, b->links + 2 * count, {(void *)(b->links + (3 * count + 3) / 4 * 4), 0}};
    for (size_t i = 0; i < count; i++) {
        p.id[i] = b->byte_id[(uint8_t)text[i]];
        p.before[i] = (int32_t)i - 1;
        p.after[i] = i + 1 < count ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < count; i++) consider(b, &p, (int32_t)i);
    while (p.heap.count > 0) {
        Candidate c = pop(&p.heap);
        int32_t   place = (int32_t)(uint32_t)c.order, right = p.after[place], right_id = (int32_t)(uint32_t)c.pair;
        /* skips a candidate that is out of date, because one of its symbols has been joined to a neighbour since */
        if (p.id[place] < 0 || right < 0 || p.id[right] != right_id) continue;
        const Merge *m = merge_place(b, pair_of(p.id[place], right_id));
        if (m->rank != (int32_t)(c.order >> 32)) continue;
        if (last) last[0] = p.id[place], last[1] = right_id;
        p.id[place] = m->id;
        p.id[right] = -1;
        p.after[place] = p.after[right];
        if (p.after[right] >= 0) p.before[p.after[right]] = place;
        consider(b, &p, p.before[place]);
        consider(b, &p, place);
    }
    size_t n = 0;
    for (int32_t i = 0; i >= 0; i = p.after[i]) ids[n++] = p.id[i];
    return n;
}

size_t bpe_encode_piece(Bpe *b, const char *piece, size_t count, int32_t *ids) {
    if (count == 0) return 0;
    if (!b->word) b->word = xcalloc(WORDS, sizeof *b->word, MEMORY);
    Cached *w = count <= WORD_BYTES ? &b->word[XXH3_64bits(piece, count) & (WORDS - 1)] : NULL;
    if (w && w->bytes == count && memcmp(w->text, piece, count) == 0) {
        memcpy(ids, w->id, sizeof *ids * w->ids);
        return w->ids;
    }
    int32_t whole = b->takes_whole ? bpe_find(b, piece, count) : -1;
    size_t  n = 1;
    if (whole >= 0) ids[0] = whole;
    else n = merge_piece(b, piece, count, ids, NULL);
    if (w && n <= WORD_IDS) {
        w->bytes = (uint8_t)count, w->ids = (uint8_t)n;
        memcpy(w->text, piece, count);
        memcpy(w->id, ids, sizeof *ids * n);
    }
    return n;
}

uint64_t bpe_added_hash(const Bpe *b, int normalizes) {
    uint64_t hash = (uint64_t)b->specials;
    for (int i = 0; i < b->specials; i++) {
        const Special *x = &b->special[i];
        hash += XXH3_64bits(&x->id, sizeof x->id);
        if (normalizes && x->form == BPE_NORMALIZED)
            hash += XXH3_64bits_withSeed(b->token.pool + x->at, x->bytes, (uint64_t)x->id);
    }
    return hash;
}

uint64_t bpe_merges_hash(Bpe *b) {
    int32_t *pair, *ids = NULL;
    size_t   room = 0;
    int64_t  merges = bpe_merges(b, &pair);
    uint64_t hash = 0;
    uint8_t *is_made = xcalloc(b->token.texts + 1, 1, MEMORY);
    for (int64_t i = 0; i < merges; i++) {
        const Text *left = &b->token.text[pair[2 * i]], *right = &b->token.text[pair[2 * i + 1]];
        const char *pool = b->token.pool;
        size_t      count = left->bytes + right->bytes;
        int32_t     last[2] = {-1, -1};
        if (count > room) {
            room = 2 * count;
            /* the buffer holds the ids, then a text of `room` bytes */
            ids = xrealloc(ids, sizeof *ids * room + room, MEMORY);
        }
        char *text = (char *)(ids + room);
        memcpy(text, pool + left->at, left->bytes), memcpy(text + left->bytes, pool + right->at, right->bytes);
        if (merge_piece(b, text, count, ids, last) != 1 || memcmp(last, &pair[2 * i], sizeof last) != 0) continue;
        hash = XXH3_64bits_withSeed(last, sizeof last, hash);
        is_made[ids[0]] = 1;
    }
    for (int32_t id = 0; b->takes_whole && id < bpe_ids(b); id++) {
        const Text *t = &b->token.text[id];
        if (t->is_there && !t->is_apart && t->bytes > 1 && !is_made[id])
            hash = XXH3_64bits_withSeed(&id, sizeof id, hash);
    }
    free(pair), free(ids), free(is_made);
    return hash;
}

int bpe_next_special(const Bpe *b, BpeForm form, const char *text, size_t count, SplitEnd end, size_t *at,
                     size_t *bytes, int32_t *id) {
    /* index of the first byte that may begin a special token which the end of the text cuts off; count if there is
     * none */
    size_t cut = count;
    for (size_t i = 0; b->longest_special[form] && i < count && cut == count; i++) {
        if (!b->starts_special[form][(uint8_t)text[i]]) continue;
        *bytes = 0;
        for (int k = 0; k < b->specials; k++) {
            const Special *x = &b->special[k];
            size_t         seen = x->bytes < count - i ? x->bytes : count - i;
            if (x->form != form || x->bytes <= *bytes || memcmp(b->token.pool + x->at, text + i, seen) != 0) continue;
            if (seen < x->bytes && end == SPLIT_MORE) cut = i;
            else if (seen < x->bytes) continue;
            else *bytes = x->bytes, *id = x->id, *at = i;
        }
        if (*bytes > 0) return cut == count || (*at = cut, 0);
    }
    *at = cut;
    return 0;
}

/* --- learning ----------------------------------------------------------------------------------------------------- */

/* Most bytes of a word that is counted to learn a vocabulary. A longer word is counted in slices, so it cannot become a
 * token. */
enum { LONGEST_WORD = 256 };

/* A pair of adjacent symbols. count: how often it occurs now, over all words. word [words]: indices of the words in
 * which it has occurred; some may no longer have it. */
typedef struct { uint64_t pair; int64_t count; int32_t *word; int32_t words, room; } Pair;

struct BpeTrainer {
    size_t   memory_bytes;
    Texts    word;             /* the words of the text so far, each with its number of occurrences */
    int64_t  forgotten;
    /* owned: symbols (ids) of all words, one word after another; each word has as many places as it had bytes */
    int32_t *symbol;
    size_t  *begin;            /* owned [words + 1]: place in `symbol` where each word begins */
    uint32_t *length;          /* owned [words]: number of symbols of each word after the merges so far */
    Pair    *pair;             /* owned [pair_places]: hash table of the pairs of adjacent symbols */
    size_t   pairs, pair_places;
    uint64_t *fresh;           /* owned: pairs that are not in the heap yet */
    size_t   freshes, fresh_room;
    /* owned [heap_room]: pairs by frequency; the order of a pair is ~count, so the most frequent pair comes first */
    Heap     heap;
    size_t   heap_room;
};

BpeTrainer *bpe_trainer_create(size_t memory_bytes) {
    BpeTrainer *t = xcalloc(1, sizeof *t, LEARNING);
    t->memory_bytes = memory_bytes;
    return t;
}

void bpe_trainer_destroy(BpeTrainer *t) {
    for (size_t i = 0; i < t->pair_places; i++) free(t->pair[i].word);
    free_texts(&t->word), free(t->symbol), free(t->begin), free(t->length), free(t->pair), free(t->fresh);
    free(t->heap.at), free(t);
}

int64_t bpe_trainer_forgotten(const BpeTrainer *t) { return t->forgotten; }

/* --- learning: counting words ------------------------------------------------------------------------------------- */

/* Doubles the memory for counted words. If that exceeds memory_bytes, removes the rarest words instead. */
static void make_room(BpeTrainer *t) {
    Texts *words = &t->word;
    size_t bytes = words->pool_room + sizeof *words->text * words->room + sizeof *words->place * words->places;
    for (int64_t count = 1; 2 * bytes > t->memory_bytes && words->texts > 0; count++) {
        /* removes words with at most `count` occurrences, and closes the gaps in memory */
        size_t before = words->texts, kept = 0, pool_bytes = 0;
        for (size_t i = 0; i < before; i++) {
            Text w = words->text[i];
            if (w.count <= count) continue;
            memmove(words->pool + pool_bytes, words->pool + w.at, w.bytes);
            w.at = pool_bytes, pool_bytes += w.bytes;
            words->text[kept++] = w;
        }
        t->forgotten += (int64_t)(before - kept);
        words->texts = kept, words->pool_bytes = pool_bytes;
        enter_all(words, words->places, LEARNING);
        if (kept < before / 2) return;
    }
    words->room = words->room ? 2 * words->room : 1 << 12;
    words->text = xrealloc(words->text, sizeof *words->text * words->room, LEARNING);
    enter_all(words, 2 * words->room, LEARNING);
}

void bpe_trainer_add(BpeTrainer *t, const char *word, size_t bytes) {
    Texts *words = &t->word;
    for (size_t n; bytes > 0; word += n, bytes -= n) {
        n = bytes < LONGEST_WORD ? bytes : LONGEST_WORD;
        size_t at = words->places ? place_of(words, word, n) : 0;
        if (words->places && words->place[at]) {
            words->text[words->place[at] - 1].count++;
            continue;
        }
        if (words->texts == words->room) make_room(t), at = place_of(words, word, n);
        words->text[words->texts] = (Text){put_bytes(words, word, n, LEARNING), (uint32_t)n, 1, 0, 1};
        words->place[at] = (int32_t)++words->texts;
    }
}

/* --- learning: pairs ---------------------------------------------------------------------------------------------- */

static Pair *pair_place(const BpeTrainer *t, uint64_t pair) {
    size_t at = first_place(pair, t->pair_places);
    while (t->pair[at].room && t->pair[at].pair != pair) at = (at + 1) & (t->pair_places - 1);
    return &t->pair[at];
}

static void count_pair(BpeTrainer *t, int32_t left, int32_t right, int32_t word, int64_t count) {
    uint64_t pair = pair_of(left, right);
    if (2 * t->pairs >= t->pair_places) {
        Pair  *old = t->pair;
        size_t places = t->pair_places;
        t->pair_places = places ? 2 * places : 1 << 14;
        t->pair = xcalloc(t->pair_places, sizeof *t->pair, LEARNING);
        for (size_t i = 0; i < places; i++)
            if (old[i].room) *pair_place(t, old[i].pair) = old[i];
        free(old);
    }
    Pair *p = pair_place(t, pair);
    if (!p->room) {
        *p = (Pair){.pair = pair, .word = xmalloc(sizeof *p->word * 2, LEARNING), .room = 2};
        t->pairs++;
        if (t->freshes == t->fresh_room) {
            t->fresh_room = t->fresh_room ? 2 * t->fresh_room : 1 << 12;
            t->fresh = xrealloc(t->fresh, sizeof *t->fresh * t->fresh_room, LEARNING);
        }
        t->fresh[t->freshes++] = pair;
    }
    p->count += count;
    if (count < 0 || (p->words > 0 && p->word[p->words - 1] == word)) return;
    if (p->words == p->room) p->word = xrealloc(p->word, sizeof *p->word * (size_t)(p->room *= 2), LEARNING);
    p->word[p->words++] = word;
}

/* --- learning: the merges ----------------------------------------------------------------------------------------- */

static void spell_out(BpeTrainer *t) {
    size_t words = t->word.texts, at = 0;
    t->begin = xmalloc(sizeof *t->begin * (words + 1), LEARNING);
    t->length = xmalloc(sizeof *t->length * words, LEARNING);
    t->symbol = xmalloc(sizeof *t->symbol * t->word.pool_bytes, LEARNING);
    for (size_t w = 0; w < words; w++) {
        const Text *word = &t->word.text[w];
        t->begin[w] = at, t->length[w] = word->bytes;
        for (uint32_t i = 0; i < word->bytes; i++, at++) t->symbol[at] = (unsigned char)t->word.pool[word->at + i];
        for (uint32_t i = 0; i + 1 < word->bytes; i++)
            count_pair(t, t->symbol[t->begin[w] + i], t->symbol[t->begin[w] + i + 1], (int32_t)w, word->count);
    }
}

/* Puts the new pairs into the heap. The count of a pair only falls afterwards. So a count in the heap can be too large
 * but never too small. */
static void feed_heap(BpeTrainer *t) {
    if (t->heap.count + t->freshes > t->heap_room) {
        t->heap_room = 2 * (t->heap.count + t->freshes);
        t->heap.at = xrealloc(t->heap.at, sizeof *t->heap.at * t->heap_room, LEARNING);
    }
    for (size_t i = 0; i < t->freshes; i++)
        push(&t->heap, (Candidate){~(uint64_t)pair_place(t, t->fresh[i])->count, t->fresh[i]});
    t->freshes = 0;
}

/* Joins symbols left and right to symbol id wherever they are adjacent in a word. Updates the counts of the pairs
 * around them. */
static void merge_in(BpeTrainer *t, int32_t word, int32_t left, int32_t right, int32_t id) {
    int32_t *s = t->symbol + t->begin[word];
    uint32_t n = t->length[word], to = 0;
    int64_t  count = t->word.text[word].count;
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
    for (feed_heap(t); made < most && t->heap.count > 0; feed_heap(t)) {
        Candidate c = pop(&t->heap);
        Pair     *p = pair_place(t, c.pair);
        if (p->count != (int64_t)~c.order) { /* the count of the pair has fallen since it was put into the heap */
            if (p->count > 1) push(&t->heap, (Candidate){~(uint64_t)p->count, c.pair});
            continue;
        }
        if (p->count < 2) break;
        Pair    all = *p; /* a copy, because counting new pairs may move the hash table */
        int32_t id = 256 + made;
        left[made] = (int32_t)(c.pair >> 32), right[made] = (int32_t)(uint32_t)c.pair;
        p->word = xmalloc(sizeof *p->word * 2, LEARNING), p->words = 0, p->room = 2;
        for (int32_t i = 0; i < all.words; i++) merge_in(t, all.word[i], left[made], right[made], id);
        free(all.word);
        pair_place(t, c.pair)->count = 0;
        made++;
    }
    return made;
}
