"""The pass pipeline: its guard, verification and log, and the output of CSRUN_DEBUG."""

from dataclasses import dataclass

import pytest
from support.programs import Network, options_of
from xdsl.utils.exceptions import VerifyException

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.cirh import print_module
from csrun.cirh.ops.products import AddmmOp
from csrun.cirh.types import tensor_type
from csrun.compiler import compile_model
from csrun.compiler.passes import PassObserver, Verification, run_passes
from csrun.compiler.passes.pass_manager import PASSES
from csrun.compiler.passes.rewrite import Fusion, Pass, PassResult, Rewrite, Splitting
from csrun.compiler.passes.rewrite_rules import Rule, replace_by_operator
from csrun.context import DebugLevel, debug_level
from csrun.estimator.compile_observer import observer_of


def test_rules_that_go_in_a_circle_are_stopped_and_named():
    def swap(op):
        return replace_by_operator(op, AddmmOp.of(op.operands, scope="again"))

    rule = Rule("for-ever", (AddmmOp,), swap)
    with pytest.raises(RuntimeError, match=r"rewriting does not terminate.*'for-ever': \d+"):
        Rewrite((rule,)).apply(Network().trace())


def test_a_pass_that_leaves_an_invalid_module_is_caught():
    @dataclass(frozen=True)
    class Wrong(Pass):
        name = "wrong"

        def apply(self, module):
            op = next(op for op in module.ops if isinstance(op, AddmmOp))
            op.results[0]._type = tensor_type((1, 1), "float32")
            return PassResult(True)

    for when in (Verification.EACH, Verification.END):
        with pytest.raises(VerifyException):
            run_passes(Network().trace(), (Wrong(),), PassObserver(verify=when))
    run_passes(Network().trace(), (Wrong(),), PassObserver(verify=Verification.NONE))


@pytest.mark.parametrize("level", ["0", "1"])
def test_a_run_verifies_between_passes_for_who_looks_at_them(monkeypatch, level):
    monkeypatch.setenv("CSRUN_DEBUG", level)
    expected = Verification.EACH if level == "1" else Verification.NONE
    assert observer_of(lambda name: None).verify is expected


def test_the_compile_directory_has_what_stages_changed_and_the_log_their_counts(tmp_path):
    options = options_of(run_mode=RunMode.EVAL)
    module = Network(dropout=0.5).trace(RunMode.EVAL)
    folder = compile_model(module, tmp_path, options).executable.directory
    names = [
        "01_trace.mlir",
        "02_canonical.mlir",
        "10_dead.mlir",
        "11_splitting.mlir",
        "16_lair.mlir",
    ]
    assert sorted(p.name for p in folder.glob("*.mlir")) == names
    texts = [(folder / name).read_text() for name in names]
    assert len({*texts}) == len(texts)
    lines = (folder / "compile.log").read_text().splitlines()
    heads = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert heads == [step.name for step in PASSES]
    assert all(line.endswith(" ms") for line in lines if not line.startswith(" "))
    assert "    dropout-without-training: 2" in lines
    assert "    dead-code: 2" in lines  # their masks
    assert "    no match: arithmetic, moved-constant, neutral-operand" in lines
    assert "    repetitions: 0" in lines


def test_running_the_passes_again_changes_nothing():
    """Except for fusion, which merges a product and its bias again; splitting then undoes it."""
    module = Network(dropout=0.5).trace()
    run_passes(module)
    text = print_module(module)
    for step in (step for step in PASSES if not isinstance(step, Fusion)):
        assert not step.apply(module).changed, step.name
        assert print_module(module) == text, step.name
    assert Fusion().apply(module).changed
    assert Splitting().apply(module).changed
    assert print_module(module) == text


def test_a_pass_that_says_it_changed_nothing_did_not():
    module = Network(dropout=0.5).trace()
    for step in PASSES:
        before = print_module(module)
        assert step.apply(module).changed == (print_module(module) != before), step.name


@pytest.mark.parametrize(
    ("level", "shown", "hidden"),
    [("0", "", "gradient"), ("1", "gradient: ", "cirh.addmm"), ("2", "cirh.addmm", "nothing")],
)
def test_the_console_shows_what_is_asked_for(monkeypatch, caplog, level, shown, hidden):
    monkeypatch.setenv("CSRUN_DEBUG", level)
    with caplog.at_level("INFO", "csrun"):
        run_passes(Network().trace(), observer=observer_of(lambda name: None))
    assert shown in caplog.text
    assert hidden not in caplog.text
    assert ("after fusion: unchanged" in caplog.text) == (level == "2")


def test_a_debug_level_that_is_none_lists_the_known_ones(monkeypatch):
    monkeypatch.delenv("CSRUN_DEBUG", raising=False)
    assert debug_level() is DebugLevel.NOTHING
    monkeypatch.setenv("CSRUN_DEBUG", "much")
    with pytest.raises(UsageError, match=r"one of 0 \(nothing\), 1 \(passes\), .*, got 'much'"):
        debug_level()
