"""check_tensorboard.py WHOLE RESUMED: checks that TensorBoard's EventAccumulator finds exactly the numbers of
RUN/metrics.jsonl in RUN/tb, and that trackio imports those of WHOLE, a run that was not interrupted.
"""
import glob
import json
import math
import os
import sys

TAGS = {"train": {"loss": "train/loss", "lr": "train/lr", "grad_norm": "train/grad_norm", "tokens_per_s": "train/tokens_per_s", "mfu": "train/mfu"},
        "eval": {"loss": "val/loss", "bpb": "val/bpb"}}


def logged(run):
    points = {}
    for line in open(f"{run}/metrics.jsonl"):
        row = json.loads(line)
        for key, tag in TAGS.get(row["kind"], {}).items():
            if row[key] is not None:
                points.setdefault(tag, []).append((row["step"], row[key], row["time"]))
    return points


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-30)


def check_accumulator(run, files):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    found = len(glob.glob(f"{run}/tb/events.out.tfevents.*"))
    assert found == files, f"{run}: {found} event files, {files} expected"
    board = EventAccumulator(f"{run}/tb", size_guidance={"scalars": 0})
    board.Reload()
    points = logged(run)
    assert set(board.Tags()["scalars"]) == set(points), (board.Tags(), set(points))
    for tag, rows in points.items():
        seen = board.Scalars(tag)
        assert [e.step for e in seen] == [r[0] for r in rows], f"{run}, {tag}: steps {[e.step for e in seen]}"
        for e, (step, value, time) in zip(seen, rows):
            assert near(e.value, value) and abs(e.wall_time - time) < 1e-3, f"{run}, {tag}, step {step}: {e} against {value} at {time}"
    return sum(len(rows) for rows in points.values())


def check_trackio(run):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage
    trackio.import_tf_events(f"{run}/tb", project="check")
    (name,) = SQLiteStorage.get_runs("check")
    rows = SQLiteStorage.get_logs("check", name)
    losses = sorted((r["step"], r["train/loss"]) for r in rows if "train/loss" in r)
    expected = [(step, value) for step, value, _ in logged(run)["train/loss"]]
    assert len(losses) == len(expected) and all(a[0] == b[0] and near(a[1], b[1]) for a, b in zip(losses, expected)), losses
    return len(rows)


whole, resumed = sys.argv[1:3]
print(f"ok TensorBoard reads {check_accumulator(whole, 1)} numbers of a whole run")
print(f"ok TensorBoard reads {check_accumulator(resumed, 2)} numbers of a resumed one, without those that it lost")
print(f"ok trackio imports {check_trackio(whole)}")
os._exit(0)  # ends without waiting for trackio's threads, which may still run
