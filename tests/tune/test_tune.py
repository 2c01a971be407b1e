"""Tuning: the search, the child that takes its risks, the records and what dispatch makes of them."""

import itertools
import json
import logging
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from helpers import at_once, probed, python

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.catalog import BY_NAME, KERNELS, Kernel
from gemm.cli import main
from gemm.core import disk_cache
from gemm.core.backend import Backend
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device, Problem
from gemm.select import probe, tuning_db
from gemm.select.candidates import RowOnDevice
from gemm.select.tuning_db import LEVELS, Class, Record, document, key_of, parse
from gemm.select.worker import Child
from gemm.tune import tuner

NAIVE = "kernels/opencl/generic/gemm_generic_naive.cl"
ROW = Kernel(
    "sgemm_fake_1x1", "fake", "fake", "float32", NAIVE, params={"MS": 4, "FAULT": 0}, ordered=False,
    space={"MS": (1, 4), "FAULT": (0, 1, 2, 3, 4, 5)},
)  # fmt: skip
DEVICE = Device("fake", "fake:0", "a fake", "Fakes", "1.0", limits={"work_group": 64})
SHAPE = (1, 24, 20, 16)

# The child's backend: it sleeps MS milliseconds a product, and FAULT says what else it does. sitecustomize adds it.
FAKE = f"""
import os, sys, time
import numpy as np
from gemm import catalog
from gemm.core.backend import Backend
from gemm.core.problem import Device
sys.modules["fake"] = sys.modules[__name__]
catalog.BACKENDS["fake"] = "fake:Fake"
catalog.BY_NAME["{ROW.name}"] = catalog.Kernel(
    "{ROW.name}", "fake", "fake", "float32", "{NAIVE}", params={dict(ROW.params)}, space={dict(ROW.space)},
    ordered=False)
class Fake(Backend):
    name = "fake"
    def devices(self):
        return (Device("fake", "fake:0", "a fake", "Fakes", "1.0"),)
    def launcher(self, kernel, device, problem):
        fault = kernel.params["FAULT"]
        with open(os.environ["FAKE_LOG"], "a") as log:
            log.write(kernel.label + "\\n")
        if fault == 1: os.abort()
        if fault == 2: time.sleep(600)
        def launch(a, b, c, out, alpha, beta):
            time.sleep(kernel.params["MS"] / 1000)
            if fault == 3 and problem.m > 9: os._exit(7)
            out[...] = alpha * (a @ b) + (0 if c is None else beta * c)
            if fault == 4: out[-1, -1] += 1
            if fault == 5: out.base.reshape(-1)[:1] = 0
        return launch
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Each test has a cache folder of its own, and nothing is shipped."""
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tuned").mkdir()
    monkeypatch.setattr(tuning_db, "SHIPPED", tmp_path / "tuned")

    def forget():
        disk_cache.cache_dir.cache_clear()
        tuning_db._shipped.cache_clear()
        probe.recalled.clear()
        execute.forget()

    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()


