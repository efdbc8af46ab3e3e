"""terminal_svg.py COLUMNS < written > picture.svg: draws what a terminal of COLUMNS columns shows after the bytes of
standard input were written to it."""
import re
import sys
from html import escape

WIDTH, HEIGHT, MARGIN = 8.43, 19, 16
BACK, FRONT, FAINT = "#12161c", "#d5dbe3", "#7c8794"
COLOURS = {31: "#f4786c", 32: "#7bc77e", 33: "#e5b95c", 34: "#6ea8e8", 36: "#62c3c9"}

columns = int(sys.argv[1])
# rows of the screen, each {column: (character, style)}; a style is (bold, dim, colour). Then the cursor's row and
# column, and the current style
rows, row, at, style = [{}], 0, 0, (False, False, None)
for token in re.findall(r"\033\[[0-9;]*[A-Za-z]|[^\033]", sys.stdin.buffer.read().decode(errors="replace")):
    if token == "\n":
        row, at = row + 1, 0
        rows.append({})
    elif token == "\r":
        at = 0
    elif token.endswith("K") and len(token) > 1:
        rows[row] = {c: v for c, v in rows[row].items() if c < at}
    elif len(token) > 1:
        bold, dim, colour = style
        for n in (int(n or 0) for n in token[2:-1].split(";") if token.endswith("m")):
            if n == 0:
                bold, dim, colour = False, False, None
            elif n == 1:
                bold = True
            elif n == 2:
                dim = True
            else:
                colour = COLOURS.get(n, colour)
        style = bold, dim, colour
    else:
        if at == columns:
            row, at = row + 1, 0
            rows.append({})
        rows[row][at] = token, style
        at += 1
while rows and not rows[-1]:
    rows.pop()

width, height = columns * WIDTH + 2 * MARGIN, len(rows) * HEIGHT + 2 * MARGIN
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="DejaVu Sans Mono, Menlo, Consolas, '
      f'monospace" font-size="14">\n<rect width="100%" height="100%" rx="8" fill="{BACK}"/>')
for y, line in enumerate(rows):
    runs = []  # [column, characters, style] of adjacent characters with one style
    for column in sorted(line):
        character, style = line[column]
        if runs and runs[-1][2] == style and runs[-1][0] + len(runs[-1][1]) == column:
            runs[-1][1] += character
        else:
            runs.append([column, character, style])
    for column, text, (bold, dim, colour) in runs:
        if text.strip():
            print(f'<text x="{MARGIN + column * WIDTH:.2f}" y="{MARGIN + y * HEIGHT + 14}" fill="{colour or (FAINT if dim else FRONT)}" '
                  f'textLength="{len(text) * WIDTH:.2f}"{" font-weight=" + chr(34) + "bold" + chr(34) if bold else ""} '
                  f'xml:space="preserve">{escape(text)}</text>')
print("</svg>")
