"""The report is one well-formed page that loads nothing; what a browser makes of it, ci/check_report.py sees."""

import copy
import pickle
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import gemm
from comparison.runs import HOST, result_of
from gemm.bench import charts, contest, report
from gemm.bench.peaks import LINKS
from gemm.cli.compare import show
from gemm.compare import Comparison


class Elements(HTMLParser):
    """Checks that elements are closed in order, and collects names and attributes."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self):
        super().__init__()
        self.open = []
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(autouse=True)
def matplotlib():
    pytest.importorskip("matplotlib", reason="it draws the charts")


@pytest.fixture
def undrawn(monkeypatch):
    """One empty chart instead of all: drawing them takes seconds, and the test is of what is beside them."""
    monkeypatch.setattr(charts, "charts", lambda *_, **__: {"peak": ("a title", "a caption", None)})
    monkeypatch.setattr(charts, "svg", lambda *_: "<svg></svg>")


@pytest.mark.usefixtures("undrawn")
def test_transfers_are_in_the_page_and_in_the_terminal(with_device, capsys):
    rates = dict(zip(LINKS, (1.5, 2.5, 21, 22, 3e-5), strict=True))
    found = Comparison(with_device | {"links": {"opencl:7": rates}})
    show(found)
    for text in (found.page(), capsys.readouterr().out):
        assert report.LINKS_TITLE in text
        assert all(each in text for each in ("1.5", "2.5", "21", "22", "30 µs"))
    without = {name: value for name, value in with_device.items() if name != "links"}  # a file of an earlier version
    for document in (without, without | {"links": {}}):
        assert report.LINKS_TITLE not in Comparison(document).page()


def test_page(with_device):
    text = Comparison(with_device | {"absent": {"torch": "<b>&"}}).page()
    elements = Elements()
    elements.feed(text)
    assert elements.open == []
    assert {at["id"] for tag, at in elements.seen if tag == "section"} == {
        "headline", "machine", "thresholds", "chart-crossover", "chart-series", "chart-peak", "chart-roofline",
        "chart-choice", "family-squares", "family-batched", "method",
    }  # fmt: skip
    names = [at["id"] for _, at in elements.seen if at.get("id")]
    assert len(set(names)) == len(names)
    assert sum(tag == "svg" for tag, _ in elements.seen) == 10  # each chart twice, for wide and narrow windows
    assert "&lt;b&gt;&amp;" in text
    assert "There is no GPU" not in text
    for _, at in elements.seen:  # nothing is loaded, nothing runs
        assert not at.keys() & {"src", "srcset", "data", "action", "onload", "onclick"}
        assert all((value or "").startswith("#") for name, value in at.items() if name.endswith("href"))
    assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in elements.seen}
    assert "http" not in text
    assert "@import" not in text


@pytest.mark.usefixtures("undrawn")
def test_headline(with_device):
    quiet = with_device["quiet"] | {"warnings": []}
    sizes = {"host": 1024, "resident": 256, "once": 512}
    known = [row | {"size": sizes[row["mode"]]} for row in with_device["thresholds"]]
    known = [row | {"contestant": "opencl:7"} for row in known]
    document = with_device | {"quiet": quiet, "thresholds": known}
    assert report.headline(document) == "Use the GPU (opencl:7) from 1024³ host to host, from 256³ resident."
    never = document | {"thresholds": [row | {"size": None} for row in known]}
    assert report.headline(never) == "Do not use the GPU (opencl:7) at sizes up to 32³."
    assert report.thresholds(never)[1] == []  # no rows of dashes
    assert report.NONE_AHEAD in Comparison(never).page()
    assert report.headline(document | {"thresholds": []}) == report.NO_DEVICE
    busy = report.headline(document | {"quiet": quiet | {"warnings": ["other processes used 2.0 cores on average"]}})
    assert busy.startswith("No advice, because other processes used 2.0 cores on average. Close other programs")
    (spread,) = contest.warnings(dict.fromkeys(quiet) | {"median_spread": 0.19})
    loose = report.headline(document | {"quiet": quiet | {"warnings": [spread]}})
    assert loose.endswith(f"from 256³ resident. These sizes are rough, because {spread}.")
    page = Comparison(document).page()
    assert page.index("Use the GPU (opencl:7)") < page.index("<svg") < page.index("Offload thresholds")


@pytest.mark.usefixtures("undrawn")
def test_rough_rates_are_marked_and_never_the_best(with_device):
    quiet = with_device["quiet"] | {"warnings": []}
    rough = [row | {"spread": 0.4 if row["contestant"] == "cpu:0" else 0.01} for row in with_device["results"]]
    page = Comparison(with_device | {"quiet": quiet, "results": rough}).page()
    rates = [row for row in rough if row["contestant"] == "cpu:0" and row["mode"] == "host"]
    assert all(f">{report.rate(row)}</td>" in page and report.rate(row).endswith("~") for row in rates)
    best = re.findall(r'<td class="number best"[^>]*>(.*?)</td>', page)
    assert best
    assert not any(cell.endswith("~") for cell in best)
    busy = quiet | {"warnings": ["other processes used 2.0 cores on average"]}
    assert "number best" not in Comparison(with_device | {"quiet": busy, "results": rough}).page()
    assert report.rate(None) == "–"


def test_clocks_that_do_not_settle_get_a_note(with_device):
    assert all((row["unsettled"] is not None) == (row["mode"] == "resident") for row in with_device["results"])
    rows = [row | {"unsettled": 2 if row["mode"] == "resident" else None} for row in with_device["results"]]
    (note,) = report.notes(with_device | {"results": rows})
    assert note == "Resident times vary: the clocks of opencl:7 did not settle in some rounds."


def test_without_a_device(recorded):
    text = Comparison.load(recorded)._repr_html_()  # a page's body, for notebooks
    assert report.NO_DEVICE in text
    assert "There is no GPU on this machine." in text
    assert 'class="gemm-compare"' in text
    assert "<html" not in text


@pytest.mark.slow
def test_files(tmp_path, capsys):
    page, plots = tmp_path / "x.html", tmp_path / "plots"
    argv = [*HOST, "--sizes", "8,16", "--html", str(page), "--plots", str(plots)]
    status, out, _ = result_of(capsys, *argv)
    assert status == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert {file.stem for file in plots.glob("*.svg")} == {file.stem for file in plots.glob("*.png")}
    assert "charts in" in out


def test_plans_in_notebooks():
    shown = gemm.plan(np.ones((4, 4)), np.ones((4, 4)), backend="cpu")._repr_html_()
    assert shown.startswith("<p>4 × 4 × 4 float64, operands on host</p><table><tr>")
    assert "chosen: " in shown
    assert '<td style="text-align: left">→ dgemm_' in shown


def test_representations_are_one_readable_line(recorded):
    plan = gemm.plan(np.ones((4, 4)), np.ones((4, 4)), backend="cpu")
    possible, impossible = (
        next(c for c in gemm.plan(np.ones((4, 4)), np.ones((4, 4))).candidates if bool(c.why_not) is refused)
        for refused in (False, True)
    )
    for shown, start in (
        (plan, f"<GemmPlan {plan.kernel} on cpu:0, about "),
        (plan._plan, f"<Plan {plan.kernel} on cpu:0, about "),
        (possible, f"<Candidate {possible.kernel.name} on {possible.device.key}: about "),
        (impossible, f"<Candidate {impossible.kernel.name} on {impossible.device.key}: {impossible.why_not}>"),
        (Comparison.load(recorded), "<Comparison of "),
        (gemm.kernels()[0], f"<KernelStatus {gemm.kernels()[0].name} "),
    ):
        assert repr(shown).startswith(start)
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 200


def test_a_plan_is_copied_as_itself_and_not_pickled():
    plan = gemm.plan(np.ones((4, 4)), np.ones((4, 4)), backend="cpu")
    assert copy.copy(plan) is copy.deepcopy(plan) is plan
    with pytest.raises(TypeError, match=r"cannot be pickled.*call gemm\.plan where"):
        pickle.dumps(plan)
