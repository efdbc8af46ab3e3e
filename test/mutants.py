"""Reads test/mutants.txt: blocks of `name | file | part of the suite`, then the line as it is (-) and as it becomes (+).

    mutants.py list FILE           name <tab> part, one a line
    mutants.py check FILE          names those that no longer apply; exit 1 if there are any
    mutants.py apply FILE NAME     plants it (the original is kept beside the file) and prints the file's path
"""
import shutil
import sys


def read(path):
    mutants, current = {}, None
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("- "):
            current["old"] = line[2:]
        elif line.startswith("+ "):
            current["new"] = line[2:]
        elif line == "+":
            current["new"] = ""
        else:
            fields = [field.strip() for field in line.split("|")]
            if len(fields) != 3 or fields[0] in mutants:
                sys.exit(f"{path}:{number}: not a mutant: {line}")
            current = mutants[fields[0]] = {"file": fields[1], "part": fields[2]}
    return mutants


def applies(mutant):
    try:
        return open(mutant["file"]).read().count(mutant["old"]) == 1
    except OSError:
        return False


def main():
    mutants = read(sys.argv[2])
    if sys.argv[1] == "list":
        for name, mutant in mutants.items():
            print(f"{name}\t{mutant['part']}")
        return
    if sys.argv[1] == "check":
        lost = [name for name, mutant in mutants.items() if not applies(mutant)]
        for name in lost:
            print(f"no longer applies: {name} ({mutants[name]['file']})")
        print(f"{len(mutants) - len(lost)} of {len(mutants)} mutants apply")
        sys.exit(bool(lost))
    mutant = mutants[sys.argv[3]]
    source = open(mutant["file"]).read()
    if source.count(mutant["old"]) != 1:
        sys.exit(f"{sys.argv[3]}: {source.count(mutant['old'])} places in {mutant['file']}")
    shutil.copy2(mutant["file"], mutant["file"] + ".original")
    open(mutant["file"], "w").write(source.replace(mutant["old"], mutant["new"]))
    print(mutant["file"])


main()
