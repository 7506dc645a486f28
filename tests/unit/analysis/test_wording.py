import pytest

from astra_stream.analysis.wording import counts_text, duration, shares_text, staleness_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.97, "10.0 s"),
        (59.96, "1 min 00 s"),
        (60.0, "1 min 00 s"),
        (215.4, "3 min 35 s"),
        (3599.7, "1 h 00 min"),
        (7380.0, "2 h 03 min"),
    ],
)
def test_a_duration_has_the_units_of_its_size(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_are_told_the_largest_first() -> None:
    assert counts_text({"expired": 3, "uniform": 1200}) == "1,200 uniform, 3 expired"
    assert counts_text({}) == "none"


def test_shares_too_small_to_matter_are_not_told() -> None:
    assert shares_text({"step": 0.004, "other": 0.996}) == "100% other"
    assert shares_text({}) == ""


def test_staleness_of_nothing_is_a_dash() -> None:
    assert staleness_text(None, None) == "-"
