"""The sound twins of `tests.planted`: the project's own allocators, behind factories of the same kind."""

from tests.planted import build


def token(config):
    return build("token", (), config)


def paged(config):
    return build("paged", (), config)


def swa(config):
    return build("swa", (), config)
