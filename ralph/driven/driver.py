"""A run that another program, the driver, steers over standard input. Each user message is a task with its own result.
`steering.py` handles control requests. `permissions/gate.py` decides when the driver's hooks and callback are asked.

`SessionFacts` tells the driver facts about the run: models, commands, and how full the context is. The sizes of its parts
are estimates from bytes, scaled to the last estimate of the whole request.
"""

from __future__ import annotations

import math
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ralph.conversation.messages import to_json
from ralph.driven.control_channel import ControlChannel, why_unusable
from ralph.driven.questions import DriverServers, Question, Questions, Replies
from ralph.driven.steering import Progress, Steering
from ralph.machine.starting import patiently
from ralph.output.stream_json import OUTPUT_STYLE, READERS_WANT_VERSION
from ralph.permissions.gate import Decision, HookFailedError
from ralph.permissions.hook_answers import PROMPT, HookAnswer, check_keys, hook_answer
from ralph.prompt.commands import CommandFile, as_text, read_command
from ralph.run.parts import build_roster, why_uncountable
from ralph.settings.tables import EFFORTS, Settings
from ralph.values.events import Event, MessageTaken, RunEnded, SessionStateChanged
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import Clock, Interrupted
from ralph.values.servers import ANTHROPIC, is_default, vendor_elsewhere
from ralph.values.tool_choice import MCP_PREFIX
from ralph.values.usage import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ralph.conversation.target import Target
    from ralph.driven.control_lines import HookTable, Response, UserMessage
    from ralph.machine.waiter import Inbox
    from ralph.output.writer import Writer
    from ralph.permissions.rule import Matcher
    from ralph.prompt.memory import MemoryFile
    from ralph.retry.targets import Roster
    from ralph.run.command import Run
    from ralph.run.session_run import SessionRun
    from ralph.values.answer import ToolCall
    from ralph.values.controls import PermissionMode, RunControls
    from ralph.values.redaction import Redactor

_FAILED = "Tool permission request failed"


class DriverAsking:
    """Implements the ports `Hooks` and `Asker`."""

    def __init__(
        self,
        hooks: Callable[[], HookTable],
        questions: Questions,
        tell_state: Callable[[str], None],
        within_s: float,
    ) -> None:
        """`hooks` returns those that the driver has registered so far. `tell_state` tells it one of the states of
        `SessionStateChanged`. `within_s` limits a question about a call.
        """
        self._hooks = hooks
        self._questions = questions
        self._tell_state = tell_state
        self._within_s = within_s
        self._prompt_id = str(uuid.uuid4())

    def answers(
        self, event: str, fields: Mapping[str, Any], covers: Callable[[Matcher], bool]
    ) -> Sequence[HookAnswer]:
        """Calls all hooks of an event at the same time, and returns their answers. Raises HookFailedError."""
        if event == PROMPT:
            self._prompt_id = str(uuid.uuid4())
        tool_use_id = str(uuid.uuid4()) if event == PROMPT else fields.get("tool_use_id")
        known_id = {} if tool_use_id is None else {"tool_use_id": tool_use_id}
        told = {"prompt_id": self._prompt_id, **fields}
        waiting_for = f"the driver's {event} hook" + (
            f" for {fields['tool_name']}" if "tool_name" in fields else ""
        )
        questions = [
            Question(
                {"subtype": "hook_callback", "callback_id": hook, **known_id, "input": told},
                waiting_for,
                within_s,
            )
            for hook, within_s in self._hooks().matching(event, covers).items()
        ]
        return [_hook_answer(reply) for reply in self._questions.ask(questions)] if questions else ()

    def decide(self, call: ToolCall, reason: str | None) -> Decision:
        question = Question(
            permission_request(call, reason), f"permission to run {call.name}", self._within_s
        )
        self._tell_state("requires_action")
        try:
            [reply] = self._questions.ask([question])
        finally:
            self._tell_state("running")
        if reply.error is not None:
            return Decision(f"{_FAILED}: {reply.error}. The call was not run")
        try:
            return decision_of(reply.fields)
        except ValueError as error:
            return Decision(f"{_FAILED}: the answer is not valid: {error}")


