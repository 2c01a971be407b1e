"""The command line, run in this process: what it prints, what it writes, its exit status."""

import csv
import json
import math
import subprocess
import sys

import numpy as np
import pytest

import gemm
from gemm import cli, execute
from gemm.backends import registry
from gemm.backends.cpu import CpuBackend
from gemm.bench import contest, verdicts
from gemm.bench.peaks import peak
from gemm.bench.products import Shape
from gemm.catalog import KERNELS
from gemm.cli import COMMANDS, arguments, bench, info, main
from gemm.cli import verify as verify_command
from gemm.core import engine, text, threads
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device
from gemm.frontend import inventory
from gemm.select import probe
from gemm.select.verify import suite
from gemm.select.verify.single import ORDERED

SMALL = ["bench", "-M", "33", "-N", "20", "-K", "17", "--backends", "cpu,numpy", "--iterations", "2", "--warmup", "1"]


def result_of(capsys, *argv):
    status = main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def broken(monkeypatch):
    """broken(spoil): from now on the cpu backend's launches end with spoil(out)."""
    launcher = CpuBackend.launcher

    def install(spoil):
        def spoiled(self, *args):
            launch = launcher(self, *args)

            def wrong(a, b, c, out, alpha, beta):
                launch(a, b, c, out, alpha, beta)
                spoil(out)

            return wrong

        monkeypatch.setattr(CpuBackend, "launcher", spoiled)
        execute.forget()

    yield install
    monkeypatch.undo()
    execute.forget()


