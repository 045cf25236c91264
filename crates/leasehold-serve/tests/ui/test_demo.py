"""Renders the picture of the README in a browser."""

from pathlib import Path

DEMO = Path(__file__).resolve().parents[4] / "docs/demo/demo.svg"
# Where the words of the table of `leasehold ls` begin, in pixels.
STARTS = """heading => {
  const line = [...document.querySelectorAll('text')].find(text => text.textContent.startsWith(heading));
  const words = [...line.textContent.matchAll(/\\S+( \\S+)*/g)];
  return words.map(word => line.getStartPositionOfChar(word.index).x);
}"""


def test_the_columns_of_the_demo_are_kept(open_page):
    page = open_page(DEMO.as_uri())
    headings, cells = page.evaluate(STARTS, "LOCK "), page.evaluate(STARTS, "nightly ")
    assert len(headings) == len(cells) == 6
    assert all(abs(heading - cell) < 1 for heading, cell in zip(headings, cells)), (headings, cells)
