"""One test for a property of many data files: all offenders with their messages, not only the first."""


def offenders(things, check):
    """Return `thing: message` for each thing whose check fails."""
    found = []
    for thing in things:
        try:
            check(thing)
        except Exception as error:  # noqa: BLE001 - a list of messages for the assertion
            found.append(f"{thing}: {type(error).__name__}: {error}")
    return found
