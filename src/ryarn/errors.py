"""The two exceptions with a message for the user: bad input, and a model that fails the test."""


class UserError(ValueError):
    """Bad input. The message is one sentence that names the field, its value and the remedy.

    The command line prints the message alone and exits with code 2; from Python it is a
    `ValueError` like any other.
    """


class SelfTestError(RuntimeError):
    """The model does not do what the method needs; the message names the module.

    The command line prints the message alone and exits with code 1.
    """
