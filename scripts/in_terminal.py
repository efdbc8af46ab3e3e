"""in_terminal.py COLUMNS [--interrupt-at TEXT] COMMAND...: runs a command in a terminal of COLUMNS columns and 24
rows, and prints what the command writes there. Types Ctrl-C once the command has written TEXT."""
import fcntl
import os
import pty
import struct
import sys
import termios

columns, command, await_text = int(sys.argv[1]), sys.argv[2:], None
if command[0] == "--interrupt-at":
    await_text, command = command[1].encode(), command[2:]
child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.environ.setdefault("TERM", "xterm")
    os.environ.pop("COLUMNS", None)
    os.execvp(command[0], command)
written = b""
while True:
    try:
        text = os.read(terminal, 65536)
    except OSError:
        break  # an error means that the command has closed its end of the terminal
    if not text:
        break
    os.write(1, text)
    written += text
    if await_text and await_text in written:
        os.write(terminal, b"\003")
        await_text = None
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