class TestMistakes:
    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["bench", "-M", "8"], "belong together"),
            (["bench", "-M", "0", "-N", "1", "-K", "1"], "positive integer"),
            (["bench", "--shapes", "8x8"], "256x256x256"),
            (["bench", "--shapes", "8x8x-8"], "positive integer"),
            (["bench", "--sizes", ","], "must name something"),
            (["bench", "--backends", "cpu,tpu"], "tpu"),
            (["bench", "--dtype", "float61"], "did you mean float64, float16"),
            (["bench", "--dtype", "int32", "--inputs", "int16"], "permits int8 or uint8,int8"),
            (["bench", "--precision", "hihg"], "did you mean high"),
            (["bench", "--kernel", "sgem_scalar_4x4"], "did you mean sgemm_scalar_4x4"),
            (["explain", "-M", "2", "-N", "2", "-K", "2", "--kernel", "sgem_scalar_4x4"], "sgemm_scalar_4x4"),
            (["bench", "--compare", "--families", "squars"], "did you mean squares"),
            (["bench", "--kernel", "sgemm_scalar_4x4", "--dtype", "float64"], "--dtype float32"),
            (["bench", "--kernel", "sgemm_scalar_4x4", "--backends", "numpy"], "does not belong"),
            (["bench", "--device", "cpu:7"], "cpu:7"),
            (["bench", "--device", "moon"], "--device"),
            (["bench", "--device", "cpu:0", "--backends", "numpy"], "does not belong"),
            (["bench", "--json", "no/such/folder/x.json"], "does not exist"),
            (["bench", "--csv", "."], "is a folder"),
            (["explain"], "-M 1024"),
            (["explain", "-M", "2", "-N", "2", "-K", "2", "--backend", "tpu"], "tpu"),
            (["explain", "-M", "2", "-N", "2", "-K", "2", "--kernel", "nonsense"], "nonsense"),
            (["verify", "--kernel", "nonsense"], "nonsense"),
            (["verify", "--quick", "--hush"], "--hush"),
            (["fly"], "fly"),
            (["bnech"], "'bnech' is not known: did you mean bench? (see gemm --help)"),
            (["bench", "--bakends", "cpu"], "did you mean --backends? (see gemm bench --help)"),
            (["bench", "--bakends=cpu"], "'--bakends' is not known"),
            (["explain", "-m", "4"], "did you mean -M? (see gemm explain --help)"),
            (["bench", "1024", "1024", "1024"], "such as -M 1024 -N 1024 -K 1024 (see gemm bench --help)"),
            (["info", "all"], "this command takes options only (see gemm info --help)"),
            (["bench", "--backends", "gpu"], "did you mean cuda or opencl?"),
            (["bench", "--plots", "x", "--compare"], "pip install matplotlib"),
            (["bench", "--dtype", "bfloat16"], "--dtype: bfloat16 needs the package ml_dtypes: pip install ml_dtypes"),
            ([], "COMMAND"),
        ],
    )
    def test_one_line_and_status_2(self, capsys, monkeypatch, argv, words):
        for name in ("ml_dtypes", "matplotlib"):
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delenv("COLUMNS", raising=False)
        status, out, err = result_of(capsys, *argv)
        assert (status, out) == (2, "")
        assert words in err
        assert err.startswith("gemm: ")
        assert err.count("\n") == 1

    def test_a_long_line_is_wrapped_at_the_width_of_the_terminal(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "70")
        _, _, err = result_of(capsys, "bench", "--dtype", "int32", "--inputs", "int16")
        assert max(map(len, err.splitlines())) <= 70
        assert "which permits int8 or uint8,int8" in " ".join(err.split())

    def test_causes_are_not_repeated_and_remedies_begin_with_a_capital(self):
        inner = BackendUnavailable("cuda", "the driver does not load", "Install it")
        assert str(BackendUnavailable("cuda", inner.told)).startswith("cuda: the driver does not load. Install it (")
        remedies = [cause.partition(". ")[2] for cause in gemm.backends().values()]
        assert all(remedy[:1] == remedy[:1].upper() for remedy in remedies)

    @pytest.mark.parametrize("variable", ["GEMM_NUM_THREADS", "GEMM_PROBE_TIMEOUT"])
    def test_environment(self, capsys, monkeypatch, variable):
        monkeypatch.setenv(variable, "many")
        status, _, err = result_of(capsys, "info")
        assert status == 2
        assert variable in err

    def test_an_absent_backend_asked_for_by_name(self, capsys):
        absent = [name for name, why in gemm.backends().items() if why]
        if not absent:
            pytest.skip("every backend is here")
        status, _, err = result_of(capsys, "verify", "--backends", absent[0])
        assert status == 2
        assert absent[0] in err

    def test_interrupted(self, capsys, monkeypatch):
        def interrupt(args):
            raise KeyboardInterrupt

        monkeypatch.setattr(info, "run", interrupt)
        status, _, err = result_of(capsys, "info")
        assert status == 130
        assert "Traceback" not in err

    def test_a_reader_that_leaves(self):
        command = [sys.executable, "-m", "gemm", "info", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == 1


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_examples_are_shown_and_parse(self, capsys, command):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert f"gemm {command}" in capsys.readouterr().out.partition("examples:")[2]

    @pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
    def test_lines_fit_80_columns(self, capsys, monkeypatch, command):
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert not [line for line in lines if len(line) > 80]

    def test_version(self, capsys):
        with pytest.raises(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out == f"gemm {gemm.__version__}\n"


class TestInfo:
    def test_text_is_what_show_config_prints(self, capsys):
        status, out, _ = result_of(capsys, "info")
        gemm.show_config()
        assert status == 0
        same = [a for a, b in zip(out.splitlines(), capsys.readouterr().out.splitlines(), strict=True) if a != b]
        assert all(line.startswith("Cache") for line in same)  # it tells an age
        assert "cpu:0" in out

    def test_all_kernels(self, capsys):
        status, out, _ = result_of(capsys, "info", "--all")
        assert status == 0
        assert all(row.name in out for row in KERNELS)

    def test_lines_fit_the_terminal(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        _, out, _ = result_of(capsys, "info")
        assert not [line for line in out.splitlines() if len(line) > 80 and " " in line.strip()]

    def test_fits_a_screen(self, capsys):
        status, out, _ = result_of(capsys, "info")
        assert status == 0
        assert len(out.splitlines()) <= 50
        assert f"of {len(KERNELS)}: float32" in out
        assert "gemm info --all" in out

    def test_kernels_that_failed_are_named_but_not_all(self, monkeypatch):
        row = inventory.kernel_facts()[0] | {"available": True, "devices": ["cpu:0"], "untrusted": {"cpu:0": "wrong"}}
        monkeypatch.setattr(inventory, "kernel_facts", lambda: [row | {"name": f"k{at}"} for at in range(7)])
        shown = "\n".join(inventory.sections(every=False))
        assert "k4" in shown
        assert "k5" not in shown
        assert "and 2 more" in shown

    def test_json(self, capsys, tmp_path):
        status, out, _ = result_of(capsys, "info", "--json")
        facts = json.loads(out)
        assert status == 0
        assert facts["versions"]["gemm"] == gemm.__version__
        assert {row["name"] for row in facts["kernels"]} == {row.name for row in KERNELS}
        assert all(row["devices"] if row["available"] else row["reason"] for row in facts["kernels"])
        assert all(b["devices"] if b["available"] else b["cause"] for b in facts["backends"].values())
        assert result_of(capsys, "info", "--json", str(tmp_path / "info.json"))[:2] == (0, "")
        assert json.loads((tmp_path / "info.json").read_text())["backends"] == facts["backends"]

    def test_what_is_missing_comes_with_its_remedy(self):
        facts = {
            "available": False,
            "cause": "no driver",
            "remedy": "install one",
            "broken": ["bad.icd"],
            "devices": [],
        }
        shown = "\n".join(inventory._backend_text("cuda", facts))
        assert "no driver" in shown
        assert "install one" in shown
        assert "does not load: bad.icd" in shown


class TestBench:
    def test_table(self, capsys):
        status, out, _ = result_of(capsys, *SMALL, "--validate")
        assert status == 0
        assert "33 × 20 × 17" in out
        assert "Checked every element of 2 results" in out
        assert ("Host to host, " in out and verdicts.RATIO in " ".join(out.split())) or "No ratios, because " in out

    def test_json(self, capsys, tmp_path):
        file = tmp_path / "bench.json"
        more = ["--iterations", "3", "--batch", "3", "--trans", "TN", "--json", str(file)]
        assert main([*SMALL, "--validate", *more]) == 0

        def refuse(constant):
            raise AssertionError(f"{constant} is not JSON")

        document = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
        assert document["schema"] == "gemm-bench/1"
        assert document["versions"]["numpy"] == np.__version__
        ours, numpy = document["results"]
        assert set(ours) == {*bench.COLUMNS, "host_samples_s", "resident_samples_s"}
        assert (ours["m"], ours["n"], ours["k"], ours["batch"], ours["trans"]) == (33, 20, 17, 3, "TN")
        assert ours["valid"] is True
        assert numpy["kernel"] == "np.matmul"
        assert len(ours["host_samples_s"]) == document["iterations"] == 3
        assert ours["host_gflops"] == pytest.approx(2 * 33 * 20 * 17 * 3 / ours["host_s"] / 1e9)
        assert {device["key"] for device in document["devices"]} == {"cpu:0", "numpy:0"}
        assert (document["inputs"], document["precision"]) == ([], "highest")
        assert document["quiet"]["others_cores"] is None or document["quiet"]["others_cores"] >= 0
        (ratio,) = document["ratios"]
        assert ratio["device"] == "numpy:0"
        assert ratio["host"] > 0
        assert ratio["host_spread"] >= 0

    def test_csv_of_several_shapes(self, tmp_path):
        file = tmp_path / "bench.csv"
        shapes = ["--shapes", "1x2x3,8x8x8", "--sizes", "8,9", "--dtype", "float64"]
        assert main(["bench", *shapes, "--backends", "cpu", "--iterations", "1", "--csv", str(file)]) == 0
        rows = list(csv.DictReader(file.open(encoding="utf-8")))
        assert [(row["m"], row["n"], row["k"]) for row in rows] == [("1", "2", "3"), ("8", "8", "8"), ("9", "9", "9")]
        assert all(float(row["host_s"]) > 0 for row in rows)

    def test_named_kernels_are_contestants(self, capsys):
        names = [
            row.name for row in gemm.kernels() if row.backend == "cpu" and row.dtype == "float64" and row.available
        ]
        argv = [arg for name in names for arg in ("--kernel", name)]
        sizes = ["--sizes", "20", "--iterations", "1", "--dtype", "float64", "--reproducible", "--validate"]
        status, out, _ = result_of(capsys, "bench", *sizes, *argv)
        assert status == 0
        assert all(name in out for name in names)
        if len(names) > 1:
            assert "have the same bits" in out

    def test_devices_with_memory_have_resident_times(self, capsys, tmp_path):
        able = next((k for k in gemm.kernels() if k.available and k.backend in ("opencl", "cuda")), None)
        if able is None:
            pytest.skip("no device has a memory of its own here")
        file = tmp_path / "bench.json"
        argv = ["--sizes", "40", "--trans", "NT", "--iterations", "2", "--validate", "--dtype", able.dtype]
        kernels = ["--kernel", able.name, "--device", able.devices[0], "--json", str(file)]
        status, out, _ = result_of(capsys, "bench", *argv, *kernels)
        assert status == 0, out
        (one,) = json.loads(file.read_text(encoding="utf-8"))["results"]
        assert one["resident_samples_s"] != one["host_samples_s"]
        assert one["valid"] is True

    def test_fits_80_columns_with_whole_names(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        status, out, _ = result_of(capsys, *SMALL[:-4], "--iterations", "1", "--seconds", "1", "--validate")
        assert status == 0
        assert max(map(len, out.splitlines())) <= 80
        assert any(row.name in out for row in KERNELS if row.backend == "cpu")
        assert "IQR" in out

    @pytest.mark.parametrize("options", [["--dtype", "int32", "--inputs", "int8"], ["--precision", "medium"]])
    def test_types_and_precision(self, capsys, tmp_path, options):
        file = tmp_path / "bench.json"
        status, out, _ = result_of(capsys, *SMALL, "--validate", *options, "--json", str(file))
        document = json.loads(file.read_text(encoding="utf-8"))
        assert status == 0, out
        assert all(row["valid"] for row in document["results"])
        assert [document["dtype"], *document["inputs"]] in (["int32", "int8", "int8"], ["float32"])

    def test_the_rounds_that_were_made_are_recorded(self, tmp_path):
        file = tmp_path / "bench.json"
        seconds = ["--sizes", "8", "--backends", "cpu", "--seconds", "1"]
        assert main(["bench", *seconds, "--json", str(file)]) == 0
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["iterations"] == len(document["results"][0]["host_samples_s"])

    @pytest.mark.parametrize("compared", [[], ["--compare", "--quick", "--peers", "none"]])
    def test_nothing_could_be_measured(self, capsys, compared):
        argv = ["bench", "--sizes", "8", "--dtype", "complex64", "--reproducible", "--backends", "cpu", *compared]
        status, _, err = result_of(capsys, *argv)
        assert status == 2
        assert "nothing could be measured: cpu:0: reproducible=True" in err

    def test_what_is_not_reproducible_is_left_out(self, capsys):
        status, out, _ = result_of(capsys, *SMALL, "--dtype", "complex64", "--reproducible")
        assert status == 0
        assert "without cpu:0: reproducible=True" in out
        assert "np.matmul" in out

    def test_all_threads_are_no_limit(self, monkeypatch):
        try:
            for given, cores, limited in (("2", 2, False), ("1", 2, True)):
                monkeypatch.setenv("GEMM_NUM_THREADS", "1")
                monkeypatch.setattr(threads, "cores", lambda cores=cores: cores)
                arguments.arithmetic(cli.parser().parse_args(["bench", "--threads", given]))
                assert engine.limited() is limited
        finally:
            monkeypatch.undo()
            engine.start()

    def test_threads(self, capsys, monkeypatch):
        monkeypatch.setenv("GEMM_NUM_THREADS", "2")
        before = gemm.get_num_threads()
        try:
            assert main([*SMALL, "--threads", "1"]) == 0
            assert gemm.get_num_threads() == 1
        finally:
            monkeypatch.undo()
            engine.start()
        assert gemm.get_num_threads() >= before

    @pytest.mark.parametrize("value", [1.001, math.nan])
    def test_wrong_results_fail(self, capsys, tmp_path, broken, value):
        def spoil(out):
            out[..., -1, -1] *= value

        broken(spoil)
        file = tmp_path / "bench.json"
        status, out, _ = result_of(capsys, *SMALL, "--validate", "--json", str(file))
        assert status == 1
        assert "WRONG" in out
        assert "FAILED" in out
        assert [row["valid"] for row in json.loads(file.read_text(encoding="utf-8"))["results"]] == [False, True]

    def test_a_kernel_that_fails_is_reported(self, capsys, monkeypatch):
        def fail(*args):
            raise KernelFailed("out of order")

        monkeypatch.setattr(bench, "enter", fail)
        status, out, _ = result_of(capsys, *SMALL)
        assert status == 1
        assert out.count("out of order") == 2

    def test_large_float64_products_are_checked_by_rows(self, monkeypatch):
        shape = Shape(9, 4, 5)
        a, b = shape.operands("float64")
        one = contest.Contestant(Device("numpy", "numpy:0", "x"), "x", lambda: None, a @ b)
        assert contest.check([one], shape, a, b) == "every element"
        monkeypatch.setattr(contest, "_EXACT_WORK", 100)
        assert contest.check([one], shape, a, b) == "5 of 9 rows"
        assert one.worst is not None
        assert one.worst <= 1
        one.out[8, 3] = np.inf
        contest.check([one], shape, a, b)
        assert one.worst == math.inf


class TestPeak:
    def test_the_cpu_is_measured(self):
        (device,) = registry.backend("cpu").devices()
        single, double = peak(device, "float32"), peak(device, "float64")
        assert double is not None
        assert single.gflops > 0
        assert "measured" in single.basis

    def test_formulas(self):
        limits = {"compute_capability": 90, "sm_count": 132, "clock_mhz": 1980}
        gpu = Device("cuda", "cuda:0", "x", kind="gpu", limits=limits)
        single, double = peak(gpu, "float32"), peak(gpu, "float64")
        assert single.gflops == pytest.approx(66_900, rel=1e-3)
        assert double.gflops == pytest.approx(single.gflops / 2)

    def test_what_is_not_known_is_not_guessed(self):
        assert peak(Device("opencl", "opencl:0", "x", kind="gpu", limits={"compute_units": 4}), "float32") is None
        assert peak(Device("cuda", "cuda:0", "x", kind="gpu", limits={"clock_mhz": 1000}), "float64") is None


class TestVerify:
    @pytest.mark.parametrize(
        ("backend", "why"), [("cpu", "--stress is for GPUs"), ("opencl", "give --stress more than 7 seconds")]
    )
    def test_no_trial(self, capsys, monkeypatch, backend, why):
        monkeypatch.setattr(suite, "stress", lambda *args: iter(()))
        monkeypatch.setattr(registry, "backend", lambda name: None)
        assert verify_command._stress([(Device(backend, "x:0", "x"), KERNELS[0])], 7, 1) == 1
        out = capsys.readouterr().out
        assert "x:0: no trial was made in 7 seconds" in out
        assert f"Nothing was checked: {why}" in out

    def test_table(self, capsys, tmp_path):
        file = tmp_path / "verify.json"
        status, out, _ = result_of(capsys, "verify", "--backends", "cpu,numpy", "--quick", "--json", str(file))
        assert status == 0, out
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["schema"] == "gemm-verify/1"
        assert all(one["passed"] == one["total"] for one in document["outcomes"])
        assert {one["kernel"] for one in document["outcomes"]} == {
            row.name for row in gemm.kernels() if row.available and row.backend in ("cpu", "numpy")
        }

    def test_hashes(self, capsys):
        status, out, _ = result_of(capsys, "verify", "--hashes", "--backends", "cpu")
        assert status == 0
        assert ORDERED["float32"][:16] in out

    def test_a_wrong_kernel_fails(self, capsys, broken):
        broken(lambda out: np.negative(out, out=out))
        status, out, _ = result_of(capsys, "verify", "--kernel", "sgemm_scalar_4x4", "--quick")
        assert status == 1
        assert "FAILED sgemm_scalar_4x4 on cpu:0" in out
        assert result_of(capsys, "verify", "--hashes", "--kernel", "sgemm_scalar_4x4")[0] == 1

    def test_bits_that_differ_fail(self, capsys, monkeypatch):
        if sum(row.available and row.dtype == "float32" and row.backend == "cpu" for row in gemm.kernels()) < 2:
            pytest.skip("a difference takes two kernels")
        monkeypatch.setattr(verify_command, "ordered_hash", lambda backend, row, device: row.name.encode().hex())
        status, out, _ = result_of(capsys, "verify", "--hashes", "--backends", "cpu")
        assert status == 1
        assert "differ for bfloat16, float16, float32, float64" in out

    def test_nothing_checked_is_no_success(self, capsys):
        absent = next(row for row in gemm.kernels() if row.backend == "cpu" and not row.available)
        status, out, _ = result_of(capsys, "verify", "--kernel", absent.name)
        assert status == 1
        assert absent.reason in out


class TestExplain:
    def test_plan(self, capsys):
        argv = ["-M", "8", "-N", "9", "-K", "10", "--batch", "2", "--trans-a", "--dtype", "float64", "--backend", "cpu"]
        status, out, _ = result_of(capsys, "explain", *argv)
        assert status == 0
        assert "2 × 8 × 9 × 10 float64" in out
        assert "chosen: dgemm_" in out

    def test_fits_a_screen_of_80_columns(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(probe, "disturbance", lambda: "")  # two more lines on a machine that was busy
        status, out, _ = result_of(capsys, "explain", "-M", "1024", "-N", "1024", "-K", "1024")
        lines = out.splitlines()
        assert status == 0
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 80
        whole = result_of(capsys, "explain", "-M", "1024", "-N", "1024", "-K", "1024", "--all")[1]
        assert len(whole.splitlines()) > 60
        assert max(map(len, whole.splitlines())) <= 80
        assert "sgemm_cuda_tile" in whole
        assert ":none" not in out + whole
        assert "on cuda: cuda: " not in out

    def test_python_prints_the_same(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        _, told, _ = result_of(capsys, "explain", "-M", "64", "-N", "48", "-K", "32", "--backend", "cpu")
        gemm.explain(np.ones((64, 32), np.float32), np.ones((32, 48), np.float32), backend="cpu")
        assert capsys.readouterr().out == told

    def test_the_numpy_reference_is_last_and_said_to_be_the_last_resort(self, capsys):
        _, told, _ = result_of(capsys, "explain", "-M", "4096", "-N", "1", "-K", "4096", "--all")
        *_, last = (line.split() for line in told.partition("\n\n")[0].splitlines())
        assert last[0] == "gemm_numpy_reference"
        assert "gemm_numpy_reference is used only if no other kernel can compute the product." in told
        _, told, _ = result_of(capsys, "explain", "-M", "9", "-N", "9", "-K", "9", "--kernel", "gemm_numpy_reference")
        assert "→ gemm_numpy_reference" in told
        assert "only if" not in told

    def test_types_and_precision(self, capsys):
        argv = ["explain", "-M", "64", "-N", "64", "-K", "64", "--dtype", "int32", "--inputs", "uint8,int8"]
        status, out, _ = result_of(capsys, *argv, "--precision", "high", "--backend", "cpu")
        assert status == 0
        assert "u8s32gemm_" in out


class TestText:
    def test_plurals(self):
        assert text.counted(1, "kernel") == "1 kernel"
        assert text.counted(0, "kernel") == "0 kernels"
        assert text.counted(2, "pair of kernel and device", "pairs of kernel and device").startswith("2 pairs")

    @pytest.mark.parametrize(
        ("value", "shown"), [(None, "–"), (2.5, "2.5 s"), (0.0125, "12.5 ms"), (3e-6, "3 µs"), (4e-8, "0.04 µs")]
    )
    def test_seconds(self, value, shown):
        assert text.seconds(value) == shown

    def test_plain_table(self, capsys):
        text.table(("a", "number"), [("x", "1"), ("long", "23")], numbers=[1])
        assert capsys.readouterr().out.splitlines() == ["a     number", "----  ------", "x          1", "long      23"]

    def test_a_narrow_table_loses_columns_by_importance(self, capsys, monkeypatch):
        head, row = ("kernel", "cold", "host\nGFLOP/s", "peak"), ("sgemm_generic_panel_4x24", "1 ms", "5.5", "99 %")
        monkeypatch.setenv("COLUMNS", "40")
        text.table(head, [row], numbers=(1, 2, 3), spare=("cold", "peak"))
        assert capsys.readouterr().out.splitlines() == [
            "kernel                       host  peak",
            "                          GFLOP/s",
            "------------------------  -------  ----",
            "sgemm_generic_panel_4x24      5.5  99 %",
            "(No room for the columns: cold.)",
        ]

    def test_columns_that_may_not_be_left_out_follow_below(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "16")
        text.table(("name", "one", "two", "three"), [("product", "1", "2", "3")], numbers=(1, 2, 3))
        assert capsys.readouterr().out.splitlines() == [
            "name     one", "-------  ---", "product    1", "name     two", "-------  ---", "product    2",
            "name     three", "-------  -----", "product      3",
        ]  # fmt: skip

    def test_numbers_that_round_up(self):
        assert [text.number(value) for value in (999.4, 999.6, 1234.0)] == ["999", "1000", "1234"]
        assert [text.seconds(value) for value in (0.9996e-3, 0.99951, 1500.0)] == ["1 ms", "1 s", "1500 s"]

    @pytest.mark.parametrize(
        ("left", "words"),
        [(0.3, "a few seconds"), (42.0, "about 40 seconds"), (170.0, "about 3 minutes"), (9000.0, "about 2 hours")],
    )
    def test_durations(self, left, words):
        assert text.duration(left) == words

    def test_progress_on_a_terminal(self, capsys, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "60")
        now = [100.0]
        monkeypatch.setattr(text.time, "monotonic", lambda: now[0])
        with text.Progress(4) as progress:
            now[0] += 10.0
            progress.step("a product of a very long name, with more words than fit")
        shown = capsys.readouterr().err
        assert "1/4, about 30 seconds left: a produc" in shown
        assert max(map(len, shown.replace("\x1b[K", "").split("\r"))) < 60
        assert shown.endswith("\r\x1b[K")

    def test_long_work_tells_a_file_of_its_progress_each_minute(self, capsys, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(text.time, "monotonic", lambda: now[0])
        with text.Progress(600) as progress:
            for step in range(300):
                progress.step(f"product {step}")
                now[0] += 0.5
        assert capsys.readouterr().err.splitlines() == [
            "122/600, about 4 minutes left: product 121", "243/600, about 3 minutes left: product 242"
        ]  # fmt: skip
