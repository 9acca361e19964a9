"""Does the picture say what happened? The film by itself, the lines in the terminal, and the page in a real browser."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fuzz.cli import main
from fuzz.film import Held, film
from fuzz.show import page, shown
from fuzz.show_batch import SHOWN
from fuzz.show_text import lines
from oracle import casefile
from oracle.batch import Batch
from oracle.casefile import BatchFile, CaseError
from oracle.ops import Alloc, Backup, Case, Clear, Config, Free, GroupBegin, GroupEnd, Part, Restore
from oracle.traits import Traits
from oracle.verdict import Observation
from tests import pictures
from tests.browser import MISSING, browser

REGRESSIONS = Path(__file__).parent.parent / "regressions"


def film_of(file):
    return film(file.case, file.claims, file.answers, file.finding)


# -- the film ------------------------------------------------------------------------------------------


def test_a_frame_says_who_holds_what():
    first, _, third, fourth, fifth = film_of(pictures.five()).frames
    assert first.changes == {1: Held("A", 4), 2: Held("A", 2)}
    assert (first.subject.pages, first.subject.seen.slots) == ((1, 2), tuple(range(4, 10)))
    assert third.changes == {2: Held("A", 3), 4: Held("B", 2)}
    assert fourth.changes == {4: None}
    assert fourth.subject.freed == (16, 17)
    assert fifth.changes == {1: None, 2: None}


def test_marks_are_what_the_finding_speaks_of():
    marks = film_of(pictures.five()).marks
    assert (marks.doubled, marks.lost) == ((1,), ())
    marks = film_of(pictures.swa()).marks
    assert (marks.doubled, marks.lost) == ((), (6, 7, 8))
    marks = film_of(casefile.read(REGRESSIONS / "counts-requests.json")).marks
    assert marks.pages == (2,)
    marks = film_of(casefile.read(REGRESSIONS / "canary.json")).marks
    assert marks.slots == (3,)


def test_the_reference_is_asked_the_same():
    frames = film_of(pictures.five()).frames
    assert [frame.reference.seen.slots for frame in frames] == [frame.subject.seen.slots for frame in frames]
    assert frames[-1].subject.seen.available == 20
    assert frames[-1].reference.seen.available == 16
    assert frames[-1].reference.seen.lists == ((1, 2, 4, 6), ())


def test_groups_snapshots_and_clear_are_followed():
    operations = (
        Alloc("A", 1), Backup("S"), GroupBegin(), Free((Part("A"),)), GroupEnd(), Alloc("B", 2), Restore("S"), Clear(),
    )  # fmt: skip
    case = Case(Config("token", 2), operations)
    slots = {0: (1,), 5: (2, 1)}
    answers = [
        Observation("slots" if at in slots else "done", slots.get(at, ())) for at in range(len(operations))
    ]
    frames = film(case, Traits(), answers).frames
    assert [frame.group for frame in frames] == [False, False, True, True, False, False, False, False]
    assert frames[3].changes == {1: Held("A", 1, "all")}
    assert frames[4].changes == {1: None}
    assert frames[5].changes == {2: Held("B", 1), 3: Held("B", 1)}
    assert frames[6].changes == {1: Held("A", 1), 2: None, 3: None}
    assert frames[7].changes == {1: None}


def test_a_case_without_answers_is_run(monkeypatch):
    file = replace(casefile.read(REGRESSIONS / "F37.json"), answers=(), claims=None)
    what = shown(file)
    assert (what.source, what.violation) == ("run just now", file.finding)
    assert shown(file, impl="token").violation is None
    with pytest.raises(CaseError, match="names no subject"):
        shown(replace(file, subject=""))


# -- the terminal --------------------------------------------------------------------------------------


def test_the_text_has_a_line_for_each_operation():
    text = [line.plain for line in lines(shown(pictures.five()))]
    assert text == [
        "defect:F12 on a paged pool of 6 page(s) of 4",
        "    1 extend A +6          [AAAA|AAaa|....|....|....|....]  took 4..9",
        "    2 extend B +5, C +3    [AAAA|AAaa|BBBB|Bbbb|CCCc|....]  took 12..16 20..22",
        "    3 decode A, B          [AAAA|AAAa|BBBB|BBbb|CCCc|....]  took 10 17",
        "    4 cut the last 2 of B  [AAAA|AAAa|BBBB|....|CCCc|....]  gave 16 17",
        "    5 free A               [....|....|BBBB|....|CCCc|....]  gave 4..10",
        "CONSERVE (fault): available_size() says 20 and 16 is right: of 6 page(s) of 4, 2 held",
    ]


def test_the_text_shows_both_pools_and_what_waits():
    text = [line.plain for line in lines(shown(pictures.swa()))]
    assert text[5] == (
        "    5 alloc 12 for C     [AAAA|AAAA|Aaaa|~~~~|~~~~|....|....|....] [....|....|Aaaa|~~~~|~~~~]  None"
    )


def test_the_text_of_a_relation_has_both_runs():
    text = "\n".join(line.plain for line in lines(shown(casefile.read(REGRESSIONS / "group-reverses.json"))))
    assert text.index("one way:") < text.index("the other way:")


def test_the_command_writes_a_page_or_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["show", str(REGRESSIONS / "F37.json")])
    assert (result.exit_code, result.stdout) == (0, "F37.html\n")
    assert "GROUP" in (tmp_path / "F37.html").read_text()
    result = CliRunner().invoke(main, ["show", str(REGRESSIONS / "F37.json"), "--text"])
    assert "5 free_group_end" in result.stdout
    (tmp_path / "broken.json").write_text("{")
    result = CliRunner().invoke(main, ["show", "broken.json"])
    assert result.exit_code == 2
    assert result.stderr.startswith("kvassay: broken.json: not JSON")


# -- the page ------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else():
    text = page(shown(pictures.five()))
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://|fetch\(|XMLHttp""", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["owners"] == ["A", "B", "C"]