def _hook_answer(reply: Response) -> HookAnswer:
    """Raises HookFailedError if the reply contains no usable answer."""
    if reply.error is not None:
        raise HookFailedError(reply.error)
    try:
        return replace(hook_answer(reply.fields), hook="of the driver")
    except ValueError as error:
        raise HookFailedError(f"its answer is not valid: {error}") from error


class Allow(Struct, frozen=True, rename="camel", tag_field="behavior", tag="allow"):
    updated_input: dict[str, Any] | None = None
    updated_permissions: tuple[dict[str, Any], ...] | None = None


class Deny(Struct, frozen=True, tag_field="behavior", tag="deny"):
    message: str = "no reason was given"
    interrupt: bool = False


def permission_request(call: ToolCall, reason: str | None) -> dict[str, Any]:
    """The request that asks a driver about a call. `reason` is the reason for asking, or None."""
    request: dict[str, Any] = {
        "subtype": "can_use_tool",
        "tool_name": call.name,
        "display_name": call.name,
        "input": call.arguments,
        "tool_use_id": call.id,
        "permission_suggestions": [],
    }
    if isinstance(description := call.arguments.get("description"), str):
        request["description"] = description
    if reason is not None:
        request["decision_reason"] = reason
    return request


class SetMode(Struct, frozen=True, tag_field="type", tag="setMode"):
    mode: str


class AddRules(Struct, frozen=True, rename="camel", tag_field="type", tag="addRules"):
    behavior: Literal["allow", "deny", "ask"]
    rules: tuple[NamedRule, ...] = ()


class NamedRule(Struct, frozen=True, rename="camel"):
    tool_name: str
    rule_content: str | None = None


def decision_of(fields: Mapping[str, Any]) -> Decision:
    """Decodes an answer to `can_use_tool`. Raises ValueError if it is invalid; the call is then denied."""
    try:
        answer = convert(fields, Allow | Deny)
    except ValidationError as error:
        raise ValueError(str(error)) from error
    if isinstance(answer, Deny):
        return Decision(answer.message, answer.interrupt)
    check_keys(fields, Allow)
    return _with_updates(Decision(arguments=answer.updated_input), answer.updated_permissions or ())


def _with_updates(decision: Decision, updates: tuple[dict[str, Any], ...]) -> Decision:
    """An update that gives permissions may be ignored."""
    mode: str | None = None
    allowed: list[str] = []
    ignored: list[str] = []
    refused: str | None = None
    for update in updates:
        kind = str(update.get("type"))
        try:
            decoded = convert(update, SetMode | AddRules)
        except ValidationError:
            ignored.append(kind)
            if update.get("behavior") != "allow" and kind != "removeRules" and "irectories" not in kind:
                refused = refused or f"{kind} ({update.get('behavior')})"
            continue
        match decoded:
            case SetMode(mode=name):
                mode = name
            case AddRules(behavior="allow", rules=rules):
                allowed += [rule.tool_name for rule in rules if rule.rule_content is None]
                ignored += [kind for rule in rules if rule.rule_content is not None]
            case AddRules(behavior=behavior):
                refused = refused or f"{kind} ({behavior})"
    return replace(
        decision, mode=mode, allowed=tuple(allowed), ignored=tuple(dict.fromkeys(ignored)), refused=refused
    )


# After one of these outcomes, the next task would end in the same way.
_BROKEN = frozenset({Outcome.IO_ERROR, Outcome.INTERNAL_ERROR})
# The part of a prompt in which a command may be called, if there is none.
_NO_PART = slice(0, 0)
# The Agent SDKs set it. Without the states, they close standard input after the first result.
_WANTS_STATES = "CLAUDE_CODE_SDK_READS_SESSION_STATE"


