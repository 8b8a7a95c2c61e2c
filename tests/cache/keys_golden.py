"""Prints the golden vectors of keys_test.cc, from docs/kv_format.md alone."""
import hashlib
import struct


def field(tag, value):
    return struct.pack("<HI", tag, len(value)) + value


def root(salt, model, weights, tokenizer, adapters, rope, numerics, codec,
         layout, policy):
    data = b"overture.root.v1"
    fields = [struct.pack("<I", 1), salt, model, weights, tokenizer, adapters,
              rope, numerics, codec, struct.pack("<5I", *layout, 256), policy,
              b""]
    for tag, value in enumerate(fields, start=1):
        data += field(tag, value)
    return hashlib.sha256(data).hexdigest()


def span(parent, cut, ids, tail):
    mark = b"" if cut is None else struct.pack("<HQ", 1, cut)
    ids_bytes = struct.pack(f"<{len(ids)}I", *ids)
    if tail:
        data = (b"overture.tail.v1" + parent + field(1, mark) + ids_bytes +
                struct.pack("<Q", len(ids)))
    else:
        data = (b"overture.block.v1" + parent + field(1, mark) +
                field(2, b"") + ids_bytes)
    return hashlib.sha256(data).hexdigest()


BF16, F32 = 3, 1
IDS, PARENT = [1, 2, 70000], b"\x07" * 32
print("GOLDEN_ROOT", root(b"tenant", b"model", b"\x01" * 32, b"\x02" * 32, b"",
                          b"theta=10000", b"bf16", b"raw", (30, 3, 64, BF16),
                          b"dense"))
print("GOLDEN_EMPTY_ROOT", root(b"", b"", b"\x00" * 32, b"\x00" * 32, b"", b"",
                                b"", b"", (0, 0, 0, F32), b""))
print("GOLDEN_CHAIN", span(PARENT, None, IDS, False))
print("GOLDEN_CHAIN_CUT", span(PARENT, 300, IDS, False))
print("GOLDEN_TAIL", span(PARENT, None, IDS, True))
print("GOLDEN_TAIL_CUT", span(PARENT, 300, IDS, True))
