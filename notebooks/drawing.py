"""First version."""


def picture(path):
    return f"picture of {path.name}"


def columns(path, memory=(), synced=None, lost=""):
    return f"columns of {path.name}"