class MessageDriver:
    """Implements `Driver`."""

    def __init__(
        self, inbox: Inbox, controls: RunControls, clock: Clock, writer: Writer, emit: Callable[[Event], None]
    ) -> None:
        mailbox = inbox.mailbox()
        self._channel, self._replies, self._progress = ControlChannel(mailbox), Replies(), Progress(clock)
        self.emit = self._progress.emit
        self.steering = Steering(
            mailbox,
            controls,
            clock,
            self._progress,
            writer.respond,
            replies=self._replies,
            emit=emit,
            has_room=lambda: writer.has_room,
            acknowledge=self._channel.acknowledge,
        )

    def work(self, run: Run) -> int:
        """Works on the messages. Returns the exit code of the last result, or of a stop between two messages. Raises
        UsageError if the command line is wrong or no message came.
        """
        try:
            opened = self._open(run)
        except (Interrupted, Exception) as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            ended = run.ended_by(error)
            if isinstance(ended, UsageError):
                return run.deliver_misuse(ended)
            return run.deliver(_tell(run, ended), is_told=True).exit_code
        return _Messages(run, self.steering, opened).work()

    def _open(self, run: Run) -> SessionRun:
        options = run.context.options
        if options.prompt is not None or options.prompt_file is not None:
            raise UsageError("--input-format stream-json takes the tasks from standard input: give no prompt")
        if (problem := why_unusable(0)) is not None:
            raise UsageError(f"--input-format stream-json: {problem}")
        run.begin()
        context, steering, settings = run.context, self.steering, run.context.settings
        patiently(self._channel.start, context.waiter, context.clock)
        questions = Questions(run.writer.respond, self._replies, context.waiter, context.clock)
        setup = steering.wait_for_setup(context.waiter)
        configured = [server.name for server in settings.mcp_servers if server.transport == "sdk"]
        names, servers = tuple(dict.fromkeys((*configured, *setup.servers))), None
        if names:
            start_s, call_s = settings.mcp.start_s, settings.mcp.call_s
            servers = DriverServers(names, questions, start_s=start_s, call_s=call_s)
            # A driver may answer its servers' messages only after ralph has answered `initialize`.
            steering.open(SessionFacts(build_roster(context, (), None)[0], settings, context.redactor))
        within_s = settings.clocks.driver_s or math.inf
        asking = DriverAsking(
            lambda: steering.setup.hooks, questions, lambda state: _tell_state(run, state), within_s
        )
        opened = run.open(
            replace(context, options=setup.applied_to(options)),
            has_prompt=True,
            hooks=(asking,),
            asker=asking if options.permissions == "driver" else None,
            of_driver=servers,
        )
        opened.announce(settings.warnings, has_prompt=True)
        steering.open(SessionFacts(opened.parts.roster, settings, context.redactor, opened))
        return opened


def _tell_state(run: Run, state: str) -> None:
    if run.context.environment.get(_WANTS_STATES) == "1":
        run.context.events.emit(SessionStateChanged(state))


def _tell(run: Run, ended: RunEnded) -> RunEnded:
    ended = run.tell(ended)
    run.writer.tell(ended)
    return ended


class _Messages:
    """Works on the messages that a driver sends to one open session, one after another."""

    def __init__(self, run: Run, steering: Steering, opened: SessionRun) -> None:
        self._run = run
        self._waiter = run.context.waiter
        self._steering = steering
        self._opened = opened
        self._has_worked = False

    def work(self) -> int:
        """Works on all messages and returns the exit code. Raises UsageError if there was no message."""
        last: RunEnded | None = None
        while last is None or not (last.outcome in _BROKEN or self._waiter.was_stopped):
            try:
                message = self._steering.next_message(self._waiter)
            except Interrupted as stop:
                return self._stopped_between(stop, last)
            if message is None:
                break
            last = self._work_on(message)
        if last is None:
            self._opened.session.forget()
            self._run.close_without_result()
            raise UsageError("standard input held no user message")
        self._refuse_the_rest(last)
        if not self._has_worked:
            self._opened.session.forget()
        return self._run.deliver(last, is_told=True).exit_code

    def _work_on(self, message: UserMessage) -> RunEnded:
        run = self._run
        missing = self._steering.missing_guard
        if missing is not None:
            told = _tell(run, run.ended_early(Outcome.CONFIG, missing))
            _tell_state(run, "idle")
            return told
        self._has_worked = True
        self._steering.begin_work()
        _tell_state(run, "running")
        if run.context.options.replays_messages:
            run.context.events.emit(MessageTaken(message.content, message.uuid))
        own = _NO_PART if message.is_verbatim else None
        try:
            ended = self._opened.work(message.content, own)
        except (Interrupted, Exception) as error:
            ended_by = run.ended_by(error)
            if isinstance(ended_by, UsageError):
                raise ended_by from error
            ended = ended_by
        finally:
            self._steering.end_work()
        told = _tell(run, ended)
        if not self._steering.has_message:
            _tell_state(run, "idle")
        return told

    def _stopped_between(self, stop: Interrupted, last: RunEnded | None) -> int:
        """The exit code of a run that was stopped between two messages. `last` is the result before, or None."""
        stopped = self._run.ended_early(stop.outcome, str(stop), stop.signal_number)
        has_refused = self._refuse_the_rest(stopped)
        if last is None:
            self._opened.session.forget()
            if not has_refused:
                _tell(self._run, stopped)
        return self._run.deliver(stopped, is_told=has_refused or last is None).exit_code

    def _refuse_the_rest(self, end: RunEnded) -> bool:
        with suppress(Interrupted):  # after a second signal, the lines read so far must suffice
            self._steering.take_last_lines(self._waiter)
        why = end.errors[-1] if end.errors else end.outcome.value
        early = self._run.ended_early(end.outcome, f"not started: {why}")
        refused = replace(early, exit_code=end.exit_code, duration_s=0.0)
        has_refused = self._steering.has_message
        while self._steering.has_message:
            self._steering.next_message(self._waiter)
            _tell(self._run, refused)
        return has_refused


