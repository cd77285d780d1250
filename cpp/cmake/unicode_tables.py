# SPDX-License-Identifier: Apache-2.0
"""Write what Unicode says of characters as C++: unicode_tables.py FILE. Any Python 3 does.

The version of Unicode is that of the Python that runs this.
"""

import sys
import unicodedata

KINDS = {"Lu": 1, "Lt": 1, "Ll": 2, "Lm": 3, "Lo": 3, "M": 4, "Mn": 5, "N": 6}  # CharKind
KINDS |= {"P": 7, "C": 8, "Cn": 0}
SPACES = [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
SPACES += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]  # White_Space
HANGUL = range(0xAC00, 0xD7A4)  # composed by a formula


def kind(c: int) -> int:
    category = unicodedata.category(chr(c))
    return 9 if c in SPACES else KINDS.get(category, KINDS.get(category[0], 0))


def runs(f, shift: int) -> list:
    """Where a function of characters changes, with what it is from there on."""
    found, last = [], None
    for c in range(0x110000):
        value = f(c)
        if value != last:
            found.append(c << shift | value)
            last = value
    return found


def pairs() -> list:
    """Characters that are two others, or one; and whether these two are written as the one."""
    found = []
    for c in range(0x110000):
        parts = unicodedata.decomposition(chr(c)).split()
        if not parts or parts[0].startswith("<") or c in HANGUL:
            continue
        a, b = ([int(p, 16) for p in parts] + [0])[:2]
        composed = unicodedata.normalize("NFC", chr(a) + chr(b) if b else chr(a))
        found.append((c, a, b, int(bool(b) and composed == chr(c))))
    return found


def rewritten(f) -> list:
    """Each character that a function changes, how many it becomes, and these."""
    found = []
    for c in range(0x110000):
        text = f(c)
        if text != chr(c):
            found += [c, len(text), *map(ord, text)]
    return found


def compatible(c: int) -> str:
    """What a character is for the forms KC and KD alone."""
    both = [unicodedata.normalize(form, chr(c)) for form in ("NFD", "NFKD")]
    return chr(c) if c in HANGUL or both[0] == both[1] else both[1]


def array(kind: str, name: str, values: list) -> str:
    text = ",".join(map(str, values))
    return (
        f"extern const {kind} {name}[];\nconst {kind} {name}[] = {{{text}}};\n"
        f"extern const size_t {name}_count;\nconst size_t {name}_count = {len(values)};\n"
    )


with open(sys.argv[1], "w", encoding="ascii") as f:
    f.write("#include <cstddef>\n#include <cstdint>\n\n")
    f.write('#include "text/unicode.h"\n\nnamespace nnl {\n')
    f.write(array("uint32_t", "char_kinds", runs(kind, 4)))
    f.write(array("uint32_t", "char_classes", runs(lambda c: unicodedata.combining(chr(c)), 8)))
    f.write(
        array("CharPair", "char_pairs", [f"{{{w},{a},{b},{both}}}" for w, a, b, both in pairs()])
    )
    f.write(array("uint32_t", "char_lowers", rewritten(lambda c: chr(c).lower())))
    f.write(array("uint32_t", "char_compatibles", rewritten(compatible)))
    f.write("}  // namespace nnl\n")
