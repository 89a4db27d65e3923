"""The one exception that means "your input, not our bug": one clear sentence, exit code 2."""


class UserError(ValueError):
    """Bad input. The message is one sentence that names the field, its value and the remedy.

    The command line prints the message alone and exits with code 2; from Python it is a
    `ValueError` like any other.
    """
