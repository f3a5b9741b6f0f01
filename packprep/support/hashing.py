"""Random-looking bits as a function of a seed and a number.

They are the same on every machine, in any order, for any worker.

A seed is an integer from the user. Each choice that the seed decides has a stream of random bits of
its own, named by a `Purpose`. `stream` gives the key of a stream. Only keys make bits, so that no
two choices share any.

splitmix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
"""

import enum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray


@enum.verify(enum.UNIQUE)
class Purpose(enum.IntEnum):
    """Choices that a seed decides, each made at one place in the code.

    Numbers never change, so that outputs stay the same.
    """

    UNIT_ORDER = 1  # [epoch, if not 0]: order in which units are dealt to windows
    HOLDOUT = 2  # documents of the validation split
    DRAW = 3  # documents that a mix draws
    WINDOW = 4  # [window, split]: the seed that a window is planned with
    GROUP = 5  # [group]: the seed that a group of documents is planned with
    EQUAL_LENGTHS = 6  # places of the documents of one length
    DOCUMENT_ORDER = 7  # order in which strategies take documents one by one
    PACK_ORDER = 8  # order shuffle: of packs
    STEP_ORDER = 9  # order balanced: of the steps, one pack a rank
    EPOCH = 10  # [epoch]: the seed that MultipackSampler packs an epoch with
    EPOCH_GROUPS = 11  # documents that MultipackSampler packs together
    VERIFY_ENGINE = 12  # documents that are compared with the reference tokenizer
    VERIFY_SAMPLE = 13  # documents that `verify` tokenizes again
    PLAN_LENGTHS = 14  # [window]: sample of `plan` from documents of known lengths
    PLAN_TEXT = 15  # sample of `plan` from text
    PLAN_ERROR = 16  # group of a document, one of ten, for the error of a sample
    EXCHANGES = 17  # [number]: places of documents that a repack exchanges
    WINDOW_ORDER = 18  # order of the documents of a window, where a repack needs another one
    PARTLY_RANDOM = 19  # documents that a repack takes in random order
    PLAN_PADDING = 20  # order in which `plan` puts single documents into padded batches


GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

Bits = TypeVar("Bits", np.uint64, NDArray[np.uint64])


def stream(seed: int, purpose: Purpose, *numbers: int) -> np.uint64:
    """Key of the random bits of a purpose; numbers tell several streams of a purpose apart.

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


def mix(key: np.uint64, values: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """64 bits for each value; different values of a key never share them."""
    with np.errstate(over="ignore"):
        bits = scrambled((np.asarray(values).astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return scrambled(bits + key * _MIX_1 + GOLDEN)


def drawn(key: np.uint64, values: NDArray[np.integer[Any]], share: float) -> NDArray[np.bool_]:
    """Mask of a random share, 0 to 1, of the values. key: from `stream`."""
    if share >= 1:
        return np.ones(len(values), np.bool_)
    return mix(key, values) < np.uint64(int(share * 2.0**64))


def scrambled(bits: Bits) -> Bits:
    """Output step of splitmix64, of an array here and of a number in compiled kernels."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))
