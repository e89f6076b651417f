"""Site files: the shipped one, and every kind of error."""

import math
from pathlib import Path

import pytest
import yaml

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.site import load, resolve
from csrun.site.load import SHIPPED

CHECKOUT = Path(__file__).parents[2]


def changed(tmp_path: Path, change: object) -> str:
    """The shipped site with keys set, by dotted path; None removes one."""
    raw = yaml.safe_load((SHIPPED / "local.yaml").read_text())
    assert isinstance(change, dict)
    for path, value in change.items():
        *folders, key = path.split(".")
        place = raw
        for folder in folders:
            place = place[int(folder)] if folder.isdigit() else place[folder]
        if value is None:
            del place[key]
        else:
            place[key] = value
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(raw))
    return str(file)


@pytest.mark.usefixtures("state")
def test_local_describes_one_machine() -> None:
    site = load()
    assert (site.name, site.nodes.count, site.nodes.cpus) == ("local", 16, 128)
    assert [system.name for system in site.systems] == ["cs2-01", "cs2-02"]
    assert [system.mode for system in site.systems] == list(ExecutionMode)
    # WSE-2, published: 745,500 usable cores of 48 KB
    assert site.systems[0].sram_bytes == 745_500 * 49_152


WRONG = [
    ({"nodes.count": -3}, "nodes.count: ", "-3"),
    ({"nodes.count": "four"}, "nodes.count: ", "'four'"),
    ({"nodes.cpu": 3}, "nodes.cpu: unknown key; did you mean cpus?", ""),
    ({"systems.1.mode": "FAST"}, "systems[1].mode: must be one of PIPELINED, WEIGHT_STREA", "FAST"),
    ({"scheduler": "slrum"}, "scheduler: must be one of local, slurm", "; did you mean slurm?"),
    ({"systems.0.clok_hz": 1}, "systems[0].clok_hz: unknown key; did you mean clock_hz?", ""),
    ({"systems": []}, "systems: ", "[]"),
    (
        {"slurm_options": {"qos": "low"}},
        "slurm_options must be omitted with scheduler",
        "local",
    ),
    ({"prolog": ["module load x"]}, "prolog must be omitted with scheduler", "local"),
    ({"scheduler": None}, "missing required field scheduler", ""),
    ({"systems.1.name": "cs2-01"}, "systems[1].name must differ from systems[0].name", "cs2-01"),
    ({"systems.1.address": "127.0.0.1"}, "systems[1].address must differ", "127.0.0.1"),
    (
        {"nodes.addresses": ["10.0.0.1"]},
        "nodes.addresses must have one address per node, 16",
        "got 1",
    ),
    (
        {"nodes.addresses": ["10.0.0.1"] * 15 + ["node16"]},
        "nodes.addresses[15] must be an",
        "node16",
    ),
    ({"systems.1.address": "127.0.0.1:9000"}, "systems[1].address must differ", "127.0.0.1:9000"),
    ({"systems.0.boot_s": -1}, "systems[0].boot_s: must be a number >= 0", "-1"),
    ({"systems.0.boot_s": math.inf}, "systems[0].boot_s: must be a finite number", "inf"),
    ({"systems.0.clock_hz": math.inf}, "systems[0].clock_hz: must be a finite number", "inf"),
    ({"systems.0.boot_s": 1e5}, "systems[0].boot_s: must be a number >= 0 and <=", "100000.0"),
    ({"systems.0.clock_hz": 1e16}, "systems[0].clock_hz: must be a number > 0 and <=", "1e+16"),
    ({"defaults.nodes": 17}, "defaults.nodes must be at most nodes.count, 16", "17"),
    ({"defaults.tasks_per_node": 9}, "must be at most nodes.cpus, 128", "144"),
]


@pytest.mark.parametrize(("change", "where_and_rule", "got"), WRONG)
def test_a_wrong_file_says_where_rule_and_value(
    tmp_path: Path, change: dict[str, object], where_and_rule: str, got: str
) -> None:
    path = changed(tmp_path, change)
    with pytest.raises(UsageError) as error:
        load(path)
    message = str(error.value)
    assert message.startswith(path)
    assert where_and_rule in message
    assert got in message


@pytest.mark.parametrize("text", ["a: [", "", "just text", "- 1"])
def test_a_file_that_is_no_site_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"site\.yaml"):
        load(str(path))


@pytest.mark.usefixtures("state")
def test_numbers_may_have_an_exponent_without_a_dot(tmp_path: Path) -> None:
    text = (SHIPPED / "local.yaml").read_text()
    path = tmp_path / "site.yaml"
    path.write_text(text.replace("1.1e+9", "11e8"))
    assert load(str(path)).systems[0].clock_hz == 1.1e9


def test_an_unknown_site_lists_the_shipped_ones() -> None:
    with pytest.raises(UsageError, match=r"shipped site \(.*local"):
        load("nowhere")


@pytest.mark.usefixtures("state")
def test_the_option_beats_the_variable_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = changed(tmp_path, {"name": "other"})
    monkeypatch.setenv("CSRUN_SITE", other)
    assert load().name == "other"
    assert load("local").name == "local"


def test_a_path_resolves_to_what_holds_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("site.yaml") == str(tmp_path / "site.yaml")
    assert resolve("local") == "local"
