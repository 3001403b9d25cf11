"""The colours of charts and pages: one list, light and dark, and the style sheet that maps them.

Colours in an SVG are the light ones; the style sheet maps each to a variable, so that a chart follows the
reader's light or dark mode.
"""

from functools import cache
from importlib.resources import files

# name -> (light, dark); light values must differ, since the style sheet selects by them.
PALETTE = {
    "ink": ("#1a1f29", "#e8eaed"),
    "muted": ("#5d6675", "#9aa4b2"),
    "grid": ("#e4e7ec", "#2b323d"),
    "paper": ("#ffffff", "#161a21"),
    "main": ("#2459c4", "#7aa7ff"),
    "second": ("#c2570c", "#f5a15c"),
    "third": ("#0f766e", "#4fd1c5"),
    "fourth": ("#7c5c00", "#d9b84a"),
    "fifth": ("#86198f", "#e08cf0"),
    "band": ("#dbe6fb", "#1f2f4d"),
}
COLOUR = {name: light for name, (light, _) in PALETTE.items()}


@cache
def style_sheet() -> str:
    """The style of reports and pages, with a variable for each colour, in light and in dark."""
    light = "".join(f"--{name}:{value[0]};" for name, value in PALETTE.items())
    dark = "".join(f"--{name}:{value[1]};" for name, value in PALETTE.items())
    rules = "".join(
        f'svg [fill="{value[0]}"]{{fill:var(--{name})}}svg [stroke="{value[0]}"]{{stroke:var(--{name})}}'
        for name, value in PALETTE.items()
    )
    variables = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{rules}"
    return variables + files("lmlab.reports").joinpath("assets/style.css").read_text()
