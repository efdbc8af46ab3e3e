"""make test-docs: tries every command of README.md and docs/, in a folder of its own for each page. Checks that every
option and link that the pages name exists.

    check_docs.py PROGRAM [PAGE...]

A command is an indented line that begins with ./train_gpt, mpirun, make, sbatch or scripts/. Training runs for a few
steps. A command that needs more ranks than these two cores, a GPU, SLURM or the network is only planned or checked, and
the printed line says so. Prints ok or not ok for each.
"""
import array
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHORT = ["run.steps=4", "eval.every=2", "eval.tokens=2048", "sample.every=0", "checkpoint.every=0"]
RUNS = ("runs/mine", "runs/other", "runs/demo", "runs/a", "runs/b")
STEP = "step_00000004"
SEEN = {"failed": 0}


def tell(good, name, why=""):
    print("ok" if good else "not ok", name + ("" if good else ": " + why.strip()[-300:]))
    SEEN["failed"] += not good


def commands(page):
    """Yields the indented command lines of a page. A line that ends in a backslash is joined with the next."""
    line = ""
    for raw in open(page):
        if not raw.startswith("    ") and not line:
            continue
        line += raw.strip()
        if line.endswith("\\"):
            line = line[:-1] + " "
            continue
        line = re.sub(r"\s+#.*", "", line).strip()
        if re.match(r"(\./train_gpt|mpirun|make|sbatch|scripts/)\b", line):
            yield line
        line = ""


