"""What has become slower since an earlier comparison, and which files are refused."""

import copy
import json

import pytest

from comparison.runs import result_of
from gemm.bench import verdicts
from gemm.compare import Comparison


def test_verdicts(recorded):
    old = [row | {"samples_s": [x * row["seconds"] for x in (0.98, 0.99, 1.0, 1.01, 1.02)]}  # whatever else ran then
           for row in Comparison.load(recorded).rows]  # fmt: skip
    assert {each.verdict for each in verdicts.changes(old, old)} == {"same"}

    def scaled(factor):
        return [row | {"seconds": factor * row["seconds"], "samples_s": [factor * x for x in row["samples_s"]]}
                for row in old]  # fmt: skip

    assert {each.verdict for each in verdicts.changes(old, scaled(100))} == {"slower"}
    assert {each.verdict for each in verdicts.changes(scaled(100), old)} == {"faster"}
    assert {each.verdict for each in verdicts.changes(old, scaled(1.04))} == {"same"}
    slower = verdicts.regressions(verdicts.changes(old, scaled(2)))
    assert {each.row["contestant"] for each in slower} <= {"cpu:0"}  # NumPy's times are not ours to mend
    assert verdicts.confirmed(slower, slower[:1]) == slower[:1]
    assert verdicts.changes(old, []) == []


def test_samples_that_overlap_tell_nothing():
    place = dict.fromkeys(verdicts._KEY, 0) | {"backend": "cpu", "measured": True}
    then = place | {"seconds": 1.0, "samples_s": [0.8, 0.9, 1.0, 1.3, 1.4]}
    now = place | {"seconds": 1.2, "samples_s": [0.9, 1.0, 1.2, 1.3, 1.5]}
    assert [each.verdict for each in verdicts.changes([then], [now])] == ["same"]
    now["samples_s"] = [1.15, 1.2, 1.2, 1.2, 1.3]
    assert [each.verdict for each in verdicts.changes([then], [now])] == ["same"]  # within what it varied by then
    then["samples_s"] = [0.99, 1.0, 1.0, 1.0, 1.01]
    assert [each.verdict for each in verdicts.changes([then], [now])] == ["slower"]
    brief = [
        x | {"seconds": 1e-5 * x["seconds"], "samples_s": [1e-5 * each for each in x["samples_s"]]} for x in (then, now)
    ]
    assert [each.verdict for each in verdicts.changes(brief[:1], brief[1:])] == ["same"]  # 2 µs: the core's clock
    assert verdicts.changes([then], [now | {"measured": False}]) == []  # added up of others, and spread by nothing


def test_what_other_libraries_changed_by_is_the_machine():
    def row(name, backend, seconds, spread=0.01):
        samples = [seconds * (1 + spread * at) for at in (-2, -1, 0, 1, 2)]
        place = dict.fromkeys(verdicts._KEY, 0) | {"name": name, "backend": backend, "measured": True}
        return place | {"seconds": seconds, "samples_s": samples}

    old = [row("x", "cpu", 1.0), row("y", "cpu", 1.0), row("x", "numpy", 1.0), row("z", "numpy", 1.0)]
    now = [row("x", "cpu", 1.3), row("y", "cpu", 2.0), row("x", "numpy", 1.4), row("z", "numpy", 1.5, spread=0.5)]
    assert verdicts.noise(old, old) == verdicts.TOLERANCE
    noise = verdicts.noise(old, now)  # not by half: those samples tell nothing
    assert noise == pytest.approx(0.4)
    assert verdicts.noise(now, old) == pytest.approx(0.4)  # a machine that was slow then is as much of a stranger
    assert verdicts.noise(old, [row("x", "numpy", 50.0)]) == verdicts.MOST
    slower = verdicts.regressions(verdicts.changes(old, now, noise))
    assert [each.row["name"] for each in slower] == ["y"]
    assert [each.row["name"] for each in verdicts.regressions(verdicts.changes(old, now))] == ["y", "x"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "status", "words"), [(0.01, 1, "measured 3 times"), (99.0, 0, "Of 2 measured times, 0 became slower")]
)
def test_injected(capsys, recorded, tmp_path, factor, status, words):
    """Against a run in which the cpu backend claims to have been a hundred times as fast, or as slow."""
    document = Comparison.load(recorded).document
    for row in verdicts.find(document["results"], contestant="cpu:0"):
        row["seconds"] *= factor
        row["samples_s"] = [factor * x for x in row["samples_s"]]
    file = tmp_path / "old.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    found = result_of(capsys, "bench", "--compare-to", str(file), "--backends", "cpu,numpy", "--peers", "none")
    assert found[0] == status, found[1]
    assert words in found[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(schema="gemm-bench/1"), "gemm-bench/1"),
        (lambda d: d["machine"].update(cpu="Z80"), "Z80"),
        (lambda d: d["devices"][0].update(name="another"), "another"),
        (lambda d: d["devices"].append({"key": "cuda:9", "backend": "cuda", "name": "H900"}), "H900"),
    ],
)
def test_other_files_are_refused(
    capsys, recorded, tmp_path,
    change, words,
):  # fmt: skip
    document = copy.deepcopy(Comparison.load(recorded).document)
    change(document)
    file = tmp_path / "other.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    status, out, err = result_of(capsys, "bench", "--compare-to", str(file), "--backends", "cpu,numpy")
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
