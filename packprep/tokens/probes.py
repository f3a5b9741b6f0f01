"""Texts on which tokenizer engines differ, about 200 kB, fixed but for the added tokens.

Each tests one way: Unicode tables of another version (engines split words by letter, number and
white space; "X's" shows the class of X in the ids, because "'s" is a contraction after letters and
numbers only), white space of every kind and length, long runs, spellings of special tokens, text
that normalization changes, and text that spells the vocabulary's own marks.
"""

import random
from collections.abc import Sequence

# (first, end, step) of code points: densest where alphabets are
_SWEEP = (
    (0x0080, 0x2000, 1),
    (0x2000, 0x3100, 2),
    (0x3100, 0xA4D0, 97),
    (0xA4D0, 0xAC00, 2),
    (0xAC00, 0xD7B0, 97),
    (0xD7B0, 0xD800, 1),
    (0xE000, 0x10000, 7),
    (0x10000, 0x12000, 3),
    (0x12000, 0x1E000, 13),
    (0x1E000, 0x1F000, 3),
    (0x1F000, 0x20000, 7),
    (0x20000, 0x110000, 997),
)
_SPACES = " \t\n\r\v\f\x1c\x85\u00a0\u1680\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
_ENDS = [
    "s",
    "t",
    "re",
    "ve",
    "m",
    "ll",
    "d",
    "S",
    "T",
    "RE",
    "Re",
    "rE",
    "VE",
    "M",
    "LL",
    "lL",
    "D",
]
_FIXED = (
    "",
    "".join(map(chr, range(0x80))),
    "".join([f"{chr(point)}'{chr(point)}a1" for point in range(0x21, 0x7F)]),
    "Hello world! HELLOworld XMLHttpRequest McDonald straße İI ıi ﬁ ŉ ΑΣ ας ǅ",
    "def f(x):\n    if x:\n\treturn {'a': [1,2], \"b\":x**2}  # ok\n\n\n    else:\n  pass\r\n",
    "https://example.org/a_b/c-d?e=f&g=%20#h  me@example.com C:\\dir\\file.txt <a href='#'>&nbsp;",
    "1 12 123 1234 12345 1234567890123 1,234,567.89 -1e-05 0x7F ٣٤٥٦ १२३४ １２３４ x²y³ ½ Ⅻ ①",
    "今天天气很好，我们去公园吧。「東京」は日本の首都です。ｶﾀｶﾅﾊﾟ한국어 조사는. 𠮷野家 㐀",
    "Привет! Γειά σου. שָׁלוֹם مرحبا नमस्ते สวัสดี ສະບາຍດີ မင်္ဂလာပါ ជំរាបសួរ ⲁⲃⲅ a中b文c д1я2 xשy",
    "\u202eabc\u202c \u2067אבג\u2069 \u200eLRM\u200fRLM \u061c",
    "👨\u200d👩\u200d👧\u200d👦 👩🏽\u200d🚀 1\u20e3 ❤\ufe0f❤\ufe0e 🪿🫨 🇩🇪🇫🇷🇩 a\u200db",
    "é e\u0301 Å A\u030a \u212b Ω \u2126 q\u0307\u0323 q\u0323\u0307",
    "\u1112\u1161\u11ab 한 ﷺ ｆｕｌｌ",
    "a" + "\u0301" * 60 + "z" + "\u0315\u0300\u05ae\u0062" * 4,
    "\0 a\0b \0\0\0 \x01\x02\x1f\x7f\x80\x9f \ufffd \ufffe \uffff \U0010ffff \ue000 \u00ad",
    "▁ ▁▁ ▁a a▁b Ġ Ġa Ċ Ã© ## ##ing a##b </w> <unk> [UNK] <0x0A> <0x00><0xFF> @@ ⁇ ",
    "a" * 3000,
    "ab" * 1500 + "1" * 1000 + "=" * 1500 + "-_" * 500,
    "漢字" * 700,
    "the quick brown fox " * 150 + "\u0301" * 300 + "é" * 300,
    "\n".join(" " * width + "x" for width in range(0, 70, 3)),
)


def probes(added_tokens: Sequence[str] = ()) -> list[str]:
    """The probe texts, always the same for the same tokens."""
    texts = list(_FIXED)
    for space in (*_SPACES, "\r\n", " \n", "\n ", "\t "):
        runs = [space * times for times in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33, 130)]
        texts.append("".join(f"a{run}B{run}1{run}." for run in runs) + space)
    texts.append(" ".join(f"a'{end}b I'{end} 1'{end} '{end} é'{end} x’{end}" for end in _ENDS))
    some = list(added_tokens)[:: max(1, -(-len(added_tokens) // 48))]
    texts += [
        f"{token} a{token}b {token}{token}\n{token} {token[:-1]} {token[1:]} {token.swapcase()}"
        for token in some
    ]
    rng = random.Random(20)
    atoms = [word for text in _FIXED if len(text) < 500 for word in text.split(" ")]
    atoms += [*_SPACES, *(f"'{end}" for end in _ENDS), *[" "] * 40, *some[:30]]
    texts += ["".join(rng.choices(atoms, k=40)) for _ in range(100)]
    points = [point for first, end, step in _SWEEP for point in range(first, end, step)]
    return texts + [
        "".join(f"{chr(x)}'s" for x in points[at : at + 64]) for at in range(0, len(points), 64)
    ]
