"""The totals of `make soak` against their goals: test/results/soak.jsonl, and the `# goal:` line of each test/soak/*.sh. Prints a table."""
import glob
import json
import os
import re

FOLDER = os.path.dirname(os.path.abspath(__file__))


def totals():
    """For each part: (name, done, failed, goal, noun), in order of name."""
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
