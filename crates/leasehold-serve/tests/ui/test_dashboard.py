"""The dashboard in a real browser."""

import re
import time
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe

from locks import HOSTILE, HOSTILE_NAME, requests, viewers

PAGES = ["/ui/", "/ui/?prefix=deploy/&state=held&sort=waiting", "/ui/?find=nothing-like-this", "/ui/lock/deploy/prod/api",
         "/ui/lock/" + quote(HOSTILE_NAME), "/ui/waiting", "/ui/activity", "/ui/store", "/ui/evict/deploy/prod/api", "/ui/sign-in"]
LIVE = "#live[data-live=on]"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_pages_fit_and_are_accessible(full, open_page, scheme, width):
    page = open_page(full.server.address + "/ui/", width, scheme, full.server.token)
    for path in PAGES:
        page.goto(full.server.address + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} scrolls sideways"
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"


def test_names_and_notes_are_text(full, open_page):
    page = open_page(full.server.address + "/ui/")
    page.wait_for_selector(LIVE)
    for path in ["/ui/", "/ui/activity", "/ui/lock/" + quote(HOSTILE_NAME)]:
        page.goto(full.server.address + path)
        assert "hacked" not in page.title().replace(HOSTILE_NAME, "")
        assert HOSTILE.split(" \u202e")[0] in page.inner_text("main")
        assert page.locator("main script, main img").count() == 0
    page.click("nav[aria-label=Pages] >> text=Locks")
    page.click(f"a.name >> text={HOSTILE_NAME.split('/', 1)[0]}")
    assert page.inner_text("h1") == HOSTILE_NAME


def test_pages_work_without_javascript(full, open_page):
    page = open_page(full.server.address + "/ui/", java_script_enabled=False)
    assert page.locator("tbody tr").count() > 25
    page.click(".states >> text=Overdue")
    assert page.locator("tbody tr").count() == 2 and "may be taken over" in page.inner_text("tbody")
    page.click("tbody a.name >> nth=0")
    assert page.inner_text("h1") == "backup/db-1"


def test_rows_change_in_place_and_keep_the_focus(site, open_page):
    ticket = site.acquire("deploy/prod", owner="alice")
    site.acquire("other", owner="carol")
    server = site.serve()
    page = open_page(server.address + "/ui/")
    page.wait_for_selector(LIVE)
    row = page.locator("tr[data-lock='deploy/prod']")
    page.focus("tr[data-lock='deploy/prod'] a")
    page.evaluate("document.querySelector(\"tr[data-lock='other']\").kept = true")

    site.release(ticket)
    row.get_by_text("Free").wait_for()
    site.acquire("deploy/prod", owner="bob", note="a second deploy")
    row.get_by_text("a second deploy").wait_for()
    assert page.evaluate("document.activeElement.dataset.focus") == "deploy/prod", "the focus is kept"
    assert page.evaluate("document.querySelector(\"tr[data-lock='other']\").kept"), "other rows are left alone"
    assert page.inner_text(".states a[aria-current]").split() == ["All", "2"]
    page.wait_for_function("() => document.getElementById('say').textContent.includes('deploy/prod is held by bob')")

    site.acquire("new", owner="dave")
    page.locator("tr[data-lock='new']").wait_for()
    assert page.inner_text(".states a[aria-current]").split() == ["All", "3"]


def test_a_lease_runs_down_and_ends_overdue(site, open_page):
    site.acquire("short", ttl="4s")
    server = site.serve()
    page = open_page(server.address + "/ui/")
    lease = page.locator("tr[data-lock=short] .lease")
    left = lambda: float(lease.locator(".fill").get_attribute("width").rstrip("%"))
    first = left()
    page.wait_for_function("first => parseFloat(document.querySelector('tr[data-lock=short] .fill').getAttribute('width')) < first", arg=first)
    lease.get_by_text("overdue, may be taken over").wait_for()
    page.locator("tr[data-lock=short]").get_by_text("Overdue", exact=True).wait_for()
    assert "Free" not in page.inner_text("tr[data-lock=short]")


def test_a_renewed_lease_grows_again(site, open_page):
    site.hold("work", ttl="6s")
    server = site.serve()
    page = open_page(server.address + "/ui/lock/work")
    page.wait_for_selector(LIVE)
    page.evaluate("""() => { window.grown = false; let before = 1e9;
      setInterval(() => { const now = parseFloat(document.querySelector('.fill').getAttribute('width'));
        if (now > before + 5) window.grown = true; before = now; }, 100); }""")
    page.wait_for_function("() => window.grown")
    assert "overdue" not in page.inner_text("main")


