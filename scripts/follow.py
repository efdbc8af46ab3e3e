#!/usr/bin/env python3
"""follow.py - sends a run's numbers to Weights & Biases or trackio, as they come.

    scripts/follow.py RUN --to wandb|trackio [--project NAME] [--name NAME] [--once]

Reads RUN/metrics.jsonl and never changes the run: any machine that sees the folder will do, while the run trains or after it.
RUN/follow.wandb.json (or follow.trackio.json) keeps what was sent, so that the same command goes on. Ctrl-C ends it.
"""
import argparse
import importlib
import json
import os
import sys
import time
import uuid

PAUSE_S = 2.0
PREFIX = {"train": "train", "eval": "val", "task": "task"}
NOT_SENT = ("kind", "step", "time", "sent", "task", "source_tokens")


def say(text):
    print(f"follow.py: {text}", file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="Sends a run's numbers to Weights & Biases or trackio.")
    parser.add_argument("run", help="the run's folder (run.dir)")
    parser.add_argument("--to", required=True, choices=["wandb", "trackio"])
    parser.add_argument("--project", default="train_gpt")
    parser.add_argument("--name", help="of the run there; default: the folder's name")
    parser.add_argument("--once", action="store_true", help="send what there is, then end")
    return parser.parse_args()


def service(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        sys.exit(f"follow.py: {name} is not installed for {sys.executable}: pip install {name}")


class State:
    """What was sent, and under which name: a file in the run's folder."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path) as f:
                self.data = json.load(f)
        except FileNotFoundError:
            self.data = {"id": uuid.uuid4().hex[:12], "train": -1, "eval": -1}
        except (OSError, ValueError) as fault:
            sys.exit(f"follow.py: cannot read {path}: {fault}; remove it to send all anew")

    def save(self):
        new = self.path + ".tmp"
        try:
            with open(new, "w") as f:
                json.dump(self.data, f)
            os.replace(new, self.path)
        except OSError as fault:
            sys.exit(f"follow.py: cannot write {self.path}: {fault}")


def whole_lines(path, offset):
    """The lines from offset on, and the offset behind them; a torn last line waits. A log that was cut is read from its start."""
    try:
        with open(path, "rb") as f:
            offset = offset if offset <= os.fstat(f.fileno()).st_size else 0
            f.seek(offset)
            text = f.read()
    except FileNotFoundError:
        return [], 0
    end = text.rfind(b"\n") + 1
    return text[:end].splitlines(), offset + end


def rows_of(lines):
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("kind") in PREFIX and isinstance(row.get("step"), int):
            yield row


def series(row):
    """What a row continues: steps of a task's scores are its own."""
    return row["kind"] if row["kind"] != "task" else f"task/{row.get('task')}"


def numbers(row):
    prefix = series(row) if row["kind"] == "task" else PREFIX[row["kind"]]
    return {f"{prefix}/{key}": value for key, value in row.items() if key not in NOT_SENT and isinstance(value, (int, float))}


def send_new(log, state, rows):
    """Steps that were sent are not sent again: neither service replaces a point. Returns how many rows went out."""
    sent = 0
    for row in rows:
        if row["step"] <= state.data.get(series(row), -1):
            continue
        log(numbers(row), step=row["step"])
        state.data[series(row)] = row["step"]
        sent += 1
    if sent:
        state.save()
    return sent


def config_of(run):
    try:
        with open(os.path.join(run, "config.json")) as f:
            return json.load(f)
    except (OSError, ValueError):
        return {}


def main():
    asked = arguments()
    if not os.path.isdir(asked.run):
        sys.exit(f"follow.py: {asked.run} is not the folder of a run")
    to = service(asked.to)
    state = State(os.path.join(asked.run, f"follow.{asked.to}.json"))
    name = asked.name or os.path.basename(os.path.abspath(asked.run))
    more = {"id": state.data["id"]} if asked.to == "wandb" else {}
    to.init(project=asked.project, name=name, config=config_of(asked.run), resume="allow", **more)
    path, offset = os.path.join(asked.run, "metrics.jsonl"), 0
    try:
        while True:
            lines, offset = whole_lines(path, offset)
            sent = send_new(to.log, state, rows_of(lines))
            if sent:
                say(f"{sent} rows of {path} sent to {asked.to}, up to step {max(state.data['train'], state.data['eval'])}")
            if asked.once:
                break
            time.sleep(PAUSE_S)
    except KeyboardInterrupt:
        say("ended; the same command goes on")
    to.finish()


if __name__ == "__main__":
    main()
