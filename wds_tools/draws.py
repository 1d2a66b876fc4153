"""Random numbers that are addressed, not consumed.

Every draw is a pure function of a key and an index, so the millionth costs what the first costs, and nothing
depends on what was drawn before. Rules:

* A key is made of whole numbers (seed, epoch, purpose): two uses of randomness never share one.
* The generator is SplitMix64: draw ``i`` of a key is output ``i`` of SplitMix64 seeded with that key. Its state
  is a counter, which is what makes it addressable. (Steele, Lea and Flood, "Fast splittable pseudorandom number
  generators", OOPSLA 2014; constants as in Vigna's public-domain ``splitmix64.c``.)
* Only 64-bit integer arithmetic is used, and one exact conversion to float64: the numbers are the same on every
  machine and with every version of numpy, which numpy's own distributions do not promise.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


class Purpose(enum.IntEnum):
    """What a draw is for. The values are part of the order: changing one changes every epoch."""

    SHARDS = 1
    WINDOW = 2
    SAMPLE = 3
    JITTER = 4
    TURNS = 5
    ROUND = 6


def make_key(*words: int) -> int:
    """One 64-bit key from several whole numbers; their sequence matters."""
    key = 0
    for word in words:
        key = (key + word + _GAMMA) & _MASK
        key = ((key ^ (key >> 30)) * _MIX_1) & _MASK
        key = ((key ^ (key >> 27)) * _MIX_2) & _MASK
        key ^= key >> 31
    return key


def draws(key: int, index: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """The draws of ``key`` at each ``index`` (0 and up): uniform 64-bit numbers."""
    return keyed_draws(np.uint64(key & _MASK), index)


def keyed_draws(keys: npt.NDArray[np.uint64] | np.uint64, index: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """The same where every draw has a key of its own: ``keys`` and ``index`` are broadcast."""
    with np.errstate(over="ignore"):  # wrapping around is the arithmetic that is meant
        bits = np.asarray(index).astype(np.uint64) * np.uint64(_GAMMA) + (keys + np.uint64(_GAMMA))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_MIX_1)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_MIX_2)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def uniform(key: int, index: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The same draws as numbers in [0, 1): the upper 53 bits, exactly."""
    return np.asarray((draws(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def sample_rng_seed(seed: int, epoch: int, sample_id: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """A seed for the augmentation of each sample: the same one whichever worker has the sample.

    63 bits, so that a tensor of int64 holds the number that a transform draws from.
    """
    return np.asarray(draws(make_key(seed, epoch, Purpose.SAMPLE), sample_id) >> np.uint64(1))
