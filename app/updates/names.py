"""How an update is called outside the process: `u-7` is number 7 of the log."""


def name_of(number: int) -> str:
    return f"u-{number}"


def number_of(name: str) -> int:
    return int(name.removeprefix("u-"))
