"""Points in time as objects have them, and ages as tables show them."""

from __future__ import annotations

import pytest

from session_scheduler.model.times import age_text

MINUTE, HOUR, DAY = 60, 3600, 86400
YEAR = 365 * DAY


@pytest.mark.parametrize(("seconds", "text"), [
    (-3, "0s"), (0, "0s"), (5.9, "5s"), (119, "119s"),
    (2 * MINUTE, "2m"), (3 * MINUTE + 12, "3m12s"), (10 * MINUTE + 59, "10m"), (3 * HOUR - 1, "179m"),
    (3 * HOUR, "3h"), (5 * HOUR + 7 * MINUTE, "5h7m"), (8 * HOUR + MINUTE, "8h"), (2 * DAY - 1, "47h"),
    (2 * DAY, "2d"), (2 * DAY + 4 * HOUR, "2d4h"), (8 * DAY + HOUR, "8d"), (2 * YEAR - 1, "729d"),
    (2 * YEAR, "2y"), (2 * YEAR + 30 * DAY, "2y30d"), (8 * YEAR + 30 * DAY, "8y"),
])  # fmt: skip
def test_an_age_is_what_kubectl_prints(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
