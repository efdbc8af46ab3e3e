"""Compares ids of the program's tokenizer with those of Hugging Face tokenizers and OpenAI tiktoken, on random Unicode
texts.

Texts have only characters that Python's unicodedata knows. The libraries of the same Debian know them, and so does the
newer Oniguruma that is part of Hugging Face tokenizers. A newer character may be a letter to one of them and unassigned
to another.

  check_tokenizers.py DUMP_IDS TRAIN_GPT WORK [GPT2_FOLDER]   prints "ok ..." or "not ok ..."; exit 1 after "not ok"

Vocabularies are trained here, one for each way of splitting text that published models have. GPT-2's own vocabulary is
also used if its folder is given.
"""
import base64, json, os, random, re, subprocess, sys, unicodedata

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

dump, train_gpt, work, gpt2 = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else ""
rng = random.Random(20)
failed = 0

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
NANOCHAT = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])


def ours(tokenizer, texts):
    data = b"".join(b"%d\n" % len(t.encode()) + t.encode() for t in texts)
    said = subprocess.run([dump, tokenizer], input=data, stdout=subprocess.PIPE, check=True).stdout
    return [[int(i) for i in line.split()] for line in said.decode().split("\n")[:-1]]


def compare(name, tokenizer, texts, theirs):
    global failed
    mine = ours(tokenizer, texts)
    bad = [i for i, t in enumerate(texts) if mine[i] != theirs(t)]
    print("%s %s: the same ids for %d texts" % ("not ok" if bad or len(mine) != len(texts) else "ok", name, len(texts)))
    for i in bad[:3]:
        print("  %r\n  ours   %s\n  theirs %s" % (texts[i], mine[i], theirs(texts[i])))
    failed |= bool(bad)


WORDS = "the a of and I'll we've don't THE It's naïve café résumé Straße Ελλάδα Привет мир 你好 世界 こんにちは 안녕 שלום नमस्ते 1 12 123 1234 3.14 ½ Ⅷ x² e=mc² foo_bar f(x) \
http://a.b/c?d=e #tag @user -- ... !? «quoted» “text” <|endoftext|> <|end 🙂 👩‍👩‍👧 é e\u0301 \u0344 \u0958 ﬁ Å \u212b".split()
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", " \n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u180e", "\u200b", "\u0085", ""]


def character(first, last):
    """Returns a random character that is assigned in Unicode 14, the version of PCRE2's tables and of Python 3.11.
    Newer characters are letters to some libraries and not to others."""
    while True:
        c = chr(rng.randint(first, last))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


def text():
    kind = rng.random()
    if kind < 0.6:
        return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randint(0, 12)))
    if kind < 0.8:
        return "".join(character(*rng.choice([(1, 0x7F), (0xA0, 0x2FF), (0x300, 0x36F), (0x370, 0xD7FF)])) for _ in range(rng.randint(0, 30)))
    ranges = [(1, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x1FFFF), (0x20000, 0x10FFFF)]
    return "".join(character(*rng.choice(ranges)) for _ in range(rng.randint(0, 20)))


texts = [text() for _ in range(10000)] + ["", " ", "a" * 5000, "ab" * 3000 + " " * 500, "\n" * 300]
corpus = [text() for _ in range(3000)]
byte_level = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])
KINDS = {
    "gpt2": (byte_level(True), None, {}),
    "cl100k": (split(CL100K), None, {"ignore_merges": True}),
    "qwen": (split(QWEN), normalizers.NFC(), {}),
    "o200k": (split(O200K), None, {"ignore_merges": True}),
    "nanochat": (split(NANOCHAT), None, {}),
    "digits": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]), None, {}),
}
for name, (pre, normalizer, extra) in KINDS.items():
    t = Tokenizer(models.BPE(**extra))
    t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>", "<|end|>"], show_progress=False)
    t.train_from_iterator(corpus, trainer)
    folder = os.path.join(work, name)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "tokenizer.json")
    t.save(path)
    compare("tokenizers, " + name, folder, texts, lambda s: t.encode(s).ids)
    if name == "gpt2":  # tests merges written as strings, not pairs, as in older files
        whole = json.load(open(path))
        pairs = [m if isinstance(m, list) else m.split(" ") for m in whole["model"]["merges"]]
        whole["model"]["merges"] = [" ".join(m) for m in pairs]
        json.dump(whole, open(os.path.join(work, "strings.json"), "w"))
        compare("tokenizers, merges as strings", os.path.join(work, "strings.json"), texts[:500], lambda s: t.encode(s).ids)

