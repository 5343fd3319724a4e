"""Import every module and run commands in a process that lacks what only POSIX has.

Other libraries are loaded before, since they ask once which system this is. ``os.name`` stays, as
paths of Windows cannot be made elsewhere; so do functions of `os` with which the standard library
does here what it does otherwise there.

python as_on_windows.py FOLDER
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
import warnings
from contextlib import suppress

LIBRARIES = """
asyncio cryptography.x509 fastapi httpx jinja2 matplotlib.pyplot multiprocessing numpy pandas
platform prometheus_client pyarrow.csv pyarrow.parquet pydantic rich.console scipy.stats
sklearn.base sqlalchemy subprocess tempfile tomli_w uvicorn websockets
"""
MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty")
OS = """
O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC chown chroot fchmod fchown fork
forkpty getegid geteuid getgid getgroups getpgid getuid initgroups killpg lchown memfd_create
mkfifo nice pread pwrite register_at_fork sched_getaffinity setgid setpgid setsid setuid sysconf
wait waitpid
"""
SIGNALS = """
SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 alarm
pthread_kill pthread_sigmask setitimer siginterrupt sigwait
"""
COMMANDS = """\
demo --out . --quiet
check north.csv --schema patients.toml --max-loss 0.1 --quiet
schema init north.csv --out new.toml --quiet
schema hash patients.toml --quiet
plan --schema patients.toml --columns age,bmi --k 2 --epsilon 1 --nominal-n 9000 --silos 2 --quiet
cluster north.csv east.csv --schema patients.toml --columns age,bmi --k 2 --epsilon 1 \
--nominal-n 9000 --max-loss 0.1 --ledger ledger.db --cache-dir . --out out --quiet
predict out/model.json north.csv --out labels.csv --quiet
export out/model.json --out numbers --quiet
verify out/model.json --quiet
budget show ledger.db --quiet
console --help"""
PARTIES = ("silo run --config a", "coordinator run --config a", "scorer run --config a")
OTHERS = ("join invitation.json", "federation demo", "federation invite")


class Absent:
    """What finds none of the modules that only POSIX has."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become_windows() -> None:
    """Take away what is not there."""
    for name in LIBRARIES.split():
        importlib.import_module(name)
    sys.meta_path.insert(0, Absent())  # type: ignore[arg-type]
    for name in MODULES:
        sys.modules.pop(name, None)
    for module, names in ((os, OS), (signal, SIGNALS)):
        for name in names.split():
            with suppress(AttributeError):  # macOS has not all
                delattr(module, name)
    sys.platform = "win32"
    # a file of text is in UTF-8, whatever this system's own encoding is
    warnings.filterwarnings("error", category=EncodingWarning, module=r"cloister(\.|\Z)")


def main() -> None:
    """Fail at the first module or command that needs what was taken away."""
    become_windows()
    import cloister
    from cloister.cli import main as run

    for module in pkgutil.walk_packages(cloister.__path__, "cloister."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    os.chdir(sys.argv[1])
    for line in COMMANDS.splitlines():
        # Nobody signs a release of one machine.
        code = 10 if line.startswith("verify") else 0
        assert run([*line.split()]) == code, line
    for line in (*PARTIES, *OTHERS):
        assert run(line.split()) == 3, line


if __name__ == "__main__":
    main()