# Drivers that draw the parts expect a color for each of them.
_COLORS = {
    "System prompt": "blue",
    "System tools": "yellow",
    "MCP tools": "cyan",
    "Memory files": "orange",
    "Messages": "green",
}


class SessionFacts:
    def __init__(
        self, roster: Roster, settings: Settings, redactor: Redactor, opened: SessionRun | None = None
    ) -> None:
        """`opened` is None before the session is open."""
        self._roster = roster
        self._settings = settings
        self._redactor = redactor
        self._opened = opened

    def choose(self, requested: str | None) -> str:
        """The name of the requested target, or else of the requested model. For None, that of the first target. Raises
        ValueError if the model is not available, is one of another vendor, has a credential in its name, or has no
        known price while a budget is set.
        """
        if requested is not None and self._redactor.redact(requested) != requested:
            # The journal and every result would contain it as the name of the model.
            raise ValueError('"model" holds a credential, not a model\'s name')
        target = self._roster.find(requested)
        elsewhere = vendor_elsewhere(target.model, target.base_url)
        if elsewhere is not None and target not in self._roster.targets:
            raise ValueError(
                f"{target.model} is a model of {elsewhere}, and this run asks {target.base_url}: name it at the start "
                "(--fallback-model), or in [[targets]]"
            )
        problem = why_uncountable(target, self._settings)
        if problem is not None:
            raise ValueError(problem)
        return target.name if target in self._roster.targets else target.model

    @property
    def serving(self) -> str:
        """The name of the target that requests currently go to."""
        return self._roster.target.name

    def introduction(self, mode: PermissionMode) -> dict[str, Any]:
        """The response to `initialize`. `models` lists only names that `set_model` accepts. Features that ralph lacks
        are empty lists.
        """
        library = None if self._opened is None else self._opened.parts.library
        return {
            "commands": []
            if library is None
            else [_described(library.files[name]) for name in library.names],
            "agents": [],
            "models": [_model(target) for target in _choices(self._roster)],
            "account": _account(self._roster.first),
            "output_style": OUTPUT_STYLE,
            "available_output_styles": [OUTPUT_STYLE],
            "claude_code_version": READERS_WANT_VERSION,
            "current_permission_mode": mode.value,
            "hook_on_failure_supported": True,
        }

    def mcp_status(self) -> list[dict[str, Any]]:
        """The connected MCP servers of the run."""
        mcp = None if self._opened is None else self._opened.parts.mcp
        return [
            {
                "name": name,
                "status": "connected",
                "tools": [{"name": tool, "annotations": {}} for tool in tools],
            }
            for name, tools in ({} if mcp is None else mcp.tools_by_server()).items()
        ]

    def context_usage(self) -> dict[str, Any]:
        """The response to `get_context_usage`. Raises ValueError while the session is not open."""
        if self._opened is None:
            raise ValueError("the session is not open yet")
        roster, loop = self._roster, self._opened.loop
        total_tokens = roster.estimate(loop.conversation, loop.log.session.meter)
        window = roster.window or total_tokens
        head = roster.shape.head()
        tools = head.fields.get("tools", [])
        memory = list(_memory_in(head.body, self._opened.parts.memory_files, self._redactor))
        mcp = None if self._opened is None else self._opened.parts.mcp
        servers = {} if mcp is None else mcp.server_of_each()
        of_servers = [
            # A resumed session may offer tools of servers that this run does not have.
            (
                {"name": name, "serverName": servers.get(name) or name.split("__")[1], "isLoaded": True},
                len(to_json(tool)),
            )
            for tool in tools
            if (name := tool["name"]).startswith(MCP_PREFIX)
        ]
        tool_bytes = len(to_json(tools))
        memory_bytes, mcp_bytes = (sum(size for _, size in parts) for parts in (memory, of_servers))
        sizes = (
            max(len(head.body) - tool_bytes - memory_bytes, 0),
            tool_bytes - mcp_bytes,
            mcp_bytes,
            memory_bytes,
            max(loop.conversation.size * BYTES_PER_TOKEN - len(head.body), 0),
        )

        def tokens(size_bytes: int) -> int:
            return round(total_tokens * size_bytes / (sum(sizes) or 1))

        used = [
            {"name": name, "tokens": tokens(size), "color": color, "kind": "used"}
            for (name, color), size in zip(_COLORS.items(), sizes, strict=True)
        ]
        left = max(window - total_tokens, 0)
        return {
            "categories": [*used, {"name": "Free space", "tokens": left, "color": "gray", "kind": "free"}],
            "totalTokens": total_tokens,
            "maxTokens": window,
            "rawMaxTokens": window,
            "percentage": round(100 * total_tokens / window) if window else 0,
            "gridRows": [],
            "model": roster.target.model,
            "memoryFiles": [{**facts, "tokens": tokens(size)} for facts, size in memory],
            "mcpTools": [{**facts, "tokens": tokens(size)} for facts, size in of_servers],
            "agents": [],
            "isAutoCompactEnabled": True,
            "apiUsage": None,
        }


