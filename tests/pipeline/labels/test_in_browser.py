"""The page of `review` in a browser: labels by keys outlive a reload and come back from the files that it saves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.labels.label_files import Label, read_labels
from pipeline.run_dir.names import REVIEW
from tests.pipeline.labels.browser import CHROMIUM, Tab, tab
from tests.pipeline.labels.runs import RUN, run_of
from tests.pipeline.labels.test_page import data_of, rows_of

pytestmark = [
    pytest.mark.laws,
    pytest.mark.slow("a browser for each test"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)"),
]
NAME = "document.getElementById('about').click(); document.getElementById('name').value = '%s';"
START = "document.getElementById('start').click();"
BEGIN = "document.getElementById('name').value = 'Ann, \"=A\"'; document.getElementById('start').click()"
SAID, WARNING = (f"document.getElementById('{name}').textContent" for name in ("said", "warning"))
ENTRY = "document.getElementById('progress').textContent"


def in_browser(folder: Path, steps: Callable[[Tab], Awaitable[None]]) -> None:
    async def drive() -> None:
        async with asyncio.timeout(120), tab(folder / "profile", folder) as page:
            await steps(page)
            assert page.told("Runtime.exceptionThrown") == page.told("Log.entryAdded") == []
            assert page.told("Page.javascriptDialogOpening") == []
            urls = {request["request"]["url"].partition(":")[0] for request in page.told("Network.requestWillBeSent")}
            assert urls <= {"file", "data", "blob"}

    asyncio.run(drive())


def page_of(directory: Path, *arguments: str) -> tuple[Path, dict[str, Any]]:
    columns = "question,turns,extra,vector,verdict"
    assert main(["review", str(directory), "--columns", columns, *arguments]) == 0
    return directory / REVIEW, data_of(directory / REVIEW)[1]


async def saved(page: Tab, folder: Path, button: str, ending: str) -> Path:
    await page.run(f"document.getElementById('{button}').click()")
    while not (found := list(folder.glob(f"*{ending}"))):
        await asyncio.sleep(0.05)
    (folder / "saved").mkdir(exist_ok=True)
    return found[0].rename(folder / "saved" / found[0].name)  # a browser without a window overwrites files


async def loaded(page: Tab, file: Path) -> None:
    field = await page.call("Runtime.evaluate", expression="document.getElementById('file')")
    await page.call("DOM.setFileInputFiles", files=[str(file)], objectId=field["result"]["objectId"])


def said(labels: list[Label]) -> list[tuple[Any, ...]]:
    return [tuple(getattr(label, name) for name in Label.__slots__ if name != "where") for label in labels]


def test_labels_outlive_a_reload_and_come_back_from_files(tmp_path, capsys):
    path, data = page_of(run_of(tmp_path / "out", rows_of(), data={"id_column": "id"}), "--rows", "20")
    expected = {i: ("no", "yes")[i % 2] for i in range(20)}

    async def steps(page: Tab) -> None:
        await page.open(path)
        await page.run(BEGIN)
        row, _, name, *_ = data["rows"][0]
        assert await page.run("document.getElementById('title').textContent") == f"{name}, row {row}"
        for i in range(10):
            await page.press("ny"[i % 2] if i < 5 else "12"[i % 2])  # by letters, and by numbers
        await page.press("k", "k", "2", "u", "j", "j", "c")  # row 8 is labelled otherwise, and that is undone
        await page.run("document.activeElement.value = '=1, \"a\"\\nb'")
        await page.run("document.activeElement.dispatchEvent(new Event('input'))")
        await page.press("Escape", "s", "u", "s")
        await page.reload()
        assert (await page.run(ENTRY)).startswith("12 of 20: 10 labelled, 1 skipped")
        await page.press("f")  # only unlabelled rows: the skipped one comes again at the end
        for i in [*range(11, 20), 10]:
            await page.press("12"[i % 2])
        assert "20 labelled, 20 not in a file yet" in await page.run(ENTRY)
        lines = await saved(page, tmp_path, "jsonl", ".jsonl")
        table = await saved(page, tmp_path, "csv", ".defused.csv")
        assert """"'=1, ""a""\nb\"""" in table.read_text(encoding="utf-8-sig")  # a spreadsheet runs it not
        labels = read_labels([lines])
        assert said(labels) == said(read_labels([table]))
        rows = {row: i for i, (row, *_) in enumerate(data["rows"])}
        assert {rows[label.row or 0]: label.label for label in labels} == expected
        assert {label.run for label in labels} == {RUN}
        assert {(label.reviewer, label.folder) for label in labels} == {('Ann, "=A"', "data")}
        assert all(label.id == f"r{label.row}" and label.labelled_at is not None for label in labels)
        assert [label.comment for label in labels if label.comment] == ['=1, "a"\nb']
        assert {label.sample for label in labels} == {data["head"]["sample"]}
        assert {(label.stratum, label.stratum_rows) for label in labels} == set(map(tuple, data["head"]["strata"]))
        told = []
        for file in (lines, table):
            capsys.readouterr()
            assert main(["calibrate", str(path.parent), "--labels", str(file), "--verdict", "verdict"]) == 0
            lines_of = capsys.readouterr().out.replace(file.name, "FILE").splitlines()
            told.append([line for line in lines_of if not line.startswith(("written", "replaced"))])
        assert told[0] == told[1]
        assert ["given", "20"] in [line.split() for line in told[0]]
        for file in (lines, table):
            await page.run("localStorage.clear()")
            await page.reload()
            assert await page.run(ENTRY) == "1 of 20: 0 labelled"
            await loaded(page, file)
            await page.until(f"{ENTRY}.includes('20 labelled')")
            assert said(read_labels([await saved(page, tmp_path, "jsonl", ".jsonl")])) == said(labels)

    in_browser(tmp_path, steps)


