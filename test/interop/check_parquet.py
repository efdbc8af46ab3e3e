"""Compares rows that the program's reader of parquet files gives with those that pyarrow wrote: 10,000 random texts in
each of FILES files. A file in a form that the program refuses is read after the command of the message was run.

  check_parquet.py DUMP_PARQUET WORK     prints "ok ..." or "not ok ..."; exit status 1 after "not ok"
"""
import os, random, re, subprocess, sys

import pyarrow as pa
import pyarrow.parquet as pq

dump, work = sys.argv[1], sys.argv[2]
FILES, ROWS = 40, 10000
rng = random.Random(14)
bad = []


def text():
    kind = rng.random()
    if kind < 0.1:
        return ""
    first, last = rng.choice([(0, 0x7F), (0, 0x7FF), (0x4E00, 0x9FFF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)])
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 2000 if kind > 0.995 else 40)))


def rows_of(path):
    data = subprocess.run([dump, path, "text"], stdout=subprocess.PIPE, check=True).stdout
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        count = int(data[at:end])
        at = end + 1 + max(count, 0)
        yield None if count < 0 else data[end + 1:at]


for i in range(FILES):
    nulls, distinct = rng.choice([0, 0, 0.01, 0.5, 1]), rng.choice([1, 2, 300, ROWS])
    some = [text() for _ in range(distinct)]
    rows = [None if rng.random() < nulls else rng.choice(some) for _ in range(ROWS)]
    codecs = ["none", "snappy", "gzip", "zstd"]
    options = {
        "compression": codecs[i % 4], "data_page_version": rng.choice(["1.0", "2.0"]), "use_dictionary": rng.random() < 0.6,
        "dictionary_pagesize_limit": rng.choice([1 << 10, 1 << 16, 1 << 20]), "data_page_size": rng.choice([1, 1 << 10, 1 << 14, 1 << 20]),
        "write_batch_size": rng.choice([7, 100, 1024]), "row_group_size": rng.choice([999, 4096, ROWS]), "write_statistics": rng.random() < 0.5,
        "write_page_checksum": rng.random() < 0.3, "write_page_index": rng.random() < 0.3,
    }
    kind = rng.choice([pa.string(), pa.large_string(), pa.binary()])
    values = [v.encode() if v is not None else None for v in rows]
    column = pa.array(values, pa.binary()).cast(kind)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", kind, nullable=nulls > 0 or rng.random() < 0.5)])
    path = os.path.join(work, "random.parquet")
    pq.write_table(pa.Table.from_arrays([pa.array(range(ROWS)), column], schema=schema), path, **options)
    if list(rows_of(path)) != values:
        bad.append(options)
print("%s pyarrow %s: the same %d rows of text in %d files" % ("not ok" if bad else "ok", pa.__version__, ROWS, FILES))
for options in bad[:3]:
    print(" ", options)

rows = [text() for _ in range(100)]
for options in ({"compression": "brotli"}, {"compression": "lz4"}, {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}):
    old, new = os.path.join(work, "OLD.parquet"), os.path.join(work, "NEW.parquet")
    pq.write_table(pa.table({"text": rows}), old, **options)
    refused = subprocess.run([dump, old, "text"], capture_output=True, text=True)
    command = re.search(r"\$ python3 -c '(.*)' FILE writes it anew", refused.stderr)
    cured = refused.returncode != 0 and command is not None
    if cured:
        subprocess.run([sys.executable, "-c", command.group(1), old], cwd=work, check=True)
        cured = list(rows_of(new)) == [row.encode() for row in rows]
    print("%s %s: refused, and the command of the message writes a file that is read" % ("ok" if cured else "not ok", options))
    bad += [] if cured else [options]
sys.exit(bool(bad))
