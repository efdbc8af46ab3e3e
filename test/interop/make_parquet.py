"""Writes the parquet files of test/data/parquet, which test/data/test_parquet.c reads.

    PYTHON test/interop/make_parquet.py FOLDER

Row i is text(i), or null if i % 7 is 3 in a column that may have nulls. The test computes its expected rows by the same
rule.
"""
import os, sys

import pyarrow as pa
import pyarrow.parquet as pq

folder = sys.argv[1]
WORDS = ["stone", "rivière", "雨", "🙂 grin", "and"]


def text(i):
    return "" if i % 11 == 5 else " ".join([str(i)] + [WORDS[(i + k) % 5] for k in range(i % 4)])


def rows(count, period=0, nulls=True):
    return [None if nulls and i % 7 == 3 else text(i % period if period else i) for i in range(count)]


def write(name, values, type=pa.string(), nullable=True, others=(), **options):
    names, columns = [n for n, _ in others] + ["text"], [c for _, c in others] + [pa.array(values, type)]
    schema = pa.schema([pa.field(n, c.type, nullable or n != "text") for n, c in zip(names, columns)])
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False, "store_schema": False, **options}
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), os.path.join(folder, name + ".parquet"), **options)


for codec in ("none", "snappy", "gzip", "zstd"):
    for version in ("1.0", "2.0"):
        for dictionary in (False, True):
            name = "%s_v%s_%s" % (codec, version[0], "dictionary" if dictionary else "plain")
            write(name, rows(30, 9 if dictionary else 0), compression=codec, data_page_version=version, use_dictionary=dictionary)

small = {"data_page_size": 32, "write_batch_size": 8}
write("groups", rows(60, nulls=False), nullable=False, row_group_size=25, **small)
write("groups_dictionary", rows(60, 9), use_dictionary=True, row_group_size=25, compression="snappy", **small)
write("overflow", rows(60), use_dictionary=True, dictionary_pagesize_limit=64, compression="snappy", write_statistics=True, **small)
write("checksum", rows(30), write_page_checksum=True, store_schema=True)
write("binary", rows(30), type=pa.binary(), compression="zstd")
write("large", rows(30), type=pa.large_string(), write_page_index=True, write_statistics=True)
write("null", [None] * 30, data_page_version="2.0", compression="snappy")
write("empty", [])
ids = [("id", pa.array(range(30))), ("meta", pa.array([{"a": i, "b": {"c": str(i)}} for i in range(30)])), ("tags", pa.array([[str(i)] * (i % 3) for i in range(30)]))]
write("beside", rows(30), others=ids, compression="snappy")
write("brotli", rows(30), compression="brotli")
write("lz4", rows(30), compression="lz4")
write("delta", rows(30), column_encoding={"text": "DELTA_BYTE_ARRAY"})
