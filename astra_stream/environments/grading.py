"""Whether a reply gives the answer: pure functions of two texts."""

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Literal

Match = Literal["exact", "numeric", "regex"]
"""The whole text, the last number in it, or a pattern found in it."""

NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?(?:/\d+)?")
RELATIVE_TOLERANCE = Fraction(1, 10**6)


def is_exact(reply: str, answer: str) -> bool:
    """Whether the texts are the same."""
    return reply == answer


def is_numeric(reply: str, answer: str) -> bool:
    """Whether the last number in the reply equals the last one in the answer.

    Thousands may be grouped by commas; decimals, exponents and fractions such as 3/4 count; equal
    means within one millionth.
    """
    given, wanted = last_number(reply), last_number(answer)
    if given is None or wanted is None:
        return False
    return abs(given - wanted) <= RELATIVE_TOLERANCE * abs(wanted)


def is_pattern(reply: str, answer: str) -> bool:
    """Whether the pattern is found anywhere in the reply."""
    return re.search(answer, reply) is not None


def last_number(text: str) -> Fraction | None:
    """The last number in a text; None where there is none."""
    for found in reversed([m.group() for m in NUMBER.finditer(text)]):
        number = _parse(found)
        if number is not None:
            return number
    return None


def _parse(text: str) -> Fraction | None:
    numerator, _, denominator = text.replace(",", "").partition("/")
    try:
        value = Fraction(Decimal(numerator)) / (int(denominator) if denominator else 1)
    except (InvalidOperation, ZeroDivisionError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


MATCHES = {"exact": is_exact, "numeric": is_numeric, "regex": is_pattern}
"""How a reply is compared, by name."""