def workplace(program):
    """Makes a folder with what the commands of the pages use: texts, a config, GPT-2's tokenizer by name, and short
    runs. Returns its path."""
    folder = tempfile.mkdtemp(prefix="docs.")
    os.symlink(os.path.abspath(program), folder + "/train_gpt")
    for name in ("configs", "scripts"):
        os.symlink(os.path.join(TREE, name), os.path.join(folder, name))
    words = "once upon a time the quick brown fox was told of rain and stone and river by the old king".split()
    with open(folder + "/book.txt", "w") as book:
        for i in range(60000):
            book.write(words[(i * 7 + i // 5 * 3 + i // 77) % len(words)] + (".\n" if i % 11 == 10 else " "))
    for name in ("mytext.txt", "more.txt", "TEXT"):
        shutil.copy(folder + "/book.txt", os.path.join(folder, name))
    os.mkdir(folder + "/downloads")
    for name, content in (("a.jsonl.gz", gzip.compress(b'{"text": "once upon a time, in a row"}\n' * 1000)), ("old.txt", "an old text\n".encode("utf-16")),
                          ("README.md", b"# downloads\n"), ("cover.png", b"\x89PNG\r\n\x1a\n")):
        with open(f"{folder}/downloads/{name}", "wb") as out:
            out.write(content)
    run = lambda words: subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=300)
    run(["./train_gpt", "tokenize", "book.txt", "out=datasets/my", "val=0.05"])
    run(["./train_gpt", "tokenize", "book.txt", "out=datasets/demo", "val=0.05"])
    run(["./train_gpt", "train-tokenizer", "book.txt", "out=gpt2", "vocab_size=400"])
    config = {"run": {"steps": 4, "dir": "runs/config"}, "model": {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 256, "vocab_size": 256},
              "data": {"train": "datasets/my/train*", "val": "datasets/my/val*"}, "batch": {"global_tokens": 16384, "micro_batch": 2}}
    json.dump(config, open(folder + "/config.json", "w"))
    for name in RUNS:
        run(["./train_gpt", "config.json", "run.dir=" + name, "eval.every=2", "eval.tokens=2048", f"run.seed={len(name)}"])
    for name in ("model", "a", "b"):
        of = "b" if name == "b" else "a"
        os.symlink(f"{folder}/runs/{of}/checkpoints/{STEP}/model.safetensors", f"{folder}/{name}.safetensors")
    make_tasks(folder)
    return folder


def make_tasks(folder):
    """Writes two questions as JSON Lines, and in llm.c's form of HellaSwag. This form has a header; then for each
    question start, bytes, index, label, completions, and each text."""
    lines = [{"context": "the old", "choices": [" king", " rain", " fox", " stone"], "gold": i % 4} for i in range(2)]
    os.mkdir(folder + "/core")
    for name in ("mine.jsonl", "arc_easy.jsonl", "core/pick.jsonl", "core/who.jsonl"):
        with open(os.path.join(folder, name), "w") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    words = array.array("H")
    for i, line in enumerate(lines):
        texts = [line["context"].encode()] + [choice.encode() for choice in line["choices"]]
        body = [x for text in texts for x in [len(text), *text]]
        words.extend([65535, 2 * (5 + len(body)), i, line["gold"], 4, *body])
    with open(folder + "/hellaswag_val.bin", "wb") as out:
        out.write(array.array("i", [20240522, 1, len(lines), 200] + [0] * 252).tobytes() + words.tobytes())


def attempt(line):
    """Returns the shell command to run for a command line of a page, and a word for what is done instead, such as
    (planned)."""
    env = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    served = re.search(r"\./train_gpt (?:serve )?(\S+\.json .*outer\.server=.*)", line)
    if served:  # a server and its islands (training jobs) wait for each other, so their commands run at once
        return "./train_gpt plan " + re.sub(r" part=\S+", "", served[1]) + (" cluster=dgx-h100" if "124m" in line else ""), " (planned)"
    match = re.match(r"mpirun.*? -np (\d+).*?\./train_gpt (.*)", line)
    if match and int(match[1]) <= 4 and "124m" not in match[2]:
        return env + f"mpirun --oversubscribe -np {match[1]} ./train_gpt {match[2]} " + " ".join(SHORT[:1] + SHORT[2:]), ""
    if match:
        words = match[2].split()
        return f"./train_gpt plan {' '.join(words)} ranks={match[1]} cluster=dgx-h100", " (planned)"
    if line.startswith("mpirun"):
        return None, " (not understood)"
    if line.startswith("sbatch"):
        config = re.search(r"\S+\.json.*", line)
        return "bash -n scripts/train.sbatch && ./train_gpt check " + re.sub(r"\S*%a\S*", "", config[0]), " (checked)"
    if line.startswith("make"):
        return f"make -n -C {TREE} {line[5:].split('&&')[0]}", " (dry)"
    if line.startswith("scripts/"):
        script = line.split()[0]
        return ("bash -n " if script.endswith(".sh") else "python3 -m py_compile ") + script, " (parsed)"
    if "step_00000400" in line:
        command, _ = attempt(line.replace("step_00000400", STEP))
        return command, " (of step 4)"
    if line.startswith("./train_gpt diff "):
        return line + "; [ $? -le 1 ]", ""  # status 1 only says that the two differ
    if re.match(r"\./train_gpt (\S+\.json|runs/\S+)( |$)", line):
        if "124m" in line:
            return line.replace("./train_gpt ", "./train_gpt plan ", 1) + " cluster=dgx-h100", " (planned)"
        return line + " " + " ".join(SHORT if ".json" in line else []), ""
    return line, ""


def try_page(page, program):
    folder, prepared = workplace(program), list(RUNS)
    for line in dict.fromkeys(commands(page)):
        command, word = attempt(line)
        # removes a prepared run before a command of the page makes a run in that folder
        for made in re.findall(r"\.json.*run\.dir=(\S+)", line) or ["runs/mine"] * line.startswith("./train_gpt configs/own.json"):
            if made in prepared:
                prepared.remove(made)
                shutil.rmtree(os.path.join(folder, made))
        try:
            done = subprocess.run(command or "false", shell=True, cwd=folder, timeout=600, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, executable="/bin/bash")
            tell(done.returncode == 0, os.path.basename(page) + ": " + line + word, f"exit {done.returncode}: {done.stdout}")
        except subprocess.TimeoutExpired:
            tell(False, os.path.basename(page) + ": " + line + word, "no end after 600 s")
    shutil.rmtree(folder)


def options_of(schema):
    names = {f"{section}.{key}" for section, content in schema["properties"].items() for key in content.get("properties", {})}
    for cluster in os.listdir(TREE + "/configs/clusters"):  # clusters: the pages also name keys of these files
        content = json.load(open(f"{TREE}/configs/clusters/{cluster}"))
        names |= {f"{section}.{key}" for section, inner in content.items() if isinstance(inner, dict) for key in inner}
    return names


def check_names(page, options):
    text = open(page).read()
    sections = {name.split(".")[0] for name in options}
    for name in sorted(set(re.findall(r"`([a-z]+\.[a-z_]+)(?:=[^`]*)?`", text))):
        if name.split(".")[0] in sections and not re.search(r"\.(json|c|h|cu|sh|py|mk|md|bin|svg|txt|safetensors)$", name):
            tell(name in options, f"{os.path.basename(page)}: the option {name}", "there is none")
    for link in sorted(set(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text))):
        tell(os.path.exists(os.path.join(os.path.dirname(page), link)), f"{os.path.basename(page)}: the link {link}", "names no file")


def main():
    program, pages = sys.argv[1], sys.argv[2:]
    if not pages:
        pages = [TREE + "/README.md"] + sorted(TREE + "/docs/" + name for name in os.listdir(TREE + "/docs") if name.endswith(".md"))
    options = options_of(json.load(open(TREE + "/configs/train_gpt.schema.json")))
    for page in pages:
        check_names(page, options)
        try_page(page, program)
    print("failed:", SEEN["failed"])
    return SEEN["failed"] > 0


sys.exit(main())
