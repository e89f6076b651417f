"""A script that runs those of `support.refusals`, for jobs too; a name is that of a function.

One is run as it is, and ends with its error. Several print `name => message` for each.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from support.refusals import refusals  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402

SCRIPT = Path(__file__)


def main(names: list[str]) -> None:
    """Run the scripts of these names."""
    if len(names) == 1:
        refusals()[names[0]].provoke(Path(names[0]))
        return
    for name in names:
        try:
            refusals()[name].provoke(Path(name))
        except UsageError as error:
            print(f"{name} => {error}", flush=True)
        else:
            print(f"{name} => runs", flush=True)


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word.isidentifier()])
