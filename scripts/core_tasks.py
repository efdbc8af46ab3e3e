#!/usr/bin/env python3
"""Makes tasks for `./train_gpt eval` from nanochat's evaluation bundle, with its few-shot prompts.

    scripts/core_tasks.py BUNDLE OUT [N]

BUNDLE is the unpacked folder: core.yaml, eval_meta_data.csv, eval_data/. OUT gets a JSONL file for each task of
core.yaml. With N each file has only the first N questions, as with nanochat's --max-per-task. Needs PyYAML (Debian:
python3-yaml). docs/evaluation.md says how eval scores them.
"""
import csv
import json
import os
import random
import sys

from run_files import EXIT_CONFIG, EXIT_DATA, EXIT_IO, Stop, fault_of, run_script, say, write_file

# Random seeds that nanochat's evaluation uses: SHUFFLE_SEED for the order of the questions, SHOTS_SEED + n for the
# examples of question n
SHUFFLE_SEED, SHOTS_SEED = 1337, 1234


def stop(code, text):
    raise Stop(code, text)


def read_questions(path):
    with open(path, "rb") as file:
        lines = [line.strip() for line in file]
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            stop(EXIT_DATA, f"{path}:{number}: {error}")


def examples_of(questions, index, shots):
    """Returns the few-shot examples of a question: other questions of its task, drawn as nanochat draws them."""
    others = [i for i in range(len(questions)) if i != index]
    if shots > len(others):
        raise ValueError(f"{shots} examples are asked for, and there are {len(others)} other questions")
    return [questions[i] for i in random.Random(SHOTS_SEED + index).sample(others, shots)]


def choice_line(item, shots, delimiter):
    before = "".join(f"{e['query']}{delimiter}{e['choices'][e['gold']]}\n\n" for e in shots)
    return {"context": f"{before}{item['query']}", "delimiter": delimiter, "choices": [str(choice) for choice in item["choices"]],
            "gold": item["gold"]}


def schema_line(item, shots, delimiter):
    before = "".join(f"{e['context_options'][e['gold']]}{delimiter}{e['continuation']}\n\n" for e in shots)
    return {"contexts": [f"{before}{context}" for context in item["context_options"]], "delimiter": delimiter,
            "continuation": str(item["continuation"]), "gold": item["gold"]}


def continuation_line(item, shots, delimiter):
    """Returns the line of a question with a continuation. The prompt loses white space at both ends. White space at
    its end becomes the beginning of the continuation."""
    before = "".join(f"{str(e['context']).strip()}{delimiter}{e['continuation']}\n\n" for e in shots)
    prompt = f"{before}{str(item['context']).strip()}{delimiter}"
    whole, context = f"{prompt}{item['continuation']}", prompt.strip()
    if not whole.startswith(context):
        raise ValueError("the prompt begins with white space")
    return {"context": context, "continuation": whole[len(context):]}


LINES = {"multiple_choice": choice_line, "schema": schema_line, "language_modeling": continuation_line}


def read_tasks(bundle):
    try:
        import yaml
    except ImportError:
        stop(EXIT_CONFIG, "PyYAML reads core.yaml, and is not installed (Debian: apt install python3-yaml)")
    with open(os.path.join(bundle, "core.yaml"), encoding="utf-8") as file:
        try:
            tasks = yaml.safe_load(file)["icl_tasks"]
        except (yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError) as error:
            stop(EXIT_DATA, f"{bundle}/core.yaml holds no icl_tasks: {error}")
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        stop(EXIT_DATA, f"{bundle}/core.yaml: icl_tasks is not a list of tasks")
    return tasks


def read_baselines(bundle):
    """Returns the score that guessing gives in each task, in percent."""
    path = os.path.join(bundle, "eval_meta_data.csv")
    with open(path, encoding="utf-8", newline="") as file:
        try:
            return {row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(file)}
        except (KeyError, ValueError, TypeError, csv.Error) as error:
            stop(EXIT_DATA, f"{path}: the columns \"Eval Task\" and \"Random baseline\" are expected: {error}")


def write_task(task, bundle, out, baselines, most):
    """Writes the file of one task. Returns its path and number of questions."""
    label, delimiter = task["label"], task.get("continuation_delimiter", " ")
    if not isinstance(label, str) or "/" in label or label.startswith("."):
        raise ValueError(f"the label {label} cannot name a file")
    line_of, shots = LINES[task["icl_task_type"]], task["num_fewshot"][0]
    questions = list(read_questions(os.path.join(bundle, "eval_data", task["dataset_uri"])))
    random.Random(SHUFFLE_SEED).shuffle(questions)
    questions = questions[:most]
    path, lines = os.path.join(out, label + ".jsonl"), [{"task": label, "method": "core", "baseline": round(0.01 * baselines[label], 12)}]
    for index, item in enumerate(questions):
        try:
            lines.append(line_of(item, examples_of(questions, index, shots), delimiter))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"question {index} of {task['dataset_uri']}, shuffled, lacks {error}") from error
    write_file(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path, len(questions)


def main(arguments):
    if len(arguments) not in (2, 3) or (len(arguments) == 3 and not arguments[2].isdecimal()):
        stop(EXIT_CONFIG, "usage: scripts/core_tasks.py BUNDLE OUT [N]")
    bundle, out = arguments[:2]
    most = int(arguments[2]) if len(arguments) == 3 else None
    paths = []
    try:
        tasks, baselines = read_tasks(bundle), read_baselines(bundle)
        os.makedirs(out, exist_ok=True)
        for task in tasks:
            label = task.get("label", "a task without a label")
            try:
                path, count = write_task(task, bundle, out, baselines, most)
            except KeyError as error:
                stop(EXIT_DATA, f"{label}: no {error} is known")
            except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
                stop(EXIT_DATA, f"{label}: {error}")
            say(f"{path}: {count} questions, {task['num_fewshot'][0]} examples each")
            paths.append(path)
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
        stop(EXIT_DATA if missing else EXIT_IO, fault_of(error))
    say(f"\n./train_gpt eval RUN data= tasks={','.join(paths)}")
    return 0


if __name__ == "__main__":
    run_script("core_tasks.py", lambda: main(sys.argv[1:]))
