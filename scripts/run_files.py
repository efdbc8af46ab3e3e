"""Functions for scripts that read and write the files of runs and sweeps. A script ends with one sentence and an
exit code.

A script imports this module first. From then on Ctrl-C and TERM end the script with exit code 75, also while Python
loads the rest."""

import os
import signal

EXIT_CONFIG, EXIT_DATA, EXIT_MISSING, EXIT_LOCKED, EXIT_IO, EXIT_STOPPED = 64, 65, 69, 73, 74, 75
# Ends the script at once on Ctrl-C and TERM, until run_script() sets its own handlers.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: os._exit(EXIT_STOPPED))

# pylint: disable=wrong-import-position
import contextlib
import errno
import json
import re
import shutil
import stat
import sys

MOST_BYTES = 16 << 20  # most bytes that a JSON file may have to be read
MOST_OF_A_LINE = 1 << 20  # most bytes of a line of metrics.jsonl; no run writes a longer one


class Stop(SystemExit):
    """An exception that ends the script with an exit code and a sentence. The sentence names the file or option that
    is wrong, and the cure."""

    def __init__(self, code, text):
        super().__init__(code)
        self.text = text


def plain(text):
    """Returns text for a terminal. Escapes control characters, which names and files may contain, and bytes that are
    not UTF-8."""
    escaped = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)
    return escaped.encode("utf-8", "backslashreplace").decode()


def fault_of(error):
    """Returns a sentence for an OSError: the name of the file, and what is wrong with it."""
    # copytree raises an error that holds a list of (source, copy, reason)
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return f"{error.args[0][0][1]}: {error.args[0][0][2]}"
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def say(text):
    try:
        print(plain(text), flush=True)
    except OSError as error:
        error.filename = "standard output"
        raise


def end_quietly(code, text):
    """Writes a text to standard error and ends the process with the exit code, even if the standard streams are
    closed."""
    with contextlib.suppress(OSError):
        os.write(2, (plain(text) + "\n").encode())
    # a failed write to a closed standard output must not change the exit code
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)


def run_script(name, main):
    """Calls main(), which returns the exit code. Ctrl-C and TERM end the script at once, unless main() sets its own
    handlers. The handlers raise no exception, because it could be lost in a callback of an import. No file is left
    half written, because write_file() replaces files whole."""

    def stopped(*_):
        end_quietly(EXIT_STOPPED, f"{name}: stopped; the same command goes on")

    signal.signal(signal.SIGINT, stopped)
    signal.signal(signal.SIGTERM, stopped)
    try:
        for word in sys.argv:
            if word.encode(errors="replace").decode() != word:
                raise Stop(EXIT_CONFIG, f"{ascii(word)} is not UTF-8, and a config holds nothing else: give another name")
        sys.exit(main())
    except Stop as stop:
        end_quietly(stop.code, f"{name}: {stop.text}")
    except OSError as error:
        end_quietly(EXIT_IO, f"{name}: {fault_of(error)}; the same command goes on when that is mended")


def open_regular(path, flags=os.O_RDONLY):
    """Opens a regular file and returns its descriptor. Raises an error that names the file if it is a FIFO or a
    device, without waiting for a reader or writer."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def write_file(path, content):
    """Writes text or bytes to a file, whole or not at all."""
    new = path + ".new"
    try:
        with open(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        error.filename = error.filename or new
        raise


def parse_json(data, **how):
    """Returns the value of JSON text. data: the bytes of a file. Raises a ValueError that says what is wrong with
    them."""

    def no_number(word):
        raise json.JSONDecodeError(f"{word} is no number of JSON", text, text.find(word))

    if len(data) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("starts with a byte-order mark; save it as plain UTF-8")
    try:
        text = data.decode()
        return json.loads(text, parse_constant=no_number, **how)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except ValueError as error:
        raise ValueError("a number has too many digits") from error


def read_json(path, cure):
    """Returns the JSON object in a file that a script wrote, or None if the file does not exist. A damaged file ends
    the script with a message that contains `cure`."""
    try:
        with open(open_regular(path), "rb") as file:
            found = parse_json(file.read(MOST_BYTES + 1))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Stop(EXIT_DATA, f"{path}: damaged: {error}; {cure}") from error
    if not isinstance(found, dict):
        raise Stop(EXIT_DATA, f"{path}: damaged: no object {{...}}; {cure}")
    return found


def is_number(value, whole=False):
    """Returns True if value is a finite number that a double can hold. whole: only integers count."""
    kind = int if whole else (int, float)
    return isinstance(value, kind) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def rows_of(file):
    """Yields (row, offset) for each row of an open metrics.jsonl, from its current position on. offset: position
    after the row. Skips lines of another shape. Leaves a last line without a line feed for a later call."""
    at, whole = file.tell(), True
    while line := file.readline(MOST_OF_A_LINE):
        ends, begins = line.endswith(b"\n"), whole
        at, whole = at + len(line), ends
        row = None
        if begins and ends:
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
        if isinstance(row, dict) and isinstance(row.get("kind"), str) and is_number(row.get("step"), whole=True):
            yield row, at
