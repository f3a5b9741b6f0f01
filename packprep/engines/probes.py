"""Texts on which tokenizer engines differ.

The parity gate encodes them with both engines before the fast one is trusted.

About 200 kB and 22,000 code points, fixed except for the added tokens of the tokenizer; the
reference needs 0.05 to 0.08 CPU-seconds for them. Each text tests one way in which engines differ:

- Unicode tables of another version. Engines split words by letter, number and white space, and the
  tables behind those classes differ between regex engines. `X's` shows the class of X in the ids:
  after a letter or number "'s" is a contraction, after anything else the apostrophe belongs to X.
  One code point of a new alphabet is enough to tell.
- white space of every kind and length, line ends, NULs, byte order marks, and runs long enough to
  hit a match limit;
- spellings of special tokens, which stay text unless the user says otherwise;
- text that NFC, NFD, NFKC or case folding changes (the long s in "'ſ" is an s to a pattern
  that ignores case);
- characters outside the vocabulary, and text that spells the vocabulary's own marks ("▁",
  "Ġ", "<0x0A>").
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from packprep.engines.tokenizer_files import AddedToken

# (first, end, step): densest where alphabets are, sparse in uniform masses; as many as the gate's
# budget allows.
_SWEEP = (
    (0x0080, 0x2000, 1),
    (0x2000, 0x3100, 2),  # punctuation, symbols
    (0x3100, 0xA4D0, 97),  # CJK, Yi
    (0xA4D0, 0xAC00, 2),
    (0xAC00, 0xD7B0, 97),  # Hangul syllables
    (0xD7B0, 0xD800, 1),
    (0xE000, 0xF900, 97),  # private use
    (0xF900, 0x10000, 2),
    (0x10000, 0x12000, 3),  # where new versions of Unicode put new alphabets
    (0x12000, 0x16000, 13),  # cuneiform, hieroglyphs
    (0x16000, 0x17000, 4),
    (0x17000, 0x1AFF0, 97),  # Tangut, Khitan
    (0x1AFF0, 0x1B300, 3),
    (0x1B300, 0x1CC00, 97),
    (0x1CC00, 0x1E000, 9),  # notation, mathematics
    (0x1E000, 0x1F000, 3),  # new alphabets again
    (0x1F000, 0x20000, 7),  # emoji, symbols
    (0x20000, 0x110000, 997),  # rare ideographs, unassigned planes, private use
)
_SWEEP_TEXT = 64  # code points per text

_SPACES = " \t\n\r\v\f\x1c\x85\u00a0\u1680\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
_CONTRACTIONS = (
    *("s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Re", "rE", "VE", "M", "LL", "lL", "D"),
    "\u017f",
)

_FIXED = (
    "",
    # every ASCII character in a row, alone, and beside an apostrophe
    "".join(map(chr, range(0x80))),
    " ".join(map(chr, range(0x21, 0x7F))),
    "".join([f"{chr(point)}'{chr(point)}a1" for point in range(0x21, 0x7F)]),
    # words, case, code
    "Hello world! HELLOworld helloWORLD XMLHttpRequest iPhone's McDonald ÀÉîÕ straße ẞ ǅ ǆ ΑΣ ας "
    "İI ıi ﬁ ŉ",
    "def f(x):\n    if x:\n\treturn {'a': [1,2], \"b\":x**2}  # ok\n\n\n    else:\n        "
    "pass\r\n",
    "https://example.org/a_b/c-d?e=f&g=%20#h  me@example.com C:\\dir\\file.txt <a "
    "href='#'>&nbsp;</a> //// -->\n/\n",
    # numbers
    "1 12 123 1234 12345 1234567890123 1,234,567.89 -1e-05 0x7F 3.14.15 ٣٤٥٦ १२३४ １２３４ "
    "x²y³ ½ ⅔ Ⅻ ① 10% $5 €6 1st",
    # scripts
    "今天天气很好，我们去公园吧。「東京」は日本の首都です。カタカナﾊﾟ한국어 조사는 "
    "이렇게. 𠮷野家 㐀",
    "Привет, мир! Γειά σου Κόσμε. שָׁלוֹם עולם مرحبا بالعالم ١٢ नमस्ते दुनिया สวัสดีชาวโลก ສະບາຍດີ "
    "မင်္ဂလာပါ ជំរាបសួរ ⲁⲃⲅ ꙮ",
    "a中b文c д1я2 xשy \u202eabc\u202c \u2067אבג\u2069 \u200eLRM\u200fRLM \u061c",
    # emoji
    "👨\u200d👩\u200d👧\u200d👦 👩🏽\u200d🚀 🏳\ufe0f\u200d🌈 1\u20e3 #\u20e3 ❤\ufe0f❤\ufe0e "
    "☺🫠🪿🫨 \ufe0f a\u200db",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f 🇩🇪🇫🇷🇩",
    # normalization
    "é e\u0301 Å A\u030a \u212b Ω \u2126 q\u0307\u0323 q\u0323\u0307 \u1112\u1161\u11ab 한",
    "\u0344 \u0958 \u0fb5 ﷺ ﬀ ｆｕｌｌ ﾊ\uff9f",
    "a" + "\u0301" * 60 + "z" + "\u0315\u0300\u05ae\u0062" * 4,
    "".join(
        x + "".join(chr(0x300 + (37 * at + 11 * mark) % 112) for mark in range(9))
        for at, x in enumerate("ZALGO!")
    ),
    # what is not a character, and what the vocabulary spells
    "\0 a\0b \0\0\0 \x01\x02\x1f\x7f\x80\x9f",
    "\ufffd \ufffe \uffff \U0010ffff \U0001fffe \ue000 \U000f0000 \ufdd0 \u00ad",
    "▁ ▁▁ ▁a a▁b Ġ Ġa Ċ Ã© ## ##ing a##b </w> <unk> [UNK] <0x0A> <0x00><0xFF> 0x0A @@ ⁇ ",
    # long runs and long words
    "a" * 3000,
    "ab" * 1500 + "1" * 1000 + "=" * 1500 + "-_" * 500,
    "漢字" * 700,
    "the quick brown fox " * 150 + "\u0301" * 300 + "é" * 300,
    "\n".join(" " * width + "x" for width in range(0, 70, 3)),
)


def probes(added_tokens: Iterable[AddedToken] = ()) -> list[str]:
    """The probe texts, always the same for the same tokens.

    added_tokens: the tokenizer's, as in tokenizer.json: `content` is spelled in many ways,
    `special` tells two kinds.
    """
    added = [token for token in added_tokens if token.get("content")]
    return [*_FIXED, *_spaces(), *_contractions(), *_spellings(added), *_soup(added), *_sweep()]


def _spaces() -> list[str]:
    texts = []
    for space in (*_SPACES, "\r\n", " \n", "\n ", "\t "):
        runs = [space * times for times in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33)]
        texts += [
            space * 130,
            "".join(f"a{run}B{run}1{run}." for run in runs) + space,
            f"{space * 2}x{space}\n\n{space}",
        ]
    return texts


def _contractions() -> list[str]:
    return [
        " ".join(
            f"a'{end}b I'{end} 1'{end} '{end} .'{end} é'{end} x’{end} ''{end}"
            for end in _CONTRACTIONS
        ),
        "".join(f"'{end}" for end in _CONTRACTIONS),
    ]


def _spellings(added: list[AddedToken]) -> list[str]:
    """Added tokens alone, in words, doubled, cut short and in other letter cases.

    Of many tokens an even choice.
    """
    texts = []
    for special in (True, False):
        contents = [
            str(token["content"]) for token in added if bool(token.get("special")) is special
        ]
        texts.append("x".join(_some(contents, 512)))
        texts += [
            f"{token} a{token}b {token}{token}\n{token}\n {token[:-1]} {token[1:]} "
            f"{token}{token[:-1]} "
            f"{token[0]}{token} {token.swapcase()} é{token} {token}\u0301"
            for token in _some(contents, 24)
        ]
    return texts


def _soup(added: list[AddedToken]) -> list[str]:
    """Random strings of everything above, because engines also go wrong where two things meet."""
    rng = random.Random(20)
    atoms = [word for text in _FIXED if len(text) < 500 for word in text.split(" ")] + list(_SPACES)
    atoms += [f"'{end}" for end in _CONTRACTIONS] + [" "] * 40 + ["\n"] * 10
    atoms += _some([str(token["content"]) for token in added], 30)
    return ["".join(rng.choices(atoms, k=40)) for _ in range(100)]


def _sweep() -> list[str]:
    points = [point for first, end, step in _SWEEP for point in range(first, end, step)]
    return [
        "".join(f"{chr(x)}'s" for x in points[at : at + _SWEEP_TEXT])
        for at in range(0, len(points), _SWEEP_TEXT)
    ]


def _some(items: list[str], count: int) -> list[str]:
    """At most about `count` items, evenly spread, the first included."""
    return items[:: max(1, -(-len(items) // count))]