def _memory_in(
    head: bytes, files: Sequence[MemoryFile], redactor: Redactor
) -> Iterator[tuple[dict[str, str], int]]:
    """The instruction files in a request's head, in Claude Code's words, with sizes in bytes. A resumed session keeps
    its system prompt, so a file counts only if its section is there.
    """
    kinds: dict[str, str] = {}
    for file in files:  # an importer precedes its imports, which have its word
        own = "Local" if file.path.endswith("/CLAUDE.local.md") else "Project"
        kinds[file.path] = "User" if file.is_users else kinds.get(file.imported_by or "", own)
        sent = to_json(redactor.redact(file.section))[1:-1]
        if sent in head:
            yield {"path": file.path, "type": kinds[file.path]}, len(sent)


def _described(file: CommandFile) -> dict[str, str]:
    """Without a description if the file is unusable."""
    try:
        fields = read_command(file).fields
    except ValueError:
        fields = {}
    about, hint = (as_text(fields.get(key, "")) for key in ("description", "argument-hint"))
    return {"name": file.name, "description": about, "argumentHint": hint}


def _choices(roster: Roster) -> Iterator[Target]:
    """The run's targets, and the known models of Anthropic's API."""
    for name in roster.names:
        yield roster.find(name)
    if roster.can_grow and is_default(roster.first.base_url):
        for alias, model in roster.aliases.items():
            if model.id != roster.first.model:
                yield roster.find(alias)


def _model(target: Target) -> dict[str, Any]:
    facts = target.facts
    takes_effort = facts is not None and facts.takes_effort
    window = facts.context_window if facts is not None else None
    about = f"{target.model}, a window of {window:,} tokens" if window is not None else target.model
    return {
        "value": target.name,
        "resolvedModel": target.model,
        "displayName": target.name,
        "description": about,
        "supportsEffort": takes_effort,
        **({"supportedEffortLevels": list(EFFORTS)} if takes_effort else {}),
    }


def _account(first: Target) -> dict[str, str]:
    """The source of the first target's credential, such as an environment variable."""
    key = first.credentials[0] if first.credentials else None
    is_token = key is not None and key.header == "authorization" and first.api == ANTHROPIC
    return {
        "tokenSource": key.source if key is not None and is_token else "none",
        "apiKeySource": key.source if key is not None and not is_token else "none",
        "apiProvider": "firstParty",
    }