def test_hostile_texts_are_shown_and_do_nothing(tmp_path):
    path, data = page_of(run_of(tmp_path / "out", rows_of()), "--rows", "60")

    async def steps(page: Tab) -> None:
        await page.open(path)
        await page.run(BEGIN)
        for _, _, _, _, fields, _ in data["rows"]:
            shown = await page.run(
                "[...document.querySelectorAll('article > section')].map((s) => s.children[1].textContent)"
            )
            assert shown[0] == fields[0]
            assert shown[2] == fields[2]["json"]
            assert await page.run("document.querySelectorAll('article script, article img, article b b').length") == 0
            await page.press("ArrowRight")
        assert await page.run("document.scripts.length") == 2

    in_browser(tmp_path, steps)


def test_ten_thousand_rows_are_one_page(tmp_path, capsys):
    rows = [{"question": f"{i} " + "word " * 200, "verdict": "yn"[i % 2]} for i in range(10_000)]
    directory = run_of(tmp_path / "out", rows)
    assert main(["review", str(directory), "--columns", "question,verdict", "--rows", "10000"]) == 0

    async def steps(page: Tab) -> None:
        await page.open(directory / REVIEW)
        await page.run(BEGIN)
        times = await page.run(
            "Array.from({length: 200}, () => { const t = performance.now();"
            " document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '1', bubbles: true}));"
            " document.body.offsetHeight; return performance.now() - t; })"
        )
        assert (await page.run(ENTRY)).startswith("201 of 10000: 200 labelled")
        with capsys.disabled():
            size = (directory / REVIEW).stat().st_size
            print(f"\n{size:,} bytes; a key press {sorted(times)[100]:.1f} ms, {max(times):.1f} at most")

    in_browser(tmp_path, steps)


def test_a_second_reviewer_has_labels_of_his_own_and_a_browser_that_keeps_nothing_says_so(tmp_path):
    path, _ = page_of(run_of(tmp_path / "out", rows_of()), "--rows", "10")
    forget = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no') }})"

    async def steps(page: Tab) -> None:
        await page.open(path)
        await page.run(BEGIN)
        await page.press("1", "2")
        await page.run(NAME % "Bob" + START)
        assert "0 labelled" in await page.run(ENTRY)
        await page.press("1")
        mine = "document.getElementById('take').click();"
        await page.run(NAME % "Bobby" + mine + START)
        assert "1 labelled" in await page.run(ENTRY)  # the name was mistyped, the labels stay
        await page.run(NAME % 'Ann, "=A"' + mine + START)
        assert "has labels already" in await page.run("document.getElementById('refused').textContent")
        await page.run(mine + START)
        assert "2 labelled" in await page.run(ENTRY)
        await page.run(NAME % "Bobby" + START)
        assert "1 labelled" in await page.run(ENTRY)
        assert await page.run(SAID) == await page.run(WARNING) == ""
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=forget)
        await page.reload()
        for _ in range(3):  # a browser lets Escape close what it could not before
            await page.press("Escape")
        await page.run("document.getElementById('start').click(); decide('yes')")
        assert await page.run(ENTRY) == "1 of 10: 0 labelled"  # nobody has labelled
        await page.run(BEGIN)
        await page.press("1")
        assert "1 labelled" in await page.run(ENTRY)
        assert "keeps nothing" in await page.run(WARNING)

    in_browser(tmp_path, steps)


