"""Ids of our tokenizer against those of Hugging Face tokenizers and OpenAI tiktoken, on random Unicode texts.

  check_tokenizers.py DUMP_IDS TRAIN_GPT WORK [GPT2_FOLDER]     prints "ok ..." or "not ok ...", status 1 after one of these

Vocabularies are trained here, one for each way of splitting text that published models have; GPT-2's own where it is.
"""
import base64, json, os, random, subprocess, sys, unicodedata

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
    """One that was assigned when PCRE2's tables were made (Unicode 14, as Python 3.11's): newer ones are letters to some, to others not."""
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
    if name == "gpt2":  # merges as older files have them, and apart from the vocabulary
        whole = json.load(open(path))
        pairs = [m if isinstance(m, list) else m.split(" ") for m in whole["model"]["merges"]]
        whole["model"]["merges"] = [" ".join(m) for m in pairs]
        json.dump(whole, open(os.path.join(work, "strings.json"), "w"))
        compare("tokenizers, merges as strings", os.path.join(work, "strings.json"), texts[:500], lambda s: t.encode(s).ids)

with open(os.path.join(work, "corpus.txt"), "w", newline="") as f:
    f.write("\n".join(corpus))
for pattern in ("gpt2", "cl100k_base", "o200k_base", "qwen"):  # what train-tokenizer writes
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