def test_evicting_with_the_keyboard_alone(site, open_page):
    holder = site.hold("deploy/prod", owner="alice", ttl="5s")
    site.wait("deploy/prod", "bob")
    server = site.serve("--ui=rw")
    page = open_page(server.address + "/ui/")
    press = page.keyboard.press

    def tab_to(text):
        for _ in range(60):
            press("Tab")
            focus = page.evaluate("[document.activeElement.innerText || document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]")
            if focus[0].strip().startswith(text):
                assert focus[1] != "none", f"the focus on {text} is not visible"
                return
        raise AssertionError(f"the keyboard does not reach {text}")

    tab_to("deploy/prod")
    press("Enter")
    page.wait_for_url("**/ui/lock/deploy/prod")
    tab_to("Evict the holder")
    press("Enter")
    page.wait_for_url(re.compile("/ui/sign-in"))
    tab_to("token")
    page.keyboard.type(server.token)
    press("Enter")
    page.wait_for_url("**/ui/evict/deploy/prod")
    token = site.show("deploy/prod")["token"]
    text = page.inner_text("main")
    assert str(token) in text and "alice" in text and "bob" in text and "The holder is not stopped." in text
    tab_to("confirm")
    page.keyboard.type("deploy/prod")
    assert page.locator("main button").is_disabled()
    tab_to("reason")
    page.keyboard.type("the build hangs <b>again</b>")
    tab_to("Evict token")
    press("Enter")
    page.wait_for_url("**/ui/lock/deploy/prod")
    page.locator("section[data-lock] >> text=bob").wait_for()
    assert holder.wait(60) == 122, "the holder learns that it lost the lock"
    page.goto(server.address + "/ui/activity")
    assert "the build hangs <b>again</b>" in page.inner_text("main")


def test_an_eviction_that_comes_too_late_shows_the_change(site, open_page):
    ticket = site.acquire("deploy", owner="alice")
    server = site.serve("--ui=rw")
    page = open_page(server.address + "/ui/evict/deploy", token=server.token)
    site.release(ticket)
    site.acquire("deploy", owner="bob")
    page.fill("#confirm", "deploy")
    page.fill("#reason", "hangs")
    page.click("main button")
    text = page.inner_text("main")
    assert "Nothing was evicted" in text and "alice" in text and "bob" in text
    assert site.show("deploy")["holder"]["name"] == "bob"


def test_a_read_only_dashboard_has_no_forms(site, open_page):
    site.acquire("deploy")
    server = site.serve()
    page = open_page(server.address + "/ui/lock/deploy")
    assert page.locator("form[method=post]").count() == 0 and "read-only" in page.inner_text("main")


def test_a_killed_server_is_shown_by_a_banner(site, open_page):
    site.acquire("deploy", ttl="1h")
    server = site.serve()
    page = open_page(server.address + "/ui/")
    page.wait_for_selector(LIVE)
    server.kill()
    server.wait()
    page.locator("#banner").get_by_text("The connection to the server is lost.").wait_for()
    assert page.evaluate("document.body.classList.contains('stale')")
    # On the same address again, as after a restart: the banner goes by itself.
    site.start("serve", "--listen", server.address.removeprefix("http://"), "--json")
    page.locator("#banner").wait_for(state="hidden")
    page.wait_for_selector(LIVE)


def test_no_viewers_cost_the_store_nothing(site, open_page):
    for at in range(5):
        site.acquire(f"lock-{at}", ttl="1h")
    server = site.serve()
    page = open_page(server.address + "/ui/")
    page.wait_for_selector(LIVE)
    seen = requests(server.address)
    until(lambda: requests(server.address) >= seen + 5, page)  # the server looks at the locks of a visible page

    hide = """hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
      document.dispatchEvent(new Event('visibilitychange')); }"""
    page.evaluate(hide, True)  # headless pages are never hidden by themselves
    until(lambda: viewers(server.address) == 0, page)
    asks_nothing(server, page, "a hidden tab")

    page.evaluate(hide, False)
    page.wait_for_selector(LIVE)
    seen = requests(server.address)
    until(lambda: requests(server.address) > seen, page)
    page.context.close()
    until(lambda: viewers(server.address) == 0)
    asks_nothing(server, None, "a viewer that is gone")


def asks_nothing(server, page, who):
    """For 3 s, more than the longest pause between two requests for a viewer. That nothing happens has no event."""
    before = requests(server.address)
    page.wait_for_timeout(3_000) if page else time.sleep(3)
    assert requests(server.address) == before, f"{who} costs the store nothing"


def until(happened, page=None):
    """Asks the server until it says so: it has no event for its own counts."""
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "it did not happen within 30 s"
        page.wait_for_timeout(50) if page else time.sleep(0.05)
