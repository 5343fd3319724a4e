"""A silo's agent inside NVIDIA FLARE: the one class that a site lets jobs name.

The job contains no code and no settings. Data, ledger, keys and policy come from the silo's own
configuration file in the site's kit, ``local/silo.toml``, which no job and no server can change.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from cloister.core.errors import PlanError
from cloister.federation.flare.transport import TOPIC, answering
from cloister.federation.settings import SiloSettings, load_settings
from cloister.federation.silo.agent import Agent
from cloister.federation.silo.main import open_agent

CONFIG = "silo.toml"


class FlareSilo(Executor):
    """Answers the coordinator's messages of one FLARE job with this silo's agent."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()
        self.register_event_handler(EventType.START_RUN, self._start)
        self.register_event_handler(EventType.ABOUT_TO_END_RUN, self._end)

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Refuse all tasks of FLARE, since cloister's jobs contain none."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def open_agent(self, settings: SiloSettings) -> Agent:
        """Return the agent that answers."""
        return open_agent(settings, wait=self._ended.wait)

    def _start(self, event_type: str, fl_ctx: Any) -> None:
        engine = fl_ctx.get_engine()
        settings = load_settings(Path(engine.get_workspace().get_site_config_dir()) / CONFIG)
        site = fl_ctx.get_identity_name()
        if not isinstance(settings, SiloSettings) or settings.name != site:
            raise PlanError(
                f"local/{CONFIG} must be the configuration of a silo named {site!r}, as FLARE "
                f"names the site, got role {settings.role!r}."
            )
        # Jobs are parallel processes, and an audit file has one writer.
        own = settings.audit_log.with_name(f"{fl_ctx.get_job_id()}.{settings.audit_log.name}")
        agent = self.open_agent(settings.model_copy(update={"audit_log": own}))
        engine.register_aux_message_handler(TOPIC, answering(agent.on_message))

    def _end(self, event_type: str, fl_ctx: Any) -> None:
        self._ended.set()