# --- every construct of a pattern, and every behavior ---------------------------------------------------------------
# A vocabulary of the 256 bytes and of every two of them, merged in a random order: where a piece ends, shows in the ids.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
SYMBOL = {b: chr(b) for b in PRINTABLE} | {b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in PRINTABLE)}
PAIRS = [(a, b) for a in range(256) for b in range(256)]
rng.shuffle(PAIRS)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
MODEL = {"type": "BPE", "vocab": {SYMBOL[b]: b for b in range(256)} | {SYMBOL[a] + SYMBOL[b]: 256 + i for i, (a, b) in enumerate(PAIRS)},
         "merges": [[SYMBOL[a], SYMBOL[b]] for a, b in PAIRS]}


def tokenizer_of(name, parts, normalizer=None, added=()):
    """Writes a tokenizer.json with these pre-tokenizers to a folder. Returns the folder, and the tokenizer as
    Hugging Face reads it."""
    folder = os.path.join(work, "rule-" + name)
    os.makedirs(folder, exist_ok=True)
    words = [{"id": 256 + len(PAIRS) + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": n, "special": False}
             for i, (c, n) in enumerate(added)]
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": words, "normalizer": normalizer,
                   "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts, BYTE_LEVEL]}, "post_processor": None, "decoder": None,
                   "model": MODEL}, file)
    return folder, Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


