"""What a user's command says about its run, for those who start it: read from its words. Pure."""

_PREPARING = ("compile_only", "validate_only")  # modes and switches of a run that needs no system
_MODE = ("-m", "--mode")
_TRAIN = "train"


def is_preparing(command: tuple[str, ...]) -> bool:
    """True for a command that only compiles or validates."""
    return prepared(command) != command


def prepared(command: tuple[str, ...]) -> tuple[str, ...]:
    """The training that a command compiles or validates for."""
    words: list[str] = []
    for word in command:
        name, _, value = word.partition("=")
        if name in _MODE and value in _PREPARING:
            words.append(f"{name}={_TRAIN}")
        elif word in _PREPARING and words and words[-1] in _MODE:
            words.append(_TRAIN)
        elif not _is_switch(word):
            words.append(word)
    return tuple(words)


def option(command: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The value of an option in a command's words, in either form."""
    for word, following in zip(command, (*command[1:], None), strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None


def _is_switch(word: str) -> bool:
    return word.startswith("--") and word[2:].replace("-", "_") in _PREPARING
