#!/usr/bin/env python3
"""Writes engine/unicode_classes.inc: which code points are letters (\\p{L}),
numbers (\\p{N}) and white space (\\s) for the pre-tokenizer rules.

The classes are asked of the Hugging Face `tokenizers` package itself, since it
is what our ids must equal; version 0.23 answers with Unicode 16. The tables
are part of the program and not of a system library, so that one tokenizer
digest means the same ids on every machine.

    pip install tokenizers==0.23.3
    engine/make_unicode_tables.py engine/
"""

import pathlib
import sys

import tokenizers
from tokenizers import Regex, pre_tokenizers


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            # "!" is in none of the classes, so a member is cut out.
            if len(split.pre_tokenize_str("!" + chr(code))) == 2:
                yield code


def ranges(codes):
    first = last = None
    for code in codes:
        if last is not None and code == last + 1:
            last = code
            continue
        if last is not None:
            yield first, last
        first = last = code
    yield first, last


def write_rows(out, cells):
    line = ""
    for cell in cells:
        if len(line) + len(cell) + 1 > 80:
            out.write(line.rstrip() + "\n")
            line = ""
        line += cell + " "
    out.write(line.rstrip() + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    with open(folder / "unicode_classes.inc", "w", encoding="ascii") as out:
        out.write("// Written by make_unicode_tables.py from tokenizers "
                  f"{tokenizers.__version__}; do not edit.\n"
                  "// Inclusive ranges of code points.\n")
        for name, pattern in (("Letter", r"\p{L}"), ("Number", r"\p{N}"),
                              ("Space", r"\s")):
            out.write(f"constexpr Range k{name}Ranges[] = {{\n")
            write_rows(out, (f"{{{a:#x}, {b:#x}}},"
                             for a, b in ranges(members(pattern))))
            out.write("};\n")


if __name__ == "__main__":
    main()
