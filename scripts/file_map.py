#!/usr/bin/env python3
"""Prints the file map: a table for each folder, one row for each name, from the first sentence of each file's first comment.

    file_map.py                  prints it
    file_map.py FILE             rewrites the part of FILE between the markers
    file_map.py --check FILE     fails when that part differs

Folders come from git ls-files, so that a file that moves needs no edit here. A source that git does not track is named on stderr and left
out. test/ is left out: test/README.md describes it.
"""
import os
import re
import subprocess
import sys

BEGIN, END = "<!-- map: made by scripts/file_map.py -->", "<!-- end of map -->"
FIRST = ["", "core", "layers", "comm", "data", "model", "run", "run/config", "run/checkpoint", "run/guard", "run/outer", "run/text", "run/log", "run/plan", "run/verbs"]  # others follow by name
KINDS = [".h", ".c", ".cu", ".cuh", ".sh", ".py", ".sbatch", ".mk"]  # in this order
LEFT_OUT = ("test/",)


def comment(path):
    """The first paragraph of a file's first comment, in one line; "" where there is none."""
    text = open(path, encoding="utf-8").read()
    if path.endswith((".h", ".c", ".cu", ".cuh")):
        found = re.match(r"\s*/\*(.*?)\*/", text, re.S)
        lines = [re.sub(r"^ \* ?", "", line) for line in found[1].splitlines()] if found else []
    elif path.endswith(".py"):
        found = re.search(r'"""(.*?)"""', text, re.S)
        lines = found[1].splitlines() if found else []
    else:
        lines = []
        for line in text.splitlines():
            if line.startswith(("#!", "# shellcheck")):
                continue
            if not line.startswith("#"):
                break
            lines.append(line[1:])
    words = []
    for line in lines:
        line = line.strip().rstrip("*").strip()
        if not line and words or words and line.startswith(("scripts/", "file_map.py")):
            break
        words.append(line)
    return " ".join(words).strip()


def sentence(path):
    """The first sentence of a file's first comment. Files that begin "see X.h" only name another one: ""."""
    name, text = os.path.basename(path), comment(path)
    text = re.sub(rf"^({re.escape(name)}|{re.escape(name.split('.')[0])}) - ", "", text)
    if re.match(r"see \S+\.(h|cuh)\b", text) and os.path.exists(os.path.splitext(path)[0] + ".h"):
        return ""
    text = re.sub(r"^see \S+\.(h|cuh): ", "", text)
    return re.split(r"(?<=[^.][.])\s+(?=[A-Z`(])", text)[0].rstrip(".:")


def capital(text):
    return text[0].upper() + text[1:] if re.match(r"(a|[a-z][a-z-]+)[ ,:]", text) and not text.startswith("make ") else text


def sources(*options):
    listed = subprocess.run(["git", "ls-files", *options], capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for path in listed if os.path.splitext(path)[1] in KINDS and not path.startswith(LEFT_OUT) and os.path.exists(path)]


def folders():
    found = {}
    for path in sources():
        stem, kind = os.path.splitext(path)
        found.setdefault(os.path.dirname(path), {}).setdefault(os.path.basename(stem), []).append(kind)
    return {name: found[name] for name in [f for f in FIRST if f in found] + sorted(f for f in found if f not in FIRST)}


def rows(folder, stem, kinds):
    """(kinds, text) a row. A file that only names another joins the row before it; the CPU's and CUDA's sides of an op share a row."""
    found, silent = [], []
    for kind in sorted(kinds, key=KINDS.index):
        text = sentence(os.path.join(folder, stem + kind))
        side = re.sub(r"^(the )?(CPU|CUDA) side of ", "", text, flags=re.I)
        if not text and not found:
            silent.append(kind)
        elif not text or side != text and found:
            found[-1][0].append(kind)
        else:
            found.append((silent + [kind], side if {".c", ".cu"} <= set(kinds) else text))
    if not found:
        sys.exit(f"the first comment of {os.path.join(folder, stem + silent[0])} does not say what it is")
    return found


def file_map():
    out = []
    for folder, stems in folders().items():
        out += ["", f"### {folder}/" if folder else "### At the top", "", "| file | content |", "|---|---|"]
        for stem, kinds in sorted(stems.items()):
            for some, text in rows(folder, stem, kinds):
                out.append(f"| `{stem}{' '.join(some)}` | {capital(text).replace('|', chr(92) + '|')} |")
    return "\n".join(out) + "\n"


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    untracked = sources("--others", "--exclude-standard")
    if untracked:
        print(f"file_map: not in the map, since git does not track them: {', '.join(untracked)}. "
              "Type git add for those that belong to the program, then run this again.", file=sys.stderr)
    made = file_map()
    if len(sys.argv) == 1:
        print(made)
        return
    path = sys.argv[-1]
    text = open(path, encoding="utf-8").read()
    head, rest = text.split(BEGIN)
    new = head + BEGIN + "\n" + made + "\n" + END + rest.split(END)[1]
    if sys.argv[1] != "--check":
        open(path, "w", encoding="utf-8").write(new)
    elif new != text:
        sys.exit(f"{path} differs from the files' first lines: run python3 scripts/file_map.py {path}")
    else:
        print(f"{path} lists {made.count(chr(10) + '| `')} files as their first comments describe them")


main()
