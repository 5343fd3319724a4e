"""The paths of a party's files on a machine, their owner, and the service that starts it."""

from __future__ import annotations

import os
import shlex
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
    """The paths of a party on this machine.

    Parameters
    ----------
    root : Path
        "/" for a service of this machine. In another folder, for a trial, no user is created and
        no service is started.
    """

    root: Path
    role: str

    @classmethod
    def of(cls, root: Path | None, role: str) -> Site:
        """Return the paths under a folder, or those of this machine."""
        if root is not None or role == "analyst":
            return cls((root or Path.home() / "cloister").absolute(), role)
        if os.name != "posix" or os.geteuid() != 0:
            raise PlanError(
                "a service with its own user needs root rights: run this with sudo, or give --root "
                "DIR to put all files into a folder and start the party yourself."
            )
        return cls(Path("/"), role)

    @property
    def etc(self) -> Path:
        """The folder of settings, keys and schema."""
        # An analyst has a few files in one folder of a user, not in /etc.
        return self.root if self.role == "analyst" else self.root / "etc/cloister"

    @property
    def state(self) -> Path:
        """The folder of files that a party writes while it runs."""
        return self.root / "var/lib/cloister"

    @property
    def keys(self) -> Path:
        """The folder of keys, separate for two parties on one machine."""
        return self.etc / f"{self.role}-keys"

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.etc / f"{self.role}.toml"

    @property
    def _started(self) -> str:
        """The command that starts the party, for a shell."""
        return shlex.join(["cloister", self.role, "run", "--config", str(self.config)])

    def write(self, values: Mapping[str, Any], out: Output) -> None:
        """Write the configuration file; never replace one, since its owner may have edited it."""
        text = (
            f"# All keys: cloister config init --role {self.role}\n"
            f"# Current settings: cloister config check {self.config}\n"
        ) + tomli_w.dumps(values)
        if not self.config.exists():
            write_text(self.config, text, new=True)
            self.config.chmod(0o644)  # the service's user must read it, and it has no secret
            return
        # Next to it, so that the owner can compare both.
        fresh = self.config.with_suffix(".new.toml")
        write_text(fresh, text)
        out.warn(
            f"{self.config} exists and was not changed; copy new settings, such as pins, from "
            f"{fresh}."
        )

    def start(self, out: Output, readable: Path | None = None) -> None:
        """Write the systemd unit; under "/" also create the user, set owners and start the service.

        Parameters
        ----------
        readable : Path, optional
            A file of records that the user must be able to read.
        """
        units = self.root / "etc/systemd/system"
        units.mkdir(parents=True, exist_ok=True)
        make_folder(self.state)
        self.etc.chmod(0o755)  # independent of root's umask; the keys are in a private folder
        # One unit per role, so that two parties can run on one machine.
        unit = f"cloister-{self.role}"
        template = (files("cloister.cli") / "templates" / "cloister.service").read_text("utf-8")
        # Quoted as in a shell; systemd also expands a percent sign.
        program, config = (
            shlex.quote(str(path)).replace("%", "%%") for path in (sys.executable, self.config)
        )
        text = template.format(role=self.role, program=program, config=config)
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
                "Because of --root, no user was created and no service was started. To start it: "
                f"{self._started}"
            )
            return
        # Another party on this machine may have created the user.
        if subprocess.run(("id", USER), capture_output=True).returncode == 0:
            commands.pop(0)
        if not Path("/run/systemd/system").is_dir():  # the test of sd_booted(3)
            commands = commands[:-2]
            out.say(f"This machine has no systemd. To start it as {USER}: {self._started}")
        for command in commands:
            _run(command)
        if readable is not None and shutil.which("runuser"):
            # Folders above the file also need rights, so only a real test is reliable.
            test = ("runuser", "-u", USER, "--", "test", "-r", str(readable))
            if subprocess.run(test).returncode:
                out.warn(
                    f"user {USER!r} cannot read {readable}; grant the right, for example with "
                    f"setfacl -m u:{USER}:r {readable}"
                )


def _run(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise PlanError(
            f"{command[0]!r} cannot be run: {error.strerror}; install it, or use --root."
        ) from None
    if done.returncode:
        raise PlanError(f"{' '.join(command)!r} failed: {done.stderr.strip()}")