@pytest.fixture
def fake(fresh, monkeypatch):
    """Puts the fake backend into the children; its log names each kernel that was built."""
    (fresh / "sitecustomize.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(fresh))
    monkeypatch.setenv("GEMM_PROBE_TIMEOUT", "3")
    monkeypatch.setenv("FAKE_LOG", str(fresh / "log"))
    (fresh / "log").touch()

    def built():
        names = (fresh / "log").read_text().split()
        (fresh / "log").write_text("")
        return set(names)

    return built


def tuned(shape=SHAPE, row=ROW, **options):
    with Child("gemm.tune.tuner") as child:
        return list(tuner.tune(child, DEVICE, [row], shape, "NN", **options))


def test_a_bad_candidate_costs_itself_and_is_remembered(fake):
    steps = tuned()
    fates = {key_of(step.params): step.trial for step in steps}
    assert len(fates) == len(steps) - 1 == 12  # the best one twice
    words = {1: "ended with status", 2: "hung while it was built", 3: "ended with status 7 while it was checked",
             4: "is wrong", 5: "wrote outside"}  # fmt: skip
    for ms, (fault, word) in itertools.product((1, 4), words.items()):
        assert word in fates[f"FAULT={fault},MS={ms}"]
    record = steps[-1].record
    assert record.params == {"MS": 1, "FAULT": 0}
    assert fates["FAULT=0,MS=1"] < fates["FAULT=0,MS=4"]
    assert record.gain > 1
    assert tuning_db.stored(DEVICE) == (record,)
    fake()
    # Another class of products: what failed is not tried again, also by another process.
    tuning_db.forget()
    again = tuned((1, 200, 20, 16))
    assert fake() == {ROW.label, ROW.tuned({"MS": 1}).label}
    assert {key_of(step.params) for step in again if not isinstance(step.trial, str)} == {
        "FAULT=0,MS=4",
        "FAULT=0,MS=1",
    }
    # A new driver, a new chance.
    assert not tuning_db.failure(
        ROW, ROW.tuned({"FAULT": 1}), Device("fake", "fake:0", "a fake", "Fakes", "2.0"), PROBLEM
    )
    assert tuning_db.failure(ROW, ROW.tuned({"FAULT": 1}), DEVICE, PROBLEM)


PROBLEM = Problem("float32", 24, 20, 16)
GOOD = replace(ROW, space={"MS": (1, 4)})


def test_a_run_goes_on_where_it_was_interrupted(fake):
    with Child("gemm.tune.tuner") as child:
        steps = tuner.tune(child, DEVICE, [GOOD], SHAPE, "NN")
        first = next(steps)
        steps.close()
    assert fake() == {GOOD.label}
    tuning_db.forget()
    assert [record.trials for record in tuning_db.stored(DEVICE)] == [{"MS=4": first.trial}]
    rest = tuned(row=GOOD)
    assert rest[0].trial == first.trial
    assert rest[-1].record.params == {"MS": 1}
    fake()
    assert len(tuned(row=GOOD)) == 2
    assert fake() == set()  # all of it is known


def test_without_time_nothing_is_tried(fake):
    assert tuned(until=time.monotonic()) == []
    assert fake() == set()
    assert tuning_db.stored(DEVICE) == ()


def test_a_driver_that_dies_on_loading_is_reported(fake, fresh):
    (fresh / "sitecustomize.py").write_text(FAKE.replace("def devices(self):", "def devices(self): os.abort()"))
    with pytest.raises(BackendUnavailable, match="ended with status"):
        tuned()


class TestSearch:
    @staticmethod
    def played(row, cost, names=None, seeds=()):
        moves = tuner.proposals(row, names or {}, seeds)
        seen, point = {}, next(moves, None)
        while point is not None:
            assert key_of(point) not in seen
            seen[key_of(point)] = cost(point)
            try:
                point = moves.send(seen[key_of(point)])
            except StopIteration:
                point = None
        return seen

    def test_a_small_space_is_tried_whole_the_default_first(self):
        seen = self.played(ROW, lambda point: point["MS"])
        assert len(seen) == 12 == tuner.size(ROW, {})
        assert next(iter(seen)) == "FAULT=0,MS=4"

    def test_rules_are_respected(self):
        row = replace(ROW, legal=("MS * (FAULT + 1) <= m",))
        seen = self.played(row, lambda point: 1.0, {"m": 4})
        assert sorted(seen) == ["FAULT=0,MS=1", "FAULT=0,MS=4", "FAULT=1,MS=1", "FAULT=2,MS=1", "FAULT=3,MS=1"]

    def test_a_large_space_is_searched_around_the_best(self):
        values = tuple(range(32))
        row = replace(ROW, params=dict.fromkeys("XYZ", 0), space=dict.fromkeys("XYZ", values))

        def bowl(point):
            return sum((point[axis] - 11) ** 2 for axis in "XYZ")

        seen = self.played(row, bowl)
        assert len(seen) <= tuner.MOST
        assert min(seen.values()) <= 3  # of up to 3 · 20²
        assert self.played(row, bowl) == seen
        assert len(self.played(row, lambda point: math.inf)) == tuner.SAMPLES + 1

    def test_seeds_come_second(self):
        seen = self.played(ROW, lambda point: 1.0, seeds=[{"MS": 1, "FAULT": 3}, {"MS": 2, "FAULT": 0}])
        assert list(seen)[1] == "FAULT=3,MS=1"
        assert "FAULT=0,MS=2" not in seen  # not of the space


class TestKernel:
    ROW = Kernel(
        "x", "fake", "fake", "float32", NAIVE, params={"BM": 8, "BN": 4}, space={"BM": (8, 16)},
        derived={"a_rows": "2 * BM"}, legal=("BM * BN <= 32",),
    )  # fmt: skip

    def test_derived_parameters_follow(self):
        assert self.ROW.params == {"BM": 8, "BN": 4, "a_rows": 16}
        assert self.ROW.tuned({"BM": 16}).params == {"BM": 16, "BN": 4, "a_rows": 32}

    def test_a_tuned_row_is_the_row_with_other_values(self):
        other = self.ROW.tuned({"BM": 16})
        assert (other.name, other.label, other.chosen) == ("x", "x[BM=16]", {"BM": 16})
        assert other != self.ROW
        assert other.illegal({}) == "needs BM * BN <= 32 (BM = 16, BN = 4)"
        assert self.ROW.tuned({"BM": 8}) is self.ROW

    @pytest.mark.parametrize("chosen", [{"BM": 3}, {"BN": 4}, {"a_rows": 16}])
    def test_only_to_values_of_its_space(self, chosen):
        with pytest.raises(ValueError, match="cannot be tuned to"):
            self.ROW.tuned(chosen)


def record(m=64, n=64, k=64, batch=1, layout="NN", **fields):
    given = {
        "driver": DEVICE.driver,
        "source": tuning_db.fingerprint(ROW),
        "params": {"MS": 1},
        "seconds": 1e-3,
        **fields,
    }
    return Record(ROW.name, (batch, m, n, k), layout, trials={key_of(given["params"] or {}): 1e-3}, **given)


def chosen(m=64, n=64, k=64, batch=1, layout="NNN", row=ROW):
    return tuning_db.choices(row, DEVICE, Problem("float32", m, n, k, batch, layout))[0]


class TestClasses:
    def test_sizes_count_apart_to_the_nearest_power_of_two(self):
        assert Class.of(1, 1000, 1100, 90, "NNN") == Class.of(1, 1024, 1024, 96 - 10, "NN")
        assert len({Class.of(1, *sizes, "NN") for sizes in itertools.permutations((64, 512, 4096))}) == 6
        assert Class.of(1, 8, 8, 8, "NT") != Class.of(1, 8, 8, 8, "NN") != Class.of(9, 8, 8, 8, "NN")

    def test_the_nearest_class_lends_its_parameters(self):
        tuning_db.save(DEVICE, [record(64, 64, 64), record(64, 4096, 4096, params={"MS": 4, "FAULT": 5})])
        assert chosen(50, 5000, 3000).kernel.params["FAULT"] == 5
        assert chosen(300, 300, 300).kernel.params == {"MS": 1, "FAULT": 0}
        assert chosen(300, 300, 300).origin == "tuned here for 64 × 64 × 64"
        assert chosen(60, 60, 60).origin == "tuned here"

    def test_only_a_neighbour_lends_its_rate(self):
        tuning_db.save(DEVICE, [record(64, 64, 64)])
        assert chosen(64, 64, 128).record.seconds == 1e-3
        assert chosen(64, 64, 64, layout="NTN").record is not None
        assert chosen(64, 128, 128).record is None
        assert chosen(64, 128, 128).here

    def test_what_is_illegal_for_a_product_gives_way(self):
        row = replace(ROW, legal=("FAULT * 10 <= m",), backend="numpy")
        device = Device("numpy", "fake:0", DEVICE.name, DEVICE.platform, DEVICE.driver)
        tuning_db.save(device, [record(32, 32, 32, params={"MS": 1, "FAULT": 5}), record(999, 9, 9, params={"MS": 1})])
        small = Problem("float32", 32, 32, 32)
        weighed = RowOnDevice(row, device, small, None, trusting=True).weigh(small)
        assert weighed.kernel.params["FAULT"] == 0
        assert weighed.kernel.params["MS"] == 1


class TestStore:
    def test_the_rate_of_the_class_is_predicted(self):
        tuning_db.save(DEVICE, [record(64, 64, 64, seconds=0.5)])
        here = Problem("float32", 64, 64, 64, device="fake:0")
        weighed = RowOnDevice(ROW, DEVICE, here, None, trusting=True).weigh(here)
        assert weighed.seconds == pytest.approx(0.5, rel=1e-3)
        assert (weighed.basis, weighed.origin) == ("measured for such products", "tuned here")

    def test_another_driver_or_source_lends_parameters_only(self):
        tuning_db.save(DEVICE, [record(driver="0.9"), record(source="other", params={"MS": 1, "FAULT": 1})])
        found = chosen()
        assert (found.here, found.record, found.origin) == (False, None, "tuned with another driver or version")
        assert found.kernel.params["MS"] == 1

    @pytest.mark.parametrize("harm", ["flipped", "truncated", "foreign", "no records"])
    def test_damaged_records_read_as_absent_and_are_replaced(self, harm, caplog):
        tuning_db.save(DEVICE, [record()])
        path = disk_cache.cache_dir() / tuning_db.entry(DEVICE)
        blob = path.read_bytes()
        if harm == "foreign":
            disk_cache.store(path.name, b'{"schema": "other"}')
        elif harm == "no records":
            disk_cache.store(
                path.name, json.dumps({"schema": "gemm-tuning/1", "devices": [{"device": {"name": 3}}]}).encode()
            )
        else:
            path.write_bytes(blob[:-9] if harm == "truncated" else blob[:-9] + bytes([blob[-9] ^ 1]) + blob[-8:])
        tuning_db.forget()
        with caplog.at_level(logging.WARNING, "gemm"):
            assert chosen().origin == "default"
        assert "gemm ignores" in caplog.text
        tuning_db.save(DEVICE, [record()])
        assert chosen().origin == "tuned here"

    def test_merging_keeps_failures_and_the_faster(self):
        fast, slow = record(seconds=1e-3), record(seconds=2e-3, params={"MS": 4})
        fast.trials, slow.trials = {"MS=1": 1e-3, "MS=9": 1.0}, {"MS=4": 2e-3, "MS=9": "hung"}
        for one, other in ((fast, slow), (slow, fast)):
            both = one.merged(other)
            assert (both.params, both.seconds) == ({"MS": 1}, 1e-3)
            assert both.trials == {"MS=1": 1e-3, "MS=4": 2e-3, "MS=9": "hung"}
        assert fast.merged(replace(slow, gain=1.5)).params == {"MS": 4}  # of a whole search
        slow.trials["MS=1"] = "wrong"
        assert slow.merged(fast).params == {"MS": 4}

    def test_processes_that_tune_at_once_lose_nothing(self):
        code = """
            import sys
            from gemm.select import tuning_db
            from gemm.select.tuning_db import Record
            from gemm.core.problem import Device
            for power in range(20):
                record = Record("x", (1, 2**power, int(sys.argv[1]), 8), driver="1.0", params={}, seconds=1.0)
                tuning_db.save(Device("fake", "fake:0", "a fake", "Fakes", "1.0"), [record])
        """
        at_once(lambda size: python(code, size), (2, 8))
        assert len(tuning_db.stored(DEVICE)) == 40


class Broken(Backend):
    """In this process: a device on which nothing builds."""

    name = "fake"

    def devices(self):
        return (DEVICE,)

    def launcher(self, kernel, device, problem):
        raise KernelFailed(f"{kernel.label} does not build")


class TestShipped:
    @staticmethod
    def ship(folder, *groups):
        (folder / "tuned" / "some.json").write_text(json.dumps({"schema": "gemm-tuning/1", "devices": list(groups)}))
        tuning_db._shipped.cache_clear()
        tuning_db.forget()

    @staticmethod
    def group(level, fault, seconds=1.0, **match):
        entry = {"kernel": ROW.name, "shape": [1, 64, 64, 64], "params": {"FAULT": fault}, "seconds": seconds}
        return {"match": match or {"name": "."}, "level": level, "records": [entry]}

    def test_the_particular_overlays_the_general_and_what_was_tuned_here_overlays_all(self, fresh):
        groups = [
            self.group("default", 1, backend="fake"), self.group("vendor", 2, platform="^Fake"),
            self.group("architecture", 3, seconds=None), self.group("device", 4, name="^A FAKE$"),
            self.group("device", 5, name="another"),
        ]  # fmt: skip
        found = []
        for some in range(4, -1, -1):
            self.ship(fresh, *groups[:some])
            found.append((chosen().kernel.params["FAULT"], chosen().origin))
        assert found == [
            (4, "shipped for this device"), (3, "predicted for this architecture"), (2, "shipped for this vendor"),
            (1, "shipped for this default"), (0, "default"),
        ]  # fmt: skip
        self.ship(fresh, *groups)
        tuning_db.save(DEVICE, [record(params={"MS": 1})])
        assert (chosen().kernel.params, chosen().origin) == ({"MS": 1, "FAULT": 0}, "tuned here")

    def test_auto_uses_only_what_was_verified_here(self, fresh):
        self.ship(fresh, self.group("device", 1))
        rates = {"launch": 0.0, "flops": 1.0, "upload": 0.0, "download": 0.0}
        for wrong, fault in (({}, 1), ({"error": "wrong"}, 0)):
            facts = probed((DEVICE, {ROW.name: rates, f"{ROW.name}[FAULT=1]": {**rates, **wrong}}))
            weighed = RowOnDevice(ROW, DEVICE, PROBLEM, facts, trusting=False).weigh(PROBLEM)
            assert weighed.kernel.params["FAULT"] == fault
        assert [kernel.label for kernel in tuning_db.variants(ROW, DEVICE)] == [f"{ROW.name}[FAULT=1]"]

    def test_the_probe_verifies_them(self, fresh, monkeypatch):
        self.ship(fresh, self.group("device", 5), self.group("vendor", 1))
        monkeypatch.setattr(probe, "BACKENDS", {"fake": "fake:Fake"})
        monkeypatch.setattr(probe, "KERNELS", (ROW,))
        monkeypatch.setattr(registry, "backend", lambda name: Broken())
        lines = list(probe.explore({"skip": [], "verify": True}))
        tried = [(line["kernel"], line["ok"]) for line in lines if line["step"] == "kernel"]
        assert tried == [(ROW.name, False), (f"{ROW.name}[FAULT=5]", False)]
        skipped = probe.explore({"skip": [f"{ROW.name} on fake:0"], "verify": True})
        assert [line["kernel"] for line in skipped if line["step"] == "kernel"] == [f"{ROW.name}[FAULT=5]"]
        tuning_db.save(DEVICE, [record(driver="0.9", params={"MS": 4, "FAULT": 2}), record(8, 8, 8)])
        assert [kernel.chosen for kernel in tuning_db.variants(ROW, DEVICE)] == [{"FAULT": 2}, {"FAULT": 5}]

    def test_what_is_chosen_by_name_only_stays_so(self):
        row = replace(ROW, auto_kinds=())
        tuning_db.save(DEVICE, [record()])
        for trusting in (True, False):
            weighed = RowOnDevice(row, DEVICE, PROBLEM, None, trusting=trusting).weigh(PROBLEM)
            assert weighed.why_not == ("" if trusting else "chosen on a cpu only by name")

    def test_a_damaged_file_is_ignored_with_a_warning(self, fresh, caplog):
        (fresh / "tuned" / "some.json").write_text("{")
        with caplog.at_level(logging.WARNING, "gemm"):
            assert chosen().origin == "default"
        assert "some.json" in caplog.text

    def test_the_files_of_the_package_are_sound(self, monkeypatch):
        monkeypatch.undo()
        files = sorted((disk_cache._HERE / "tuned").glob("*.json"))
        assert files
        for file in files:
            for group in parse(json.loads(file.read_text(encoding="utf-8"))):
                assert group.level in LEVELS
                for each in group.records:
                    row = BY_NAME[each.kernel]
                    row.tuned(each.params)
                    assert set(each.params) == set(row.space), f"{file.name}: {each.kernel}"
                    assert each.layout == "NN" or each.seconds

    @pytest.mark.parametrize(
        ("name", "level", "wide"),
        [
            ("QUALCOMM Adreno(TM) 540", "vendor", 16),
            ("QUALCOMM Adreno(TM) 660", "vendor", 16),
            ("QUALCOMM Adreno(TM) 740", "architecture", 32),
            ("Adreno 830", "architecture", 32),
            ("Qualcomm(R) Adreno(TM) X1-85 GPU", "architecture", 32),
        ],
    )
    def test_every_family_of_adreno_has_predictions(self, monkeypatch, name, level, wide):
        monkeypatch.undo()
        tuning_db._shipped.cache_clear()
        device = Device(
            "opencl", "opencl:0", name, "QUALCOMM Snapdragon(TM)", kind="gpu", features=frozenset({"adreno"})
        )
        row = BY_NAME["sgemm_adreno_image_8x4"]
        levels = [found for found, _ in tuning_db.shipped(row.name, device)]
        assert levels[0] == level
        assert next(kernel.params["WGN"] for kernel in tuning_db.variants(row, device)) == wide

    @pytest.mark.parametrize(
        ("name", "kv"),
        [
            ("Intel(R) HD Graphics 5500", 2),
            ("Intel(R) HD Graphics 6000", 2),
            ("Intel(R) Iris(TM) Pro Graphics 6200", 2),
            ("Intel(R) Gen8 HD Graphics NEO", 2),
            ("Intel(R) HD Graphics 530", 4),
            ("Intel(R) UHD Graphics 630", 4),
            ("Intel(R) UHD Graphics 600", 4),
            ("Intel(R) Iris(R) Plus Graphics [0x8a52]", 4),
            ("Intel(R) Iris(R) Xe Graphics [0x9a49]", 4),
            ("Intel(R) Arc(TM) A770 Graphics [0x56a0]", 4),
        ],
    )
    def test_every_generation_of_intel_has_predictions(self, monkeypatch, name, kv):
        monkeypatch.undo()
        tuning_db._shipped.cache_clear()
        features = frozenset({"intel_required_subgroup_size", "subgroup_size_8"})
        device = Device("opencl", "opencl:0", name, "Intel(R) OpenCL HD Graphics", kind="gpu", features=features)
        (_, records), *_ = tuning_db.shipped("sgemm_intel_L3_SIMD_8x4_8x8", device)
        assert [each.params for each in records] == [{"KV": kv}]
        runtime = Device("opencl", "opencl:1", "a CPU", "Intel(R) OpenCL", kind="cpu", features=features)
        assert not list(tuning_db.shipped("sgemm_intel_L3_SIMD_8x4_8x8", runtime))


class TestDocuments:
    def test_round_trip(self):
        tuning_db.save(DEVICE, [record(64, 64, 64), record(8, 8, 8, params=None, seconds=None)])
        text = json.loads(json.dumps(tuning_db.exported()))
        (disk_cache.cache_dir() / tuning_db.entry(DEVICE)).unlink()
        tuning_db.forget()
        assert tuning_db.imported(text) == 1
        assert tuning_db.stored(DEVICE) == (record(64, 64, 64),)
        assert json.loads(json.dumps(tuning_db.exported([DEVICE]))) == text

    @pytest.mark.parametrize(
        "harm",
        [
            [], {"schema": "gemm-tuning/2"}, {"devices": 3}, {"devices": [3]}, {"devices": [{"device": {}}]},
            {"devices": [{"device": {"name": "x"}, "records": [{}]}]},
            {"devices": [{"match": {"name": "("}, "level": "device", "records": []}]},
            {"devices": [{"match": {"name": "x"}, "level": "best", "records": []}]},
            {"devices": [{"match": {"colour": "x"}, "level": "device", "records": []}]},
            {"devices": [{"match": {"name": "x"}, "level": "device", "records": []}]},
            {"devices": [{"device": {"name": "x"}, "records": []}]},
        ],
    )  # fmt: skip
    def test_what_is_no_export_is_refused(self, harm):
        text = {"schema": "gemm-tuning/1", **harm} if isinstance(harm, dict) else harm
        with pytest.raises(ValueError, match=r"schema|device|record"):
            tuning_db.imported(text)

    def test_the_command_line_imports_and_exports(self, fresh, capsys):
        (fresh / "in.json").write_text(json.dumps(document([_group(record())])))
        assert main(["tune", "--import", str(fresh / "in.json"), "--export", str(fresh / "out.json")]) == 0
        assert "1 record imported" in capsys.readouterr().out
        assert json.loads((fresh / "out.json").read_text()) == json.loads((fresh / "in.json").read_text())
        (fresh / "in.json").write_text("[]")
        assert main(["tune", "--import", str(fresh / "in.json")]) == 2
        assert "in.json: the document does not have the schema" in capsys.readouterr().err


def _group(*records):
    from gemm.select.tuning_db import Group

    return Group.of(DEVICE, records)


class TestCommand:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--time-budget", "0"], "positive number of seconds"),
            (["--trans", "NX"], "must be NN, NT, TN or TT"),
            (["--shapes", "12"], "must be like"),
            (["--import", "nowhere.json"], "cannot import nowhere.json"),
            (["--kernel", "sgemm_scalar_4x4"], "nothing to tune"),
        ],
    )
    def test_mistakes(self, options, words, capsys):
        assert main(["tune", *options]) == 2
        assert words in capsys.readouterr().err

    def test_on_a_real_driver(self, fresh, capsys):
        try:
            device = registry.backend("opencl").devices()[0]
        except BackendUnavailable as error:
            pytest.skip(str(error))
        row = next(
            row for row in KERNELS if row.space and row.backend == "opencl" and not set(row.needs) - device.features
        )
        command = ["tune", "--device", device.key, "--kernel", row.name, "--shapes", "40x48x56", "--time-budget", "3"]
        assert main([*command, "--export", str(fresh / "out.json")]) == 0
        assert "GFLOP/s" in capsys.readouterr().out
        (group,) = parse(json.loads((fresh / "out.json").read_text()))
        (known,) = group.records
        assert group.fits(device)
        assert (known.kernel, known.shape) == (row.name, (1, 40, 48, 56))
        a, b = np.ones((40, 56), row.dtype), np.ones((56, 48), row.dtype)
        execute.forget()
        plan = gemm.plan(a, b, backend=device.key, kernel=row.name)
        (used,) = [c for c in plan.candidates if c.device.key == device.key]
        assert {name: used.kernel.params[name] for name in row.space} == known.params
        assert used.origin == "tuned here"
        assert (plan(a, b) == 56).all()