def test_two_tabs_share_labels_and_a_file_has_those_of_both(tmp_path):
    path, _ = page_of(run_of(tmp_path / "out", rows_of()), "--rows", "10")

    async def steps(first: Tab) -> None:
        await first.open(path)
        await first.run(BEGIN)
        second = await first.another()
        await second.open(path)
        await first.press("1", "1", "1", "1", "1")
        await second.press("j", "j", "j", "2", "2", "2")
        await first.until(f"{ENTRY}.includes('6 labelled, 6 not in a file yet')")
        labels = read_labels([await saved(second, tmp_path, "jsonl", ".jsonl")])
        assert sorted(label.label or "" for label in labels) == ["no", "no", "no", "yes", "yes", "yes"]
        await first.until(f"{ENTRY}.endsWith('6 labelled')")
        await first.press("s")
        await second.until(f"{ENTRY}.endsWith('1 skipped, 1 not in a file yet')")

    in_browser(tmp_path, steps)


def test_a_full_browser_says_so_until_a_file_is_saved(tmp_path):
    path, _ = page_of(run_of(tmp_path / "out", rows_of()), "--rows", "10")
    fill = (
        "for (let i = 0, text = 'x'.repeat(1 << 20); text; i++)"
        " try { localStorage.setItem('fill' + i, text); } catch { text = text.slice(text.length >> 1 || 1); }"
    )
    asks = "!dispatchEvent(new Event('beforeunload', { cancelable: true }))"

    async def steps(page: Tab) -> None:
        await page.open(path)
        await page.run(BEGIN)
        await page.press("1", "2")
        assert not await page.run(asks)
        other = "JSON.stringify({{ label: 'x'.repeat(5000), at: '2026', saved: {} }})"
        for key, is_saved in (("review/1/2/Ann/0", "true"), ("review/1/2/Ann/1", "undefined")):
            await page.run(f"localStorage.setItem('{key}', {other.format(is_saved)})")
        await page.run(fill)
        await page.press("1", "2", "s")
        assert "3 rows are in this open page alone" in await page.run(WARNING)
        assert await page.run(asks)
        await page.run("document.getElementById('room').click()")
        assert await page.run(WARNING) == ""
        others = "Object.keys(localStorage).filter((key) => key.startsWith('review/1/'))"
        assert await page.run(others) == ["review/1/2/Ann/1"]  # no file has that one
        await page.run(fill)
        await page.press("1")
        assert "1 rows are in this open page alone" in await page.run(WARNING)
        labels = read_labels([await saved(page, tmp_path, "jsonl", ".jsonl")])
        assert len(labels) == 6
        assert await page.run(WARNING) == ""
        assert not await page.run(asks)
        await page.reload()
        assert "4 labelled, 1 skipped" in await page.run(ENTRY)  # what was kept before

    in_browser(tmp_path, steps)


def test_a_digit_means_the_choice_with_that_number(tmp_path):
    choices = {
        ",".join(map(str, range(11))): [[str(i)] for i in range(10)] + [[]],
        "+1,-1,0.5": [["1"], [], []],
        "2 stars,1 star,none": [["2"], ["1"], ["n"]],
        "false,true": [["1"], ["2"]],  # f is a key of the page
        "yes,no": [["1", "y"], ["2", "n"]],
    }

    async def steps(page: Tab) -> None:
        for number, (names, keys) in enumerate(choices.items()):
            directory = run_of(tmp_path / str(number), rows_of(10))
            await page.open(page_of(directory, f"--choices={names}")[0])
            assert await page.run("keysOf") == keys, names

    in_browser(tmp_path, steps)


def test_after_the_last_row_keys_label_nothing_and_what_is_open_comes_back_open(tmp_path):
    path, _ = page_of(run_of(tmp_path / "out", rows_of()), "--rows", "6")
    entries = "JSON.stringify(entries.map(({ label, comment }) => [String(label), comment ?? '']))"

    async def steps(page: Tab) -> None:
        await page.open(path)
        await page.run(BEGIN)
        await page.press("f", *"111111")
        assert "Save the labels" in await page.run(SAID)
        await page.press("2", "2", "s")
        assert json.loads(await page.run(entries)) == [["no", ""]] * 6
        await page.press("u", "f", "k", "s", "c")  # the last row is open again, the one before skipped
        await page.run("document.activeElement.value = 'why?'")
        await page.run("document.activeElement.dispatchEvent(new Event('input'))")
        before = await page.run(entries)
        assert json.loads(before)[-2:] == [["null", ""], ["undefined", "why?"]]
        table = (await saved(page, tmp_path, "csv", ".csv")).read_text(encoding="utf-8-sig")
        excel = "\r\n".join(f"note;{line}" for line in table.replace(",", ";").splitlines())
        for name, text in (("as it is.csv", table), ("excel.csv", excel)):
            (tmp_path / name).write_text(text, encoding="utf-8-sig")
            await page.run("localStorage.clear()")
            await page.reload()
            await loaded(page, tmp_path / name)
            await page.until(f"{SAID}.includes('{name}')")
            assert await page.run(entries) == before

    in_browser(tmp_path, steps)