def test_a_sentence_can_not_leave_its_place():
    file = pictures.five()
    finding = replace(file.finding, summary="</script><script>alert(1)</script>")
    text = page(shown(replace(file, finding=finding, subject="<i>")))
    assert "<script>alert" not in text
    assert "<i>" not in text.partition("<script>")[0]


@pytest.fixture(scope="module")
def driver():
    if MISSING:
        pytest.skip(MISSING)
    with browser() as made:
        yield made


@pytest.fixture
def opened(driver, tmp_path):
    """Opens the page of a case; afterwards nothing may have been asked for or have gone wrong."""

    def open_(file, **options):
        target = tmp_path / "case.html"
        target.write_text(page(shown(file, **options)), encoding="utf-8")
        driver.get_log("performance")
        driver.get(target.as_uri())
        return driver

    yield open_
    asked = [
        message["params"]["request"]["url"]
        for entry in driver.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == 1
    assert driver.get_log("browser") == []


def wait(holds):
    """Until something holds, which the browser does in its own time; not for ever."""
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.02)
    pytest.fail("it never came to hold")


def position(driver):
    return int(driver.execute_script("return document.body.dataset.position"))


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def texts(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())", selector
    )


def test_it_opens_at_the_violation_and_marks_it(opened):
    driver = opened(pictures.five())
    assert position(driver) == 5
    assert texts(driver, "#code") == ["CONSERVE"]
    assert texts(driver, "#says") == ["available_size() says 20 and 16 is right: of 6 page(s) of 4, 2 held"]
    assert texts(driver, ".row.bad.now .t") == ["free A"]
    marked = "return [...document.querySelectorAll('#subject .page.mark')].map(e => e.dataset.page)"
    assert driver.execute_script(marked) == ["1"]
    assert texts(driver, "#subject .chip.bad") == ["1", "1"]
    assert texts(driver, "#subject h3 .off") == ["20 slots available"]
    assert texts(driver, "#reference .page.mark, #reference .off, #reference .chip.bad") == []
    press(driver, "\ue012")  # left
    assert texts(driver, ".page.mark, .off, .chip.bad") == []


def test_keys_step_through_it(opened):
    from selenium.webdriver.common.keys import Keys

    driver = opened(pictures.five())
    press(driver, Keys.HOME)
    assert (position(driver), texts(driver, "#what")) == (0, ["a new pool"])
    for step in range(1, 4):
        press(driver, Keys.ARROW_RIGHT)
        assert position(driver) == step
    assert texts(driver, "#what") == ["decode A, B"]
    assert "slots 10 17" in texts(driver, "#subject .answer")[0]
    press(driver, Keys.ARROW_LEFT)
    assert position(driver) == 2
    press(driver, Keys.END, Keys.ARROW_RIGHT)
    assert position(driver) == 5
    press(driver, Keys.HOME, Keys.SPACE)
    wait(lambda: driver.execute_script("return document.body.dataset.playing") == "no")
    assert position(driver) == 5


def test_the_map_shows_whose_slots_they_are(opened):
    driver = opened(pictures.five())
    driver.execute_script("show(2)")
    cells = "return [...document.querySelectorAll('#subject [data-page=\"4\"] b')].map(b => b.textContent)"
    assert driver.execute_script(cells) == ["B", "", "", ""]
    filled = (
        "return getComputedStyle(document.querySelector('#subject [data-page=\"%s\"] b')).backgroundColor"
    )
    assert driver.execute_script(filled % 1) != driver.execute_script(filled % 3)
    assert driver.execute_script(filled % 6) != driver.execute_script(filled % 3)


def test_slider_and_list_go_to_an_operation(opened):
    driver = opened(pictures.five())
    driver.execute_script(
        "const s = document.getElementById('slider'); s.value = 2; s.dispatchEvent(new Event('input'))"
    )
    assert (position(driver), texts(driver, ".row.now .t")) == (2, ["extend B +5, C +3"])
    driver.find_element("css selector", '.row[data-at="4"]').click()
    assert position(driver) == 4


