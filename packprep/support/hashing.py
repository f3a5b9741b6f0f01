"""Random-looking bits, a function of a seed and a number.

The same on every machine, in any order, for any worker.

A seed is an integer of the user. Each choice that it decides has a stream of random bits of its
own, named by a `Purpose`. `stream` gives the key of one, and only keys make bits, so that no two
choices share any.

splitmix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
"""

import enum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray


@enum.verify(enum.UNIQUE)
class Purpose(enum.IntEnum):
    """Every choice that a seed decides, each made at one place.

    Numbers never change, so that outputs stay the same.
    """

    UNIT_ORDER = 1  # in which order units are dealt to windows
    HOLDOUT = 2  # which documents are of the validation split
    DRAW = 3  # which documents a mix takes
    WINDOW = 4  # [window, split]: the seed that a window is planned with
    GROUP = 5  # [group]: the seed that a group of documents is planned with
    EQUAL_LENGTHS = 6  # which of the documents of one length goes where
    DOCUMENT_ORDER = 7  # in which order greedy and stream take documents
    PACK_ORDER = 8  # order shuffle: of packs
    STEP_ORDER = 9  # order balanced: of the steps, one pack a rank
    EPOCH = 10  # [epoch]: the seed that MultipackSampler packs an epoch with
    EPOCH_GROUPS = 11  # which documents MultipackSampler packs together
    VERIFY_ENGINE = 12  # which documents are compared with the reference tokenizer
    VERIFY_SAMPLE = 13  # which documents `verify` tokenizes again
    PLAN_LENGTHS = 14  # [window]: which documents `plan` takes of those whose lengths are known
    PLAN_TEXT = 15  # which documents `plan` takes of text
    PLAN_ERROR = 16  # which of ten groups a document is in, for the error of a sample


GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

Bits = TypeVar("Bits", np.uint64, NDArray[np.uint64])


def stream(seed: int, purpose: Purpose, *numbers: int) -> np.uint64:
    """The key of the random bits of one purpose, or of one of several that numbers tell apart.

    Seeds may be any integers; they are taken modulo 2**64. Different purposes of a seed never have
    the same key.
    """
    key = int(GOLDEN)
    for number in (seed, purpose, *numbers):
        key = (key + int(number)) * int(GOLDEN) % 2**64
        key = (key ^ key >> 30) * int(_MIX_1) % 2**64
        key = (key ^ key >> 27) * int(_MIX_2) % 2**64
        key ^= key >> 31
    return np.uint64(key)


def stream_samples() -> dict[str, str]:
    """Two numbers of each purpose's stream for seed 0, in hexadecimal, by the purpose's name.

    A build keeps them: one that was begun with other streams must not be resumed.
    """
    numbers = np.arange(2)
    return {
        purpose.name.lower(): mix(stream(0, purpose), numbers).astype(">u8").tobytes().hex()
        for purpose in Purpose
    }


def mix(key: np.uint64, values: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """64 bits for each value; different values of a key never share them."""
    with np.errstate(over="ignore"):
        bits = scrambled((np.asarray(values).astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return scrambled(bits + key * _MIX_1 + GOLDEN)


def drawn(key: np.uint64, values: NDArray[np.integer[Any]], share: float) -> NDArray[np.bool_]:
    """Mask of the values that fall into a share, 0 to 1, that the key draws."""
    if share >= 1:
        return np.ones(len(values), np.bool_)
    return mix(key, values) < np.uint64(int(share * 2.0**64))


def scrambled(bits: Bits) -> Bits:
    """splitmix64 after its counter: an array here, a number in compiled kernels."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))
