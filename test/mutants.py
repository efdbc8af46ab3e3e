"""Reads test/mutants.txt, a list of planted faults (mutants). The file describes its format.

    mutants.py list FILE           prints name <tab> part of the tests, one mutant a line
    mutants.py check FILE          prints the mutants that do not apply; exit 1 if there are any
    mutants.py apply FILE NAME     plants the fault (the original is kept beside the file) and prints the file's path
"""
import glob
import os
import re
import shutil
import sys


def end(path, name, mutant):
    if mutant is not None and not {"old", "new"} <= mutant.keys():
        sys.exit(f"{path}: {name}: not a mutant without its line that begins with {'-' if 'old' not in mutant else '+'}")


def read(path):
    mutants, name, current = {}, None, None
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(("-", "+")) and current is None:
            sys.exit(f"{path}:{number}: a fragment before the first mutant")
        if line.startswith("- "):
            current["old"] = line[2:]
        elif line == "+" or line.startswith("+ "):
            current["new"] = line[2:]
        else:
            fields = [field.strip() for field in line.split("|")]
            if len(fields) != 4 or fields[0] in mutants:
                sys.exit(f"{path}:{number}: not a mutant: {line}")
            end(path, name, current)
            name = fields[0]
            current = mutants[name] = dict(zip(("file", "function", "part"), fields[1:]))
    end(path, name, current)
    return mutants


def bodies(text, function):
    """Returns the ranges (begin, end) of the function's definitions in the text. A definition begins at column 0. It
    ends with a } at column 0, with its line if that closes it, or, for a macro, after its last line."""
    found = []
    for match in re.finditer(rf"^(?=[A-Za-z_#]).*\b{re.escape(function)}\)?\(", text, re.M):
        opening = re.compile(r"[{;]").search(text, match.end())
        if text[match.start()] == "#":
            end = re.compile(r"(.*\\\n)*.*").match(text, match.end()).end()
        elif opening and opening.group() == "{":  # a declaration has a ; before any {
            end = text.find("\n", opening.start())
            line = text[opening.start():end]
            if line.count("{") != line.count("}"):
                end = text.find("\n}", end) + 2
        else:
            continue
        found.append((match.start(), end))
    return found


def places(mutant):
    """Returns the offsets at which the mutant's fragment is in its function; there should be one."""
    if not os.path.exists(mutant["file"]):
        return []
    text = open(mutant["file"]).read()
    spans = [(0, len(text))] if mutant["function"] == "-" else bodies(text, mutant["function"])
    at = [match.start() for match in re.finditer(re.escape(mutant["old"]), text)]
    return [place for place in at if any(begin <= place < end for begin, end in spans)]


def check(mutants):
    tests, lost = glob.glob("test/**/*.c", recursive=True) + glob.glob("test/**/test_*.sh", recursive=True), 0
    for name, mutant in mutants.items():
        count, selects = len(places(mutant)), any(mutant["part"].removesuffix(":early").split(":")[-1] in test for test in tests)
        if count != 1 or not selects:
            lost += 1
            why = f"{count} places in {mutant['function']} of {mutant['file']}" if selects else f"no test has {mutant['part']} in its path"
            print(f"does not apply: {name}: {why}")
    print(f"{len(mutants)} mutants, " + (f"{lost} do not apply" if lost else "each applies in one place"))
    return lost


def main():
    mutants = read(sys.argv[2])
    if sys.argv[1] == "list":
        for name, mutant in mutants.items():
            print(f"{name}\t{mutant['part']}")
    elif sys.argv[1] == "check":
        sys.exit(bool(check(mutants)))
    else:
        mutant = mutants[sys.argv[3]]
        at, text = places(mutant), open(mutant["file"]).read()
        if len(at) != 1:
            sys.exit(f"{sys.argv[3]}: {len(at)} places in {mutant['function']} of {mutant['file']}")
        shutil.copy2(mutant["file"], mutant["file"] + ".original")
        open(mutant["file"], "w").write(text[:at[0]] + mutant["new"] + text[at[0] + len(mutant["old"]):])
        print(mutant["file"])


main()
