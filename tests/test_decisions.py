"""Every decision has a number of its own and a place in docs/architecture.md."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_decisions_are_numbered_and_listed() -> None:
    files = sorted((DOCS / "decisions").glob("*.md"))
    numbers = [path.name[:3] for path in files]
    assert len(set(numbers)) == len(files) > 0
    listed = (DOCS / "architecture.md").read_text()
    for number, path in zip(numbers, files, strict=True):
        assert path.read_text().startswith(f"# {number}: ")
        assert f"[{number}](decisions/{path.name})" in listed
