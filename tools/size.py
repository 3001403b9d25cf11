"""Lines of each package against its budget, and files or functions that are too long.

The budgets are the architecture's; raising one is a change to this file, with its reason in the commit.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

BUDGETS = {
    "cli": 2350,
    "web": 1200,
    "reports": 1400,
    "posttraining": 1900,
    "evals": 1200,
    "serving": 2000,
    "training": 2400,
    "models": 2300,
    "science": 1600,
    "tokens": 2800,
    "corpus": 8150,
    "dataflow": 2950,
    "artifacts": 5700,
    "cluster": 3400,
    "telemetry": 1400,
    "storage": 2750,
    "core": 815,
}
PAGE_BUDGET = 1500
FILE_LINES = 600
FUNCTION_LINES = 60


@dataclass(frozen=True)
class Size:
    """What was counted in one package."""

    lines: int
    statements: int
    files: int


def measure(folder: Path) -> Size:
    """All lines and logical statements of the `.py` files below `folder`."""
    sources = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    statements = sum(isinstance(node, ast.stmt) for text in sources for node in ast.walk(ast.parse(text)))
    return Size(sum(text.count("\n") for text in sources), statements, len(sources))


def long_things(folder: Path) -> list[str]:
    """Files and functions past the hard limits of the style guide."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        if text.count("\n") > FILE_LINES:
            found.append(
                f"{path}: {text.count(chr(10))} lines, the limit is {FILE_LINES}: it holds two ideas"
            )
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found.append(
                        f"{path}:{node.lineno}: {node.name} has {lines} lines, the limit is {FUNCTION_LINES}"
                    )
    return found


def main() -> int:
    """Print the table; 1 if a budget or a hard limit is passed."""
    source = Path(__file__).parents[1] / "src" / "lmlab"
    problems = long_things(source)
    total = Size(0, 0, 0)
    if "--quiet" not in sys.argv:
        print(f"{'package':<14}{'lines':>8}{'budget':>8}{'statements':>12}{'files':>7}")
    for package in sorted(path.name for path in source.iterdir() if (path / "__init__.py").exists()):
        if package not in BUDGETS:
            problems.append(f"src/lmlab/{package} has no budget. Name it in tools/size.py.")
            continue
        size = measure(source / package)
        total = Size(total.lines + size.lines, total.statements + size.statements, total.files + size.files)
        if size.lines > BUDGETS[package]:
            problems.append(f"{package}: {size.lines} lines are over its budget of {BUDGETS[package]}")
        if "--quiet" not in sys.argv:
            row = (size.lines, BUDGETS[package], size.statements, size.files)
            print(f"{package:<14}{row[0]:>8}{row[1]:>8}{row[2]:>12}{row[3]:>7}")
    if "--quiet" not in sys.argv:
        print(f"{'all':<14}{total.lines:>8}{sum(BUDGETS.values()):>8}{total.statements:>12}{total.files:>7}")
    pages = [p for p in source.rglob("*") if p.suffix in (".html", ".css", ".js")]
    page_lines = sum(path.read_text().count("\n") for path in pages)
    if page_lines > PAGE_BUDGET:
        problems.append(
            f"pages, styles and scripts: {page_lines} lines are over their budget of {PAGE_BUDGET}"
        )
    print("\n".join(problems) if problems else f"size: {total.lines} lines, every package within its budget")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
