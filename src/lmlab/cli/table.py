"""Aligned columns of plain text, for terminals and pipes alike."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[object]], header: Sequence[str] = ()) -> list[str]:
    """Lines with every column as wide as its widest cell.

    >>> table([["built", "a@dev"], ["build", "long/name@dev"]], header=("state", "artifact"))
    ['state  artifact', 'built  a@dev', 'build  long/name@dev']
    """
    cells = [[str(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    if not cells:
        return []
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
