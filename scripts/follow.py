#!/usr/bin/env python3
"""follow.py - sends the numbers of a run to Weights & Biases or trackio, as the run writes them.

    scripts/follow.py RUN --to wandb|trackio [--project NAME] [--name NAME] [--once]

Reads RUN/metrics.jsonl and never changes the run. It works on any machine that sees the folder, during the run or after
it. RUN/follow.wandb.json (or follow.trackio.json) keeps what was sent, so that the same command continues. Ctrl-C ends
it. Exit codes: 0 done, or ended by Ctrl-C, 64 a fault in the options, 65 a damaged file, 69 the service is not
installed or refuses the numbers, 74 I/O, 75 stopped before it began, or by a second Ctrl-C.
"""
# run_files is imported first, because from then on Ctrl-C ends the script with exit code 75, also while Python loads
# the rest.
# pylint: disable=wrong-import-order
from run_files import (
    EXIT_CONFIG,
    EXIT_DATA,
    EXIT_MISSING,
    EXIT_STOPPED,
    MOST_BYTES,
    Stop,
    is_number,
    open_regular,
    parse_json,
    plain,
    read_json,
    rows_of,
    run_script,
    write_file,
)

import argparse
import importlib
import json
import os
import signal
import sys
import time
import uuid

PAUSE_S = 2.0
PREFIX = {"train": "train", "eval": "val", "task": "task"}
NOT_SENT = ("kind", "step", "time", "sent", "task", "source_tokens")


def say(text):
    print(f"follow.py: {plain(text)}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """A parser of the command line that ends with exit code 64 after a fault, as all programs here do."""

    def error(self, message):
        raise Stop(EXIT_CONFIG, f"{message}; {self.prog} --help has the options")


def arguments():
    parser = Parser(description="Sends a run's numbers to Weights & Biases or trackio.")
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
        raise Stop(EXIT_MISSING, f"{name} is not installed for {sys.executable}: pip install {name}") from None
    except Exception as fault:  # pylint: disable=broad-exception-caught
        raise Stop(EXIT_MISSING, f"{name} cannot be loaded: {fault}: pip install --upgrade {name}") from fault


class State:
    """A file in the run's folder: the last step that was sent of each series, and the id of the run at the service."""

    def __init__(self, path):
        self.path = path
        cure = "remove it to send all anew"
        self.data = read_json(path, cure)
        if self.data is None:
            self.data = {"id": uuid.uuid4().hex[:12], "train": -1, "eval": -1}
        steps = [value for key, value in self.data.items() if key != "id"]
        whole = {"train", "eval"} <= set(self.data) and isinstance(self.data.get("id"), str)
        if not whole or not all(is_number(step, whole=True) for step in steps):
            raise Stop(EXIT_DATA, f"{path}: damaged: an id and the steps that were sent are expected; {cure}")

    def save(self):
        write_file(self.path, json.dumps(self.data))


def new_rows(path, offset):
    """Returns the rows of metrics.jsonl from `offset` on, and the offset after them. Leaves an incomplete last line
    for the next call. A log that is shorter than `offset` is read from its start."""
    try:
        with open(open_regular(path), "rb") as f:
            f.seek(offset if offset <= os.fstat(f.fileno()).st_size else 0)
            offset, rows = f.tell(), []
            for row, offset in rows_of(f):
                if row["kind"] in PREFIX:
                    rows.append(row)
            return rows, offset
    except FileNotFoundError:
        return [], 0


def series(row):
    """Returns the name of the series that a row belongs to: its kind, or a task, whose steps are counted apart."""
    return row["kind"] if row["kind"] != "task" else f"task/{row.get('task')}"


def numbers(row):
    prefix = series(row) if row["kind"] == "task" else PREFIX[row["kind"]]
    return {f"{prefix}/{key}": value for key, value in row.items() if key not in NOT_SENT and is_number(value)}


def send_new(log, state, rows):
    """Sends the rows whose steps were not sent yet, because neither service replaces a point. log: function that
    sends one row. Returns the number of rows sent."""
    sent = 0
    try:
        for row in rows:
            if row["step"] <= state.data.get(series(row), -1):
                continue
            log(numbers(row), step=row["step"])
            state.data[series(row)] = row["step"]
            sent += 1
    finally:
        if sent:
            state.save()
    return sent


def config_of(run):
    try:
        with open(open_regular(os.path.join(run, "config.json")), "rb") as f:
            return parse_json(f.read(MOST_BYTES + 1))
    except (OSError, ValueError):
        return {}


def asking(name, call, /, *words, **more):
    """Calls a function of the service. An exception ends the script with a message that names the service. The rows
    sent until then are noted in the state."""
    try:
        return call(*words, **more)
    except Exception as fault:  # pylint: disable=broad-exception-caught
        text = " ".join(str(fault).split()) or type(fault).__name__
        raise Stop(EXIT_MISSING, f"{name} takes no numbers: {text}; the same command goes on when that is mended") from fault


def main():
    asked = arguments()
    if not os.path.isdir(asked.run):
        raise Stop(EXIT_CONFIG, f"{asked.run} is not the folder of a run")
    to = service(asked.to)
    state = State(os.path.join(asked.run, f"follow.{asked.to}.json"))
    name = asked.name or os.path.basename(os.path.abspath(asked.run))
    more = {"id": state.data["id"]} if asked.to == "wandb" else {}
    asking(asked.to, to.init, project=asked.project, name=name, config=config_of(asked.run), resume="allow", **more)
    path, offset = os.path.join(asked.run, "metrics.jsonl"), 0
    stopped = []

    def stop(*_):
        """Handles Ctrl-C and TERM. The first one lets the script send and note the rows that it is sending. The
        second one ends it at once."""
        if stopped:
            raise Stop(EXIT_STOPPED, "ended at once: the same command goes on, and may send one row again")
        stopped.append(True)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    while not stopped:
        rows, offset = new_rows(path, offset)
        sent = send_new(lambda *row, **at: asking(asked.to, to.log, *row, **at), state, rows)
        if sent:
            say(f"{sent} rows of {path} sent to {asked.to}, up to step {max(state.data['train'], state.data['eval'])}")
        if asked.once:
            break
        for _ in range(20):
            if not stopped:
                time.sleep(PAUSE_S / 20)
    if stopped:
        say("ended; the same command goes on")
    asking(asked.to, to.finish)
    return 0


if __name__ == "__main__":
    run_script("follow.py", main)
