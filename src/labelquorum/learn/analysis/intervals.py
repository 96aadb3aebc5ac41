"""Confidence intervals of shares."""

from math import sqrt
from statistics import NormalDist


def wilson(share: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Bounds of a share observed on n > 0 trials (E. B. Wilson, JASA 22, 1927).

    Examples
    --------
    >>> [round(bound, 3) for bound in wilson(0.5, 10)]
    [0.237, 0.763]
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)
