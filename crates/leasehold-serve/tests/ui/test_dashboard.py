"""Tests the dashboard in a real browser."""

import json
import os
import re
import sqlite3
import time
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from locks import HOSTILE, HOSTILE_NAME, LIMIT, requests, viewers

PAGES = ["/ui/", "/ui/?state=all", "/ui/?state=problems", "/ui/?prefix=deploy/&state=held&sort=waiting", "/ui/?find=nothing-like-this", "/ui/lock/deploy/prod/api",
         "/ui/lock/" + quote(HOSTILE_NAME), "/ui/waiting", "/ui/activity", "/ui/store", "/ui/lock/billing/dunning",
         "/ui/evict/deploy/prod/api", "/ui/sign-in"]
LIVE = "#live[data-live=on]"
# Hides a page or shows it, because headless pages are never hidden.
HIDE = """hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
  document.dispatchEvent(new Event('visibilitychange')); }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1024, 1440])
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
    expect(page.locator("h1")).to_have_text(HOSTILE_NAME)


def test_pages_work_without_javascript(full, open_page):
    page = open_page(full.server.address + "/ui/", java_script_enabled=False)
    assert page.locator("tbody tr.held").count() > 15 and page.locator("tbody tr.free").count() == 0
    hidden = int(re.search(r"(\d+) free locks are hidden", page.inner_text("main")).group(1))
    page.click("text=Show all")
    expect(page.locator("tbody tr.free")).to_have_count(hidden)
    page.click(".states >> text=Lapsed")
    expect(page.locator("tbody tr")).to_have_count(2)
    assert "may be taken over" in page.inner_text("tbody")
    page.click("tbody a.name >> nth=0")
    expect(page.locator("h1")).to_have_text("backup/db-1")


def test_rows_change_in_place_and_keep_the_focus(site, open_page):
    ticket = site.acquire("deploy/prod", owner="alice")
    site.acquire("other", owner="carol")
    server = site.serve()
    page = open_page(server.address + "/ui/?state=all")
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


def test_a_lease_runs_down_and_ends_lapsed(site, open_page):
    site.acquire("short", ttl="15s")
    server = site.serve()
    page = open_page(server.address + "/ui/")
    lease = page.locator("tr[data-lock=short] .lease")
    left = lambda: float(lease.locator(".fill").get_attribute("width").rstrip("%"))
    first = left()
    page.wait_for_function("first => parseFloat(document.querySelector('tr[data-lock=short] .fill').getAttribute('width')) < first", arg=first)
    lease.get_by_text("may be taken over").wait_for()
    page.locator("tr[data-lock=short]").get_by_text("Lapsed", exact=True).wait_for()
    assert "Free" not in page.inner_text("tr[data-lock=short]")


def test_a_renewed_lease_grows_again(site, open_page):
    site.hold("work", ttl="15s")
    server = site.serve()
    page = open_page(server.address + "/ui/lock/work")
    page.wait_for_selector(LIVE)
    page.evaluate("""() => { window.grown = false; let before = 1e9;
      setInterval(() => { const now = parseFloat(document.querySelector('.fill').getAttribute('width'));
        if (now > before + 5) window.grown = true; before = now; }, 100); }""")
    page.wait_for_function("() => window.grown")
    assert "lapsed" not in page.inner_text("main")


def test_problems_come_first_and_say_what_is_wrong(site, open_page):
    site.acquire("a-held", ttl="1h", note="see https://ci.example/4711?a=1&b=2, <b>then</b> javascript:alert(1)")
    site.acquire("z-crowded", ttl="1h")
    for at in range(5):
        site.wait("z-crowded", f"waiter-{at}")
    site.acquire("z-lapsed", ttl="1s", owner="bob")
    site.release(site.acquire("a-free"))
    server = site.serve()
    page = open_page(server.address + "/ui/")
    page.locator("tr[data-lock=z-lapsed]").get_by_text("Lapsed", exact=True).wait_for()
    page.reload()
    names = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.lock)")
    assert names == ["z-lapsed", "z-crowded", "a-held"]
    assert re.search(r"lapsed for \d+ s, may be taken over", page.inner_text("tr[data-lock=z-lapsed]"))
    assert "many waiters" in page.inner_text("tr[data-lock=z-crowded]")
    link = page.locator("tr[data-lock=a-held] .c-note a")
    assert [link.get_attribute(name) for name in ("href", "rel")] == ["https://ci.example/4711?a=1&b=2", "noopener noreferrer nofollow"]
    assert link.count() == 1 and "<b>then</b> javascript:alert(1)" in page.inner_text("tr[data-lock=a-held] .c-note")
    page.click(".states >> text=Problems")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.fill("#find", "a-free")
    page.press("#find", "Enter")
    page.locator("h1").wait_for()
    page.goto(server.address + "/ui/")
    page.fill("#find", "a-free")
    page.press("#find", "Enter")
    page.locator("tr[data-lock=a-free]").wait_for()


@pytest.mark.parametrize("width", [360, 768])
def test_an_empty_store_is_named_with_the_first_command(site, open_page, width):
    server = site.serve()
    page = open_page(server.address + "/ui/", width)
    box, command = page.locator(".empty").bounding_box(), page.locator(".empty pre").bounding_box()
    assert command["x"] >= box["x"] and command["x"] + command["width"] <= box["x"] + box["width"]
    assert Axe().run(page).violations_count == 0
    assert site.store in page.inner_text(".empty p >> nth=0")
    assert f"leasehold -s {site.store} run demo" in page.inner_text(".empty pre")


def test_the_token_is_copied(site, open_page):
    site.acquire("deploy")
    server = site.serve()
    page = open_page(server.address + "/ui/lock/deploy", permissions=["clipboard-read", "clipboard-write"])
    page.wait_for_selector(LIVE)
    page.click("text=Copy")
    page.locator(".copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == str(site.show("deploy")["token"])
    plain = open_page(server.address + "/ui/lock/deploy", java_script_enabled=False)
    assert not plain.locator("[data-copy]").is_visible(), "it needs the script"


def test_permits_show_the_size_that_the_store_has(site, open_page):
    site.start("run", "pool", "-q", "--permits", "3", "--", "sleep", "10000")
    until(lambda: any(lock["state"] == "held" for lock in map(json.loads, site.command("ls", "--json").splitlines())))
    server = site.serve()
    page = open_page(server.address + "/ui/")
    page.locator("tbody").get_by_text("one of 3 permits").wait_for()
    page.click("tbody a.name")
    page.locator("section[data-lock]").get_by_text("one of 3 permits").wait_for()


def test_evicting_with_the_keyboard_alone(site, open_page):
    holder = site.hold("deploy/prod", owner="alice", ttl="30s")
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
    assert holder.wait(LIMIT) == 122, "the holder learns that it lost the lock"
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
    page.get_by_text("Nothing was evicted").wait_for()
    text = page.inner_text("main")
    assert "alice" in text and "bob" in text
    assert site.show("deploy")["held_by"]["holder"]["name"] == "bob"


def test_a_lock_is_reserved_renewed_and_released(site, open_page):
    server = site.serve("--ui=rw")
    page = open_page(server.address + "/ui/lock/deploy/prod")
    page.wait_for_selector(LIVE)
    page.click("text=Acquire the lock…")
    page.fill("#token", server.token)
    page.press("#token", "Enter")
    page.wait_for_selector("#note")
    page.select_option("#ttl", "8h")
    page.fill("#note", "restore <the> database")
    page.click("main button >> text=Acquire")
    page.get_by_text("Held by you").wait_for()
    assert page.url.endswith("/ui/lock/deploy/prod"), "nothing secret in the address"
    shown = site.show("deploy/prod")
    assert shown["held_by"]["holder"]["name"] == "operator" and shown["held_by"]["holder"]["note"] == "restore <the> database"
    assert "lh2_" not in page.content()

    page.reload()
    page.get_by_text("Held by you").wait_for()
    assert "restore <the> database" in page.inner_text("section[data-lock]")
    until = page.inner_text("[data-key=actions] time")
    page.wait_for_timeout(1_000)  # the time that is shown has seconds
    page.click("main button >> text=Renew")
    page.wait_for_function("until => document.querySelector('[data-key=actions] time').innerText > until", arg=until)
    assert site.show("deploy/prod")["token"] == shown["token"]
    other = open_page(server.address + "/ui/lock/deploy/prod", token=server.token)
    assert "Held by you" not in other.inner_text("main"), "another browser has no ticket"

    page.click("main button >> text=Release")
    page.wait_for_selector("#note")
    other.locator("section[data-lock] >> text=Free").wait_for()
    assert site.show("deploy/prod")["state"] == "free"


def test_what_is_typed_is_kept_when_the_store_does_not_answer(site, open_page):
    server = site.serve("--ui=rw")
    page = open_page(server.address + "/ui/lock/deploy", token=server.token)
    page.fill("#note", "a long note")
    busy = sqlite3.connect(site.store.removeprefix("sqlite:"), isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    page.click("main button >> text=Acquire")
    # The error depends on whether SQLite or leasehold gives up first.
    page.locator("main [role=alert]").get_by_text(re.compile("did not respond|is busy")).wait_for()
    assert page.input_value("#note") == "a long note"
    busy.execute("ROLLBACK")
    page.click("main button >> text=Acquire")
    page.get_by_text("Held by you").wait_for()


def test_a_hidden_tab_tells_when_the_lock_is_free(site, open_page):
    ticket = site.acquire("deploy", owner="alice", ttl="1h")
    server = site.serve()
    page = open_page(server.address + "/ui/lock/deploy")
    page.wait_for_selector(LIVE)
    page.check("text=Notify me when the lock is free")
    page.evaluate(HIDE, True)
    site.release(ticket)
    page.wait_for_function("() => document.title.startsWith('Free: deploy')")
    until(lambda: viewers(server.address) == 0, page)  # after the notification, the hidden tab causes no requests again
    page.evaluate(HIDE, False)
    site.acquire("deploy", owner="bob", ttl="1h")
    page.wait_for_function("() => document.title.startsWith('deploy')")


def test_what_is_typed_is_kept_when_the_lock_changes(site, open_page):
    server = site.serve("--ui=rw")
    page = open_page(server.address + "/ui/lock/deploy", token=server.token)
    page.wait_for_selector(LIVE)
    page.select_option("#ttl", "15m")
    page.focus("#note")
    page.keyboard.type("a long note")
    ticket = site.acquire("deploy")
    page.wait_for_selector("#note", state="detached")
    site.release(ticket)
    page.wait_for_selector("#note")
    assert page.input_value("#note") == "a long note" and page.input_value("#ttl") == "15m"


def test_the_store_is_examined_without_javascript(site, open_page):
    server = site.serve("--ui=rw")
    page = open_page(server.address + "/ui/store", java_script_enabled=False)
    page.click("text=Examine the store…")
    page.fill("#token", server.token)
    page.press("#token", "Enter")
    page.click("main button >> text=Examine the store")
    page.get_by_text("The store is safe for locks").wait_for()
    results = page.locator(".findings .state").all_inner_texts()
    assert "Passed" in results and "Failed" not in results
    assert page.locator(".findings .state svg").count() == len(results), "not by the colour alone"
    reader = open_page(server.address + "/ui/store")
    assert "operator asked for it" in reader.inner_text("main")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1024, 1440])
def test_forms_and_findings_fit_and_are_accessible(site, open_page, scheme, width):
    server = site.serve("--ui=rw", "--store", site.store + "?allow_network=on")  # the doctor warns of it
    page = open_page(server.address + "/ui/store", width, scheme, server.token)

    def check(what):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{what} scrolls sideways"
        found = Axe().run(page)
        assert found.violations_count == 0, f"{what}: {found.generate_report()}"
        if folder := os.environ.get("SCREENSHOTS"):  # for people
            page.screenshot(path=f"{folder}/{what}-{width}-{scheme}.png", full_page=True)

    page.click("main button >> text=Examine the store")
    page.get_by_text("The store is safe for locks; 1 warning.").wait_for()
    assert page.locator(".findings .state.warn").inner_text().strip() == "Warning"
    check("findings")
    page.goto(server.address + "/ui/lock/deploy/prod")
    check("free")
    page.evaluate(HIDE, True)  # so that the page keeps the form when another process acquires the lock
    until(lambda: viewers(server.address) == 0, page)
    site.acquire("deploy/prod", owner="bob", note="a deploy")
    page.evaluate("document.querySelector('form.stack').submit()")
    page.locator("main [role=alert]").wait_for()
    check("taken")
    page.goto(server.address + "/ui/lock/mine")
    page.fill("#note", "restore the database")
    page.click("main button >> text=Acquire")
    page.get_by_text("Held by you").wait_for()
    check("held by you")


def test_a_read_only_dashboard_has_no_forms(site, open_page):
    site.acquire("deploy")
    server = site.serve()
    page = open_page(server.address + "/ui/lock/deploy")
    assert page.locator("form[method=post]").count() == 0 and "read-only" in page.inner_text("main")


def test_a_killed_server_is_shown_by_a_banner(site, open_page):
    site.acquire("deploy", ttl="1h")
    site.acquire("short", ttl="1m")
    server = site.serve()
    page = open_page(server.address + "/ui/sign-in")
    page.clock.install()
    page.goto(server.address + "/ui/")
    page.wait_for_selector(LIVE)
    server.kill()
    server.wait()
    page.locator("#banner").get_by_text("The connection to the server is lost.").wait_for()
    assert page.evaluate("document.body.classList.contains('stale')")
    page.clock.fast_forward("05:00")  # the lease that the page shows would have ended
    page.locator("tr[data-lock=short] .lease").get_by_text("unknown").wait_for()
    assert page.locator(".over, .changed").count() == 0, "no alarm about a lock that nobody sees"
    # After a restart on the same address, the banner disappears by itself.
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

    page.evaluate(HIDE, True)
    until(lambda: viewers(server.address) == 0, page)
    asks_nothing(server, page, "a hidden tab")

    page.evaluate(HIDE, False)
    page.wait_for_selector(LIVE)
    seen = requests(server.address)
    until(lambda: requests(server.address) > seen, page)
    page.context.close()
    until(lambda: viewers(server.address) == 0)
    asks_nothing(server, None, "a viewer that is gone")


def asks_nothing(server, page, who):
    """Checks that the server sends no requests for 3 s, which is longer than the longest pause between two requests for
    a viewer. There is no event to wait for."""
    before = requests(server.address)
    page.wait_for_timeout(3_000) if page else time.sleep(3)
    # A request counts when it ends, and one may have been in progress.
    assert requests(server.address) <= before + 1, f"{who} costs the store nothing"


def until(happened, page=None):
    """Polls the server until `happened` is true. The server has no events for its own counts."""
    end = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < end, f"it did not happen within {LIMIT} s"
        page.wait_for_timeout(50) if page else time.sleep(0.05)
