"""Job folders: which stay, and what stays in them."""

from pathlib import Path

from csrun.jobs.folder import KEPT_JOBS, create, prune


def test_the_newest_stay_and_so_do_the_living(tmp_path: Path) -> None:
    made = [create(tmp_path, number, f"job {number}") for number in range(1, KEPT_JOBS + 6)]
    (folder_of_2, alive), *_ = made[1:2]
    for _, live in made:
        if live is not alive:
            live.release()
    for folder, _ in made:
        (folder.path / "secret").touch()
    prune(tmp_path)
    alive.release()
    left = sorted(int(path.name) for path in tmp_path.iterdir())
    assert left == [2, *range(6, KEPT_JOBS + 6)]
    assert [path.parent.name for path in tmp_path.glob("*/secret")] == [folder_of_2.path.name]