def regex(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


ASSIGNED = [c for c in map(chr, range(1, 0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
EVERY = "".join(ASSIGNED)
MARKS = [c for c in ASSIGNED if unicodedata.category(c) == "Mn"]
DIGITS = [c for c in ASSIGNED if unicodedata.category(c) == "Nd"]
CLASS = re.compile(r"\[(?:\^?\]?)(?:\\.|\[:\^?\w+:\]|\[[^]]*\]|[^]\\])*\]|\\[pP]\{\^?\w+\}|\\[swdhSWDH]")


def outside(one):
    """Returns the characters that are not in a character class of a pattern, by Hugging Face's engine. The program's
    engine has another Unicode version; characters that it classes differently are added to CHANGED."""
    theirs = {c for piece, _ in pre_tokenizers.Split(Regex(one), "removed").pre_tokenize_str(EVERY) for c in piece}
    text = b"".join(BYTES[i] for i in ours(tokenizer_of("class", [regex(one, "Removed")])[0], [EVERY])[0]).decode()
    CHANGED.update(theirs ^ set(text))
    return theirs


def sides(one):
    """Returns two lists of characters at the edges of a character class: inside, and just outside."""
    out = outside(one)
    is_out = [c in out for c in ASSIGNED]
    edges = [i for i in range(1, len(ASSIGNED)) if is_out[i] != is_out[i - 1]]
    inner = [ASSIGNED[i - is_out[i]] for i in edges] or [c for c, o in zip(ASSIGNED, is_out) if not o][:1]
    outer = [ASSIGNED[i - (not is_out[i])] for i in edges] or [c for c, o in zip(ASSIGNED, is_out) if o][:1]
    return [[c for c in side if c not in CHANGED] for side in (inner, outer) if side]


CHANGED = set()
BYTES = [bytes([b]) for b in range(256)] + [bytes(pair) for pair in PAIRS]
KNOWN_SIDES = {}


def hard_texts(pattern, count, words=("'s", "'LL", "'\u017f", "a", "b", "B", "ab", "aab", " ", "  ", "x", "12345", "\u00df", "SS", "e\u0301")):
    """Yields texts with a combining mark, a newline, a digit, and a character inside and outside of every character
    class of the pattern."""
    pools = [MARKS, "\n\n\n\r", DIGITS]
    for one in CLASS.findall(pattern):
        pools += KNOWN_SIDES[one] if one in KNOWN_SIDES else KNOWN_SIDES.setdefault(one, sides(one))
    pools = [[c for c in pool if c not in CHANGED] for pool in pools]
    for _ in range(count):
        parts = [rng.choice(pool) for pool in pools] + [rng.choice(words) for _ in range(rng.randint(0, 9))]
        rng.shuffle(parts)
        yield "".join(parts)


DEEPSEEK = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
TIKTOKEN = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
KIMI = r"""[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"""
RULES = {"gpt2": GPT2, "gpt2 in full": GPT2.replace("'(?:[sdmt]|ll|ve|re)", "'s|'t|'re|'ve|'m|'ll|'d"), "cl100k": CL100K, "qwen": QWEN, "o200k": O200K,
         "nanochat": NANOCHAT, "deepseek": DEEPSEEK, "tiktoken": TIKTOKEN, "kimi": KIMI, "lines": r"[^\n]+|\n", "any": r".+?\d|\D", "three": r"\d{3}|\w",
         "intersection": r"[a-z&&[^b]]+|.", "nested": r"[ab[\p{Nd}]]+|.", "word": r"\w+", "edge": r"\b\w+\b|.", "no edge": r"\w+\B|\B.", "hexadecimal": r"\h+|\H",
         "at most": r"a{,2}b|.", "interval, again": r"\p{N}{1,3}+", "line end": r"\s+$|\s+", "line begin": r"^\S|\S+", "dot of all": r"(?m:.)+", "alpha": r"[[:alpha:]]+|.",
         "alnum": r"[[:alnum:]]+", "spaces": r"[[:space:]]|[[:upper:]]+", "digits": r"[[:digit:]]+|[[:xdigit:]]|[[:word:]]", "nothing": r"(?=b)", "empty": r"x*", "or empty": r"a|",
         "ignore case": r"(?i)ss|b+|\s", "behind": r"(?<=[a\n])\w|(?<!\s)\S", "text begin": r"\A.|\W+", "atomic": r"(?>a+)b|\p{M}", "groups": r"(a|b)*\s|(?<x>\d)\k<x>?",
         "not": r"\P{L}+|[^\p{^M}]", "possessive": r"\p{L}++\s?+|\s*+"}
for name, pattern in RULES.items():
    folder, t = tokenizer_of(name.replace(" ", "_"), [regex(pattern)])
    compare("the pattern of " + name, folder, list(hard_texts(pattern, 10000)), lambda s: t.encode(s).ids)
print("%s %d of %d characters are left out: Unicode versions class them differently: %s" % ("not ok" if len(CHANGED) > 400 else "ok", len(CHANGED), len(ASSIGNED), " ".join("%X" % ord(c) for c in sorted(CHANGED)[:12])))
failed |= len(CHANGED) > 400
for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Isolated"):
    for invert in (False, True):
        for name in ("gpt2", "word", "nothing", "empty", "spaces", "lines"):
            folder, t = tokenizer_of("behavior", [regex(RULES[name], behavior, invert)])
            compare("%s%s, the pattern of %s" % (behavior, ", inverted" if invert else "", name), folder, list(hard_texts(RULES[name], 500)), lambda s: t.encode(s).ids)
digits = [{"type": "Digits", "individual_digits": single} for single in (True, False)]
for name, parts in {"text": [regex("a", kind="String")], "text_of_several": [regex("ab", "Removed", kind="String")], "text_with_signs": [regex(".*\\", "MergedWithNext", kind="String")],
                    "no_text": [regex("", kind="String")], "digits": digits[:1], "runs_of_digits": digits[1:],
                    "three": [regex(r"\p{N}{1,3}"), regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), regex(DEEPSEEK)], "two_engines": [regex(r"\w+"), regex(GPT2)]}.items():
    folder, t = tokenizer_of("parts", parts)
    compare("pre-tokenizers, " + name, folder, list(hard_texts(r"\p{N}\p{L}\s", 10000, words=("a", "ab", ".*\\", "123", "\u4e00", " "))), lambda s: t.encode(s).ids)
# Compares texts with overlapping added tokens, before and after Unicode normalization. Hugging Face normalizes by an
# older version of Unicode than Python's. Characters that it does not know, alone or between two marks, are left out of
# the comparison.
OLDER = {c for c in ASSIGNED for form in ("NFC", "NFKD") if getattr(normalizers, form)().normalize_str(c) != unicodedata.normalize(form, c)}
OLDER |= {c for c in ASSIGNED if unicodedata.combining(c) and normalizers.NFD().normalize_str("\u0345" + c + "\u0334") != unicodedata.normalize("NFD", "\u0345" + c + "\u0334")}
print("%s %d characters are left out of normal forms" % ("not ok" if len(OLDER) > 600 else "ok", len(OLDER)))
failed |= len(OLDER) > 600
CHANGED |= OLDER
ADDED = [("abx", True), ("bxb", False), ("e\u0301", True), ("\u00e9xy", False), (" \n", True), ("a b", False), ("\u212b", True)]
for form in (None, "NFC", "NFD", "NFKC", "NFKD"):
    folder, t = tokenizer_of("added", [regex(GPT2)], form and {"type": form}, ADDED)
    some = list(hard_texts(GPT2, 10000, words=("a", "b", "abx", "bxb", "xb", "e\u0301", "\u00e9", "x", " ", "\n", "\u212b", "\u00c5", "A\u030a")))
    compare("added tokens, %s" % form, folder, some, lambda s: t.encode(s).ids)

with open(os.path.join(work, "corpus.txt"), "w", newline="") as f:
    f.write("\n".join(corpus))
for pattern in ("gpt2", "cl100k_base", "o200k_base", "qwen"):  # tests the files that train-tokenizer writes
    folder = os.path.join(work, "own-" + pattern)
    subprocess.run([train_gpt, "train-tokenizer", os.path.join(work, "corpus.txt"), "out=" + folder, "vocab_size=1500", "pattern=" + pattern], check=True, stdout=subprocess.DEVNULL)
    t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    compare("learnt here, " + pattern, folder, texts, lambda s: t.encode(s).ids)
    if any(t.decode(t.encode(s).ids, skip_special_tokens=False) != s for s in texts[:500]):
        failed = 1
        print("not ok learnt here, %s: texts come back" % pattern)

if gpt2:
    import tokenizers
    t = tokenizers.ByteLevelBPETokenizer(os.path.join(gpt2, "vocab.json"), os.path.join(gpt2, "merges.txt"))
    t.add_special_tokens(["<|endoftext|>"])
    compare("GPT-2's vocabulary", gpt2, texts, lambda s: t.encode(s).ids)
    vocab = json.load(open(os.path.join(gpt2, "vocab.json")))
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    characters = {chr(b): b for b in printable}
    characters.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in printable)})
    ranks = {bytes(characters[c] for c in token): i for token, i in vocab.items() if token != "<|endoftext|>"}
    for name, pattern in (("gpt2", GPT2), ("cl100k_base", CL100K), ("o200k_base", O200K)):
        path = os.path.join(work, name + ".tiktoken")
        with open(path, "wb") as f:
            for token, i in ranks.items():
                f.write(base64.b64encode(token) + b" %d\n" % i)
        e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        compare("tiktoken, " + name, path, texts, lambda s: e.encode(s, disallowed_special=()))
sys.exit(failed)
