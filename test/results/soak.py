"""Prints a table of the totals of `make soak` (test/results/soak.jsonl) and their goals (the `# goal:` line of each
test/soak/*.sh).
"""
import glob
import json
import os
import re

FOLDER = os.path.dirname(os.path.abspath(__file__))


def totals():
    """Yields (name, done, failed, goal, noun) for each part of `make soak`, in order of name."""
    path, rows = os.path.join(FOLDER, "soak.jsonl"), {}
    for line in open(path) if os.path.exists(path) else []:
        row = json.loads(line)
        done = rows.setdefault(row["part"], [0, 0])
        done[0] += row["count"]
        done[1] += row["failed"]
    for script in sorted(glob.glob(os.path.join(FOLDER, "..", "soak", "*.sh"))):
        goal = re.search(r"^# goal: (\d+) (.+)$", open(script).read(), re.M)
        if goal:
            name = os.path.basename(script)[:-3]
            yield (name, *rows.get(name, [0, 0]), int(goal[1]), goal[2])


if __name__ == "__main__":
    for name, done, failed, goal, what in totals():
        print(f"{name:16} {done:>13,} of {goal:>13,} {what:24} {failed} failed")
