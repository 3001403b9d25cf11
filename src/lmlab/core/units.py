"""How sizes, durations and counts are printed: once, for every surface."""

import math


def format_bytes(size_bytes: float) -> str:
    """Binary units with one decimal: 1536 -> '1.5 KiB'.

    >>> format_bytes(1536), format_bytes(12)
    ('1.5 KiB', '12 B')
    """
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    unit = min(int(math.log2(abs(size_bytes)) / 10), 4)
    return f"{size_bytes / 1024**unit:.1f} {'BKMGT'[unit]}iB"


def format_seconds(seconds: float) -> str:
    """Two significant parts at most: 0.012 -> '12 ms', 75 -> '1m15s', 7300 -> '2h01m'.

    >>> format_seconds(0.012), format_seconds(4.25), format_seconds(75), format_seconds(7300)
    ('12 ms', '4.2 s', '1m15s', '2h01m')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def format_count(count: float) -> str:
    """Decimal units with three digits: 14019 -> '14.0k', 5.2e6 -> '5.20M'.

    >>> format_count(999), format_count(14019), format_count(5.2e6)
    ('999', '14k', '5.2M')
    """
    if abs(count) < 1000:
        return f"{count:.0f}"
    # Three digits round 999,999 up to the next unit.
    unit = min(int(math.log10(float(f"{abs(count):.3g}")) / 3 + 1e-9), 5)
    return f"{count / 1000**unit:.3g}{' kMGTP'[unit]}"
