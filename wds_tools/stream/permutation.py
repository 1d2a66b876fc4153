"""A permutation that is looked up, not laid out: where the i-th of n comes, for a key, in a few operations.

It is a Feistel network over the least power of two that holds n: the bits of a number are cut into two parts, and each
part in turn is changed by a draw that the other part addresses, which can be undone, so no two numbers meet. A number that
comes out at n or above goes round again, until it is below: that is undone as well ("cycle walking"; J. Black and P.
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Fewer than half of the numbers are above, so few go round often.

A network of a few bits makes some orders more often than others. So a few numbers are put in the order of a draw each.

Every number may have an n and a key of its own: a thousand classes are permuted by one call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wds_tools.draws import keyed_draws

Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

FEW = 16
_PASSES = 6  # each changes both parts once


def permuted(numbers: Ids, sizes: Ids, keys: Keys) -> Ids:
    """For each of ``numbers`` its place in a permutation of 0 to ``sizes``, chosen by ``keys``. Shapes are all ``(N,)``."""
    result = np.empty_like(numbers)
    few = sizes <= FEW
    for permute, where in ((_ranked, np.flatnonzero(few)), (_walked, np.flatnonzero(~few))):
        if len(where):
            result[where] = permute(numbers[where], sizes[where], keys[where])
    return result


def _ranked(numbers: Ids, sizes: Ids, keys: Keys) -> Ids:
    """The rank of a number's draw among those of its n."""
    drawn = keyed_draws(keys[:, None], np.arange(FEW))
    own = np.take_along_axis(drawn, numbers[:, None], axis=1)
    ranks: Ids = ((drawn < own) & (np.arange(FEW) < sizes[:, None])).sum(axis=1)
    return ranks


def _walked(numbers: Ids, sizes: Ids, keys: Keys) -> Ids:
    bits = np.frexp((sizes - 1).astype(np.float64))[1].astype(np.uint64)
    low = bits // np.uint64(2)
    result = numbers.astype(np.uint64)
    limit = sizes.astype(np.uint64)
    left = np.arange(len(result))
    while len(left):
        result[left] = _network(result[left], low[left], bits[left] - low[left], keys[left])
        left = left[result[left] >= limit[left]]
    return result.astype(np.int64)


def _network(value: Keys, low: Keys, high: Keys, keys: Keys) -> Keys:
    """Numbers of ``low + high`` bits, once through."""
    one = np.uint64(1)
    low_mask, high_mask = (one << low) - one, (one << high) - one
    lower, upper = value & low_mask, value >> low
    for number in range(_PASSES):
        # A draw is addressed by its number in the network and by the part.
        upper = upper ^ (keyed_draws(keys, lower | np.uint64(2 * number << 32)) & high_mask)
        lower = lower ^ (keyed_draws(keys, upper | np.uint64((2 * number + 1) << 32)) & low_mask)
    changed: Keys = upper << low | lower
    return changed
