"""``format`` of dates, which llguidance reads as any day of any month up to the 31st or 29th."""

from __future__ import annotations

from typing import Any

_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"([0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"({_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = (
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_PATTERNS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}T{_TIME}$"}


def with_real_dates(part: dict[str, Any]) -> dict[str, Any]:
    """The schema with a pattern of days that the calendar has in place of a format."""
    kind = part.get("format")
    if not isinstance(kind, str) or kind not in _PATTERNS or "pattern" in part:
        return part
    rest = {key: value for key, value in part.items() if key != "format"}
    return rest | {"pattern": _PATTERNS[kind]}
