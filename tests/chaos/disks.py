"""Round on a disk that fails: full, or broken, for one call or from one on."""

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chaos.configurations import CONFIGURATIONS, Configuration, Results, is_over, place_of
from chaos.rounds import BYTES, CAUSE, CODE, HUNG, Round, end_of, finish, judge_left

SOURCE = Path(__file__).with_name("failing_disk.c")
MOST_CALLS = 400  # that change something in a model_dir, in the whole training
# How each of them is said: in csrun's words, or in the C library's.
ERRORS = {
    errno.ENOSPC: ("disk full", os.strerror(errno.ENOSPC)),
    errno.EIO: (os.strerror(errno.EIO),),
}
HAS_COMPILER = shutil.which("cc") is not None


def compiled(folder: Path) -> Path:
    """Library to preload."""
    library = folder / "failing_disk.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return library


def disk_round(
    folder: Path, seed: str, reference_of: Callable[[Configuration], Results], library: Path
) -> Round:
    """Train on a failing disk, and resume on an intact one."""
    found = Round(f"scripts/chaos --again disk:{seed}")
    chance = random.Random(f"disk {seed}")
    configuration = CONFIGURATIONS[chance.choice(("streaming", "pipelined"))]
    number, for_good = chance.choice(list(ERRORS)), chance.choice("01")
    call = chance.randint(1, MOST_CALLS)
    sound = place_of(folder / f"disk-{seed}", configuration)
    variables = {
        "LD_PRELOAD": str(library),
        "CHAOS_FOLDER": os.path.realpath(sound.model_dir),
        "CHAOS_AT": str(call),
        "CHAOS_ERRNO": str(number),
        "CHAOS_FOR_GOOD": for_good,
    }
    place = replace(sound, variables=tuple(variables.items()))
    with configuration.start(place) as launcher:
        ended = end_of(place, launcher)
    what = f"{os.strerror(number)} at call {call}{' and all later' * int(for_good)}"
    said = ended.out + ended.err
    found.disturbed = int(ended.code != 0 or _is_named(number, said))
    if ended.code is None:
        found.blame(HUNG, f"{what}: {said[-4000:]}")
    elif "Traceback" in ended.err:
        found.blame(CAUSE, f"{what}: {ended.err}")
    elif ended.code == 0 and not is_over(place, configuration):
        found.blame(BYTES, f"{what}: exit code 0 without the last checkpoint")
    elif ended.code not in (0, 1):
        found.blame(CODE, f"exit code {ended.code}: {what}: {ended.err}")
    elif ended.code and (len(ended.errors) != 1 or not _is_named(number, ended.errors[0])):
        found.blame(CAUSE, f"{what}: {ended.err}")
    judge_left(found, place, what)
    finish(found, sound, configuration, reference_of(configuration))
    return found


def _is_named(number: int, text: str) -> bool:
    return any(words in text for words in ERRORS[number])
