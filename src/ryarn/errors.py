"""The exceptions with a message for the user: bad input, a failed self-test, a failed training."""


class UserError(ValueError):
    """Bad input. The message is one sentence that names the field, its value and the remedy.

    The command line prints the message alone and exits with code 2; from Python it is a
    `ValueError` like any other.
    """


class SelfTestError(RuntimeError):
    """The model does not do what the method needs; the message names the module.

    The command line prints the message alone and exits with code 1.
    """


class TrainingError(RuntimeError):
    """Training went wrong: the message names the step and the rows, and what is kept.

    The command line prints the message alone and exits with code 1.
    """
