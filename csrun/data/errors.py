"""What is wrong with the user's data."""

from csrun.base.errors import CsrunError


class DataError(CsrunError):
    """A data set that cannot be read, or cannot be used as it was asked for."""


def require(condition: bool, where: str, rule: str, got: object) -> None:
    """Raise a DataError that states the rule and the value, unless `condition` holds."""
    if not condition:
        raise DataError(f"{where}: {rule}, got {got}")
