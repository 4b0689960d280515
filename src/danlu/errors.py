"""Errors that are shown to a person as one line, and the exit codes of the command line."""

from __future__ import annotations

EXIT_USAGE = 2
"""The input is at fault: a recipe, an argument, a file."""
EXIT_STOPPED = 3
"""The run stopped itself because going on made no sense."""
EXIT_FOUND = 4
"""The answer is bad news: the doctor found something of severity warning or above, or the planner nothing that fits."""
EXIT_INTERRUPTED = 130
"""The person interrupted it (128 + SIGINT, as shells report it)."""


class DanluError(Exception):
    """Something a person can mend. The message is one line: what is wrong, where, and the way out."""

    exit_code = 1


class UserError(DanluError):
    """The input is at fault; nothing was started and nothing was lost."""

    exit_code = EXIT_USAGE


class RunStopped(DanluError):
    """A run that stopped itself; it saved a checkpoint before, unless what it would have saved is what is wrong."""

    exit_code = EXIT_STOPPED


class Interrupted(DanluError):
    """A person or the machine's scheduler ended the run; a checkpoint was saved."""

    exit_code = EXIT_INTERRUPTED