def test_both_pools_the_mapping_and_what_waits_are_there(opened):
    driver = opened(pictures.swa())
    assert texts(driver, "#subject h3")[0].startswith("full pool")
    assert texts(driver, "#subject h3")[1].startswith("window pool")
    assert "pages 4 5, for the end of the group" in "\n".join(texts(driver, "#subject .list"))
    assert "3→3" in texts(driver, "#subject .chip")
    marked = "return [...document.querySelectorAll('#subject .page.mark')].map(e => e.dataset.page)"
    assert driver.execute_script(marked) == ["6", "7", "8"]


def test_the_theme_follows_the_system_and_the_button(opened):
    driver = opened(pictures.five())
    theme = "return document.documentElement.dataset.theme"
    ground = "return getComputedStyle(document.body).backgroundColor"

    def system(scheme):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    system("dark")
    wait(lambda: driver.execute_script(theme) == "dark")
    dark = driver.execute_script(ground)
    system("light")
    wait(lambda: driver.execute_script(theme) == "light")
    assert driver.execute_script(ground) != dark
    driver.find_element("id", "theme").click()
    assert driver.execute_script(ground) == dark
    press(driver, "t")
    assert driver.execute_script(theme) == "light"


def test_a_relation_has_two_runs(opened):
    driver = opened(casefile.read(REGRESSIONS / "group-reverses.json"))
    assert texts(driver, "[data-run]") == ["one way", "the other way"]
    first = texts(driver, ".row .t")
    driver.find_element("css selector", '[data-run="1"]').click()
    assert texts(driver, ".row .t") != first


def test_thousands_of_operations_are_no_burden(opened):
    file = pictures.long()
    driver = opened(file)
    last = file.finding.index + 1
    assert 4900 < last < len(file.case.operations)
    assert f"{last:,} of 4,990, up to the finding" in texts(driver, "header")[0]
    assert position(driver) == last
    assert len(texts(driver, ".row")) < 60
    assert driver.execute_script("return document.querySelectorAll('*').length") < 4000
    state = "return [...document.querySelectorAll('#subject .page')].map(p => p.title).join()"
    straight = driver.execute_script("show(0); for (let k = 1; k <= 300; k++) show(k);" + state)
    jumped = driver.execute_script("show(2600); show(300);" + state)
    assert straight == jumped
    driver.execute_script("show(2500)")
    assert texts(driver, ".row.now .n") == ["2500"]


def test_the_page_draws_what_the_text_says(opened):
    file = pictures.five()
    driver = opened(file)
    drawn = []
    for step in range(1, 6):
        driver.execute_script(f"show({step})")
        cells = "return [...document.querySelectorAll('#subject .page:not(.pad)')].map(p => [...p.querySelectorAll('b')].map(b => b.textContent || '.').join('')).join('|')"
        drawn.append(driver.execute_script(cells))
    text = [re.search(r"\[(.*?)\]", line.plain)[1] for line in lines(shown(file)) if "[" in line.plain]
    assert drawn == [re.sub("[a-z]", ".", line) for line in text]


# -- a batch of the kernel tier ------------------------------------------------------------------------

READS_PAST = "tests.planted:ReadsPastFreeList"
OPENS_TWO = Batch(2, prefix=(1, 0), seq=(5, 2), last=(2, -1), free=(4, 2, 7))


def show_batch(path, batch, *options):
    casefile.write(path, BatchFile(batch, READS_PAST))
    return CliRunner().invoke(main, ["show", str(path), *options])


def test_a_batch_is_a_line_for_each_request(tmp_path):
    run = show_batch(tmp_path / "b.json", OPENS_TWO, "--text")
    assert run.exit_code == 0, run.output
    told = run.output.splitlines()
    assert told[:3] == [
        f"{READS_PAST}: extend of 2 request(s) on pages of 2, int64",
        "free list, in pages: 4 2 7",
        "           from  to  last_loc  right    got",
    ]
    assert told[3] == "request 0     1   5         2  3 8 9 4  3 8 9 4"
    assert told[4].startswith("request 1     0   2            14 15    14 1")
    assert told[5].startswith("GUARD (fault): ")
    sound = show_batch(tmp_path / "b.json", OPENS_TWO, "--text", "--impl", "torch").output.splitlines()
    assert sound[4:] == ["request 1     0   2            14 15    14 15", "every promise holds"]


def test_of_a_large_batch_what_is_right_is_counted(tmp_path):
    count = SHOWN + 1
    batch = Batch(2, (0,) * count, (2,) * count, (-1,) * count, tuple(range(1, count + 1)))
    told = show_batch(tmp_path / "b.json", batch, "--text").output.splitlines()
    assert told[3].startswith(f"request {count - 1} ")
    assert told[4] == f"{count - 1} more request(s) got what is right"


def test_a_batch_has_no_page(tmp_path):
    run = show_batch(tmp_path / "b.json", OPENS_TWO)
    assert (run.exit_code, "give --text" in run.output) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json"]
