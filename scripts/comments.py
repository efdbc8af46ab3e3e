#!/usr/bin/env python3
"""Comments of the tree, for a reader who judges them, and a count of those that begin without a subject.

    comments.py --sample N SEED [PATH...]    prints N comments drawn at random, each with its place and the line it belongs to
    comments.py --messages N SEED [PATH...]  prints N messages to users drawn at random, each with its place and the call that prints it
    comments.py --count [PATH...]            prints comments that begin with a forbidden word, and their number; fails if there is one

PATH: files or folders; without one, all C, CUDA, Python and shell sources and the Makefile. A comment that goes on over several lines is one.
"""
import random
import re
import subprocess
import sys

FORBIDDEN = re.compile(r"(of|that|the same|else|as|its|their|these|whether)\b", re.IGNORECASE)
C_ENDINGS = (".c", ".h", ".cu", ".cuh", ".cpp")
HASH_ENDINGS = (".py", ".sh", ".mk", ".sbatch", "Makefile")
C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def declaration(code):
    """Returns the declaration or statement at the start of the code, up to its first ; or {, and at least two lines."""
    lines = code.split("\n")
    for end in range(2, min(8, len(lines))):
        if re.search("[;{]", "".join(lines[:end])):
            return " ".join(line.strip() for line in lines[:end])
    return " ".join(line.strip() for line in lines[:8]).strip()


def c_comments(text):
    """Yields (line, words, code) for each comment: its line, its words, and the code on its line. If there is none,
    code is on the next two lines."""
    for token in C_TOKEN.finditer(text):
        if token.group()[0] != "/":
            continue
        words = re.sub(r"\n\s*\*? ?", " ", token.group()[2:].removesuffix("*/")).strip(" *")
        begin = text.rfind("\n", 0, token.start()) + 1
        code = text[begin:token.start()].strip()
        if not code:
            code = declaration(text[token.end():].lstrip("\n"))
        yield line_of(text, token.start()), words, code


def hash_comments(text):
    """Yields (line, words, code) for each comment that begins with #. Adjacent lines of comments are one comment."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        whole = re.match(r"\s*#(?!!)\s?(.*)", lines[at])
        if whole:
            first, words = at, []
            while at < len(lines) and (more := re.match(r"\s*#(?!!)\s?(.*)", lines[at])):
                words.append(more.group(1).strip())
                at += 1
            yield first + 1, " ".join(words).strip(), lines[at].strip() if at < len(lines) else ""
            continue
        behind = re.match(r"([^\"'#$\\]+?)\s+#\s(.*)", lines[at])
        if behind:
            yield at + 1, behind.group(2).strip(), behind.group(1).strip()
        at += 1


def listed(paths):
    return subprocess.run(["git", "ls-files", "--", *paths], check=True, capture_output=True, text=True).stdout.split("\n")


def comments(paths):
    for path in listed(paths):
        read = c_comments if path.endswith(C_ENDINGS) else hash_comments if path.endswith(HASH_ENDINGS) else None
        if not read:
            continue
        with open(path, encoding="utf-8") as file:
            for line, words, code in read(file.read()):
                if re.search("[a-z]{2}", words) and not re.match(r"-{2,}|={2,}|shellcheck|clang-format|NOLINT|cppcheck", words):
                    yield path, line, words, code


def messages(paths):
    """Yields (path, line, call) for each call outside tests, in C and CUDA, that passes a sentence for the user."""
    for path in listed(paths):
        if not path.endswith(C_ENDINGS) or path.startswith("test/"):
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for call in re.finditer(r"\b(?:fail|warn|progress_note|give_up|verb_misused|\w*refuse\w*|REFUSE|\w*faults?_\w+|FAULT|damaged)\(", text):
            end, depth = call.end(), 1
            while depth and end < len(text):
                token = C_TOKEN.match(text, end)
                depth += 0 if token else {"(": 1, ")": -1}.get(text[end], 0)
                end = token.end() if token else end + 1
            if re.search(r'"[^"]*[a-z]+ [^"]*[a-z]+ [^"]*[a-z]', whole := text[call.start():end]):
                yield path, line_of(text, call.start()), re.sub(r"\s+", " ", re.sub(r'"\s+"', "", whole))


def main(arguments):
    if arguments[:1] == ["--sample"] and len(arguments) >= 3:
        found = sorted(comments(arguments[3:]))
        for path, line, words, code in random.Random(arguments[2]).sample(found, min(int(arguments[1]), len(found))):
            print(f"{path}:{line}\n    {code}\n    -- {words}\n")
    elif arguments[:1] == ["--messages"] and len(arguments) >= 3:
        found = sorted(messages(arguments[3:]))
        for path, line, call in random.Random(arguments[2]).sample(found, min(int(arguments[1]), len(found))):
            print(f"{path}:{line}\n    {call}\n")
    elif arguments[:1] == ["--count"]:
        bad = [one for one in comments(arguments[1:]) if FORBIDDEN.match(one[2])]
        for path, line, words, _ in bad:
            print(f"{path}:{line}: {words[:100]}")
        print(f"comments: {len(bad)} begin without their subject")
        return bool(bad)
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
