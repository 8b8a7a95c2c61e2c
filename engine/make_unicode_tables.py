#!/usr/bin/env python3
"""Writes engine/unicode_classes.inc: which code points are letters (\\p{L}),
numbers (\\p{N}) and white space (\\s) for the pre-tokenizer rules, and what
more counts as a word (\\w) for added tokens that are whole words; and
engine/unicode_nfc.inc: canonical decompositions and combining classes.

The classes are asked of the Hugging Face `tokenizers` package itself, since it
is what our ids must equal; version 0.23 answers with Unicode 16. The NFC data
is that of Python's unicodedata, as far as `tokenizers` agrees. The tables are
part of the program and not of a system library, so that one tokenizer digest
means the same ids on every machine.

    pip install tokenizers==0.23.3
    engine/make_unicode_tables.py engine/
"""

import pathlib
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            # "!" is in none of the classes, so a member is cut out.
            if len(split.pre_tokenize_str("!" + chr(code))) == 2:
                yield code


def other_word_chars():
    """\\w but no letter, as added tokens with single_word see it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.add_tokens([tokenizers.AddedToken("word", single_word=True)])
    letters = set(members(r"\p{L}"))
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000 and code not in letters:
            if not tokenizer.encode("word" + chr(code)).ids:
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


def decompositions():
    """(composite, first, second or 0), canonical and not Hangul."""
    nfd = normalizers.NFD()
    for code in range(0x110000):
        mapping = unicodedata.decomposition(chr(code))
        if not mapping or mapping.startswith("<"):
            continue
        if nfd.normalize_str(chr(code)) == chr(code):
            continue  # newer than what `tokenizers` knows
        parts = [int(part, 16) for part in mapping.split()]
        yield code, parts[0], parts[1] if len(parts) == 2 else 0


def combining_classes():
    """(first, last, class) with class > 0."""
    runs = []
    nfd = normalizers.NFD()
    for code in range(0x110000):
        value = unicodedata.combining(chr(code))
        if not value:
            continue
        # Against a mark of another class: does `tokenizers` reorder the two?
        pair = "\u0327" + chr(code) if value < 202 else chr(code) + "\u0334"
        if value != 202 and nfd.normalize_str(pair) == pair:
            continue  # newer than what `tokenizers` knows
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == value:
            runs[-1][1] = code
        else:
            runs.append([code, code, value])
    return runs


def write_nfc(out):
    out.write("// Written by make_unicode_tables.py from Unicode "
              f"{unicodedata.unidata_version}; do not edit.\n")
    composed, singles, excluded = [], [], []
    for code, a, b in decompositions():
        if not b:
            singles.append(f"{{{code:#x}, {a:#x}}},")
        elif unicodedata.normalize("NFC", chr(a) + chr(b)) == chr(code):
            composed.append(f"{{{code:#x}, {a:#x}, {b:#x}}},")
        else:
            excluded.append(f"{{{code:#x}, {a:#x}, {b:#x}}},")
    out.write("// {composite, first, second}: decompose and compose.\n"
              "constexpr Decomposition kComposed[] = {\n")
    write_rows(out, composed)
    out.write("};\n// Decompose only.\n"
              "constexpr Decomposition kExcluded[] = {\n")
    write_rows(out, excluded)
    out.write("};\n// {code, its replacement}.\n"
              "constexpr Single kSingles[] = {\n")
    write_rows(out, singles)
    out.write("};\n// {first, last, canonical combining class}.\n"
              "constexpr CombiningRange kCombining[] = {\n")
    write_rows(out, (f"{{{a:#x}, {b:#x}, {v}}},"
                     for a, b, v in combining_classes()))
    out.write("};\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    with open(folder / "unicode_classes.inc", "w", encoding="ascii") as out:
        out.write("// Written by make_unicode_tables.py from tokenizers "
                  f"{tokenizers.__version__}; do not edit.\n"
                  "// Inclusive ranges of code points.\n")
        for name, codes in (("Letter", members(r"\p{L}")),
                            ("Number", members(r"\p{N}")),
                            ("Space", members(r"\s")),
                            ("OtherWord", other_word_chars())):
            out.write(f"constexpr Range k{name}Ranges[] = {{\n")
            write_rows(out, (f"{{{a:#x}, {b:#x}}},"
                             for a, b in ranges(codes)))
            out.write("};\n")
    with open(folder / "unicode_nfc.inc", "w", encoding="ascii") as out:
        write_nfc(out)


if __name__ == "__main__":
    main()
