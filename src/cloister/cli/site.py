"""Where a party's files lie on a machine, whose they are, and what starts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from cloister.cli.output import Output
from cloister.core.errors import PlanError
from cloister.core.files import write_text
from cloister.federation.pki import make_folder

USER = "cloister"


@dataclass(frozen=True)
class Site:
    """A party's places on this machine.

    Parameters
    ----------
    root : Path
        "/" on a machine of its own; another folder to try things out, where no user is made and
        nothing is started.
    """

    root: Path
    role: str

    @classmethod
    def of(cls, root: Path | None, role: str) -> Site:
        """Return the places under a folder, or this machine's."""
        if root is not None or role == "analyst":
            return cls((root or Path.home() / "cloister").absolute(), role)
        if os.name != "posix" or os.geteuid() != 0:
            raise PlanError(
                "a service of its own user needs root: run this with sudo, or give --root DIR to "
                "put everything into a folder and start it yourself."
            )
        return cls(Path("/"), role)

    @property
    def etc(self) -> Path:
        """The folder of settings, keys and schema."""
        return self.root if self.role == "analyst" else self.root / "etc/cloister"

    @property
    def state(self) -> Path:
        """The folder of what a party writes while it runs."""
        return self.root / "var/lib/cloister"

    @property
    def keys(self) -> Path:
        """The folder of keys; two parties on one machine have two."""
        return self.etc / f"{self.role}-keys"

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.etc / f"{self.role}.toml"

    def write(self, values: Mapping[str, Any], out: Output) -> None:
        """Write the configuration file; one that is there is its owner's and stays."""
        text = (
            f"# All keys: cloister config init --role {self.role}\n"
            f"# What is set: cloister config check {self.config}\n"
        ) + tomli_w.dumps(values)
        if not self.config.exists():
            write_text(self.config, text, new=True)
            self.config.chmod(0o644)  # the service's user reads it, and it holds no secret
            return
        fresh = self.config.with_suffix(".new.toml")
        write_text(fresh, text)
        out.warn(f"{self.config} is there and stays; take what is new, such as pins, from {fresh}.")

    def start(self, out: Output, readable: Path | None = None) -> None:
        """Write the systemd unit, and where this is root's machine, give all to a user and start.

        Parameters
        ----------
        readable : Path, optional
            A file of records, which the user must be able to read.
        """
        units = self.root / "etc/systemd/system"
        units.mkdir(parents=True, exist_ok=True)
        make_folder(self.state)
        self.etc.chmod(0o755)  # whatever root's umask is; keys have a folder of their own
        unit = f"cloister-{self.role}"
        template = (files("cloister.cli") / "templates" / "cloister.service").read_text("utf-8")
        text = template.format(role=self.role, program=sys.executable, config=self.config)
        write_text(units / f"{unit}.service", text)
        home = ("--home-dir", str(self.state), "--shell", "/usr/sbin/nologin")
        owned = (str(self.keys), str(self.state))
        commands = [
            ("useradd", "--system", "--user-group", *home, USER),
            ("chown", "-R", f"{USER}:{USER}", *owned),
            ("systemctl", "daemon-reload"),
            ("systemctl", "enable", "--now", unit),
        ]
        if self.root != Path("/"):
            out.say(
                f"No user was made and nothing was started, since --root was given. To start it: "
                f"cloister {self.role} run --config {self.config}"
            )
            return
        if subprocess.run(("id", USER), capture_output=True).returncode == 0:
            commands.pop(0)
        if not Path("/run/systemd/system").is_dir():  # as systemd itself says to look
            commands = commands[:-2]
            out.say(
                f"No systemd here. To start it, as {USER}: cloister {self.role} run --config "
                f"{self.config}"
            )
        for command in commands:
            _run(command)
        if readable is not None and shutil.which("runuser"):
            test = ("runuser", "-u", USER, "--", "test", "-r", str(readable))
            if subprocess.run(test).returncode:
                out.warn(
                    f"user {USER!r} cannot read {readable}; give it the right to, such as by "
                    f"setfacl -m u:{USER}:r {readable}"
                )


def _run(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise PlanError(f"{command[0]!r} cannot be run: {error.strerror}.") from None
    if done.returncode:
        raise PlanError(f"{' '.join(command)!r} failed: {done.stderr.strip()}")
