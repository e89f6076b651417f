"""What a user's command says about its run, for those who start it: read from its words. Pure."""

_PREPARING = ("compile_only", "validate_only")  # modes and switches of a run that needs no system


def is_preparing(command: tuple[str, ...]) -> bool:
    """True for a command that only compiles or validates."""
    mode = option(command, ("-m", "--mode"))
    return mode in _PREPARING or any(f"--{name}" in command for name in _PREPARING)


def option(command: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The value of an option in a command's words, in either form."""
    for word, following in zip(command, (*command[1:], None), strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None
