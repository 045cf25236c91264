"""Renders the picture of the README in a browser."""

from pathlib import Path

DEMO = Path(__file__).resolve().parents[4] / "docs/demo/demo.svg"
# Where the words of a line of the table of `leasehold ls` begin, in pixels. Each colour is a text of its own, and the time at
# the right edge is no part of the table.
STARTS = """heading => {
  const texts = [...document.querySelectorAll('text')];
  const y = texts.find(text => text.textContent.startsWith(heading)).getAttribute('y');
  const line = texts.filter(text => text.getAttribute('y') === y && !text.hasAttribute('text-anchor'));
  return line.flatMap(text => {
    const words = [...text.textContent.matchAll(/\\S+( \\S+)*/g)];
    return words.map(word => text.getStartPositionOfChar(word.index).x);
  });
}"""


def test_the_columns_of_the_demo_are_kept(open_page):
    page = open_page(DEMO.as_uri())
    headings, cells = page.evaluate(STARTS, "LOCK "), page.evaluate(STARTS, "nightly")
    assert len(headings) == len(cells) == 6
    assert all(abs(heading - cell) < 1 for heading, cell in zip(headings, cells)), (headings, cells)
