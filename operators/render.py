"""Render: makes the exact text of each row's prompt."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from operators.endpoint.render import EndpointRender
from operators.endpoint.server import ModelOrServer
from operators.engine.backend.loading import load_model
from operators.prompts.chat import Chat, prints, proofs
from operators.prompts.conversations import SYSTEM, USER, Messages
from operators.prompts.messages import NoPrompt, with_text_arguments
from operators.prompts.reasoning import KNOWN
from operators.prompts.rendering import ASSISTANT, Prompt, Rendering
from operators.prompts.row_images import RowImages
from operators.prompts.special_tokens import HAS_NAMES, NAMES_CHANGED, SpecialTokens
from operators.prompts.template import probe
from operators.prompts.template_process import TemplateProcess, shared_process
from operators.settings.model import TEXT
from pipeline.api.errors import ConfigError
from pipeline.api.machine_errors import of_machine
from pipeline.api.protocols import Runtime, Scope
from pipeline.api.records import Batch, Output

BYPASSED = (
    "the model has a chat template, and nodes.%s.op.%s bypasses it: a chat model answers worse without its turns. To"
    " keep them use data.prompt_template (or messages, or a step) instead; for a base model all is well"
)
UNREAD = "the chat template does not read %s, which changes nothing then; it reads %s"
DROPPED = (
    "the chat template prints no %s%s: %s. `python -m pipeline prompt` shows what the model is given; name another one"
    " with model.chat_template="
)
_TURN = "the-user-writes-here"
"""Stands for the content of a message, to find where the chat template would put it."""

_NONE = SpecialTokens(())
MOST_SHAPES = 10_000
"""Shapes of conversations that are known to be proved."""
TAGS = frozenset(text for tags in KNOWN for text in (tags.opening, tags.closing))
"""A template may look for them in an answer, to take its reasoning apart; it writes them itself then."""

Steps = Generator[dict[str, Any], str, str]
"""Makes a text, and for it asks for others: yields the values of each for the chat template."""
Prompts = Generator[dict[str, Any], str, Prompt]


class Render(Rendering, ModelOrServer):
    """Makes the text of each row's prompt: adds `prompt_text` (string), and `prompt_literals` (list<int32>): the
    characters of it at which the name of a control token begins that is the row's text, and no token.

    It is the model's chat template over a conversation: over `messages`, or one user message that
    `data.prompt_template` makes, or `data.messages_column` (`operators.prompts.messages` says what that may hold), or
    one user message from `data.prompt_column`. `model.system` comes first where a conversation has no system message.
    A model without a chat template is given a single user message as it is. A row that cannot be rendered (a prompt
    that is null or empty, a conversation without messages, `raise_exception`) is a reject.

    With `template` or `template_file` the text is that Jinja template over the row's columns (and `bos_token`,
    `eos_token`), given to the model as it is, without the turns that a chat model has learnt.

    The chat template also gets `model.template_kwargs`, `data.tools` and their columns; a key that it does not read is
    told once in the log. `data.continue_final_message` leaves the assistant's last message open.

    Where the model's file has a chat template of the name `tool_use`, too, rows with tools are rendered by that one.

    A BOS never comes twice: where the tokenizer puts one first (`add_bos`), that of the text is taken off, with the
    white space before it.

    With `model=endpoint` the server has the chat template: `prompt_text` is the list of messages as JSON, or with
    `model.api=completions` a text.

    Args:
        model: its chat template, unless `model.chat_template` names a file; its special tokens; `template_kwargs`.
        data: which columns hold prompts, template arguments and tools.
        template, template_file: a template over the columns, as text or as a file; at most one.
        raw_column: a column of texts that, where one is not null, are given to the model as they are: for rows that
            continue a text beside rows that are conversations.
        messages: a list of {role, content}, each content a template over the columns; role is system, user or
            assistant. Or the name of a column of whole conversations, instead of `data.messages_column`.
        writes: the role whose message the model writes: assistant, or user (then the prompt ends where the user's next
            message begins, as Magpie has it).
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by without a prompt.
        images: columns with images, in the place of `data.image_column`; [] for none. `{{ column }}` in a template puts
            them there; else they come before the text of the last user message.

    Example:
        render:
          inputs: read
          op:
            _target_: operators.render.Render
            model: ${model}
            data: ${data}
            messages:
              - {role: system, content: You write for children.}
              - {role: user, content: "Summarise in one sentence: {{ text }}"}
    """

    scope = Scope.ROW

    at_server = EndpointRender

    def open(self, runtime: Runtime) -> None:
        self._warn(runtime)
        model = load_model(runtime, self._model)
        self._special = {"bos_token": model.bos_token, "eos_token": model.eos_token}
        self._bos = model.bos_token if model.add_bos else ""
        self._special_tokens = model.special_tokens if self._model.special_tokens_in_text == TEXT else _NONE
        self._but_tags = self._special_tokens.without(TAGS)
        self._chat: Chat | None = None
        if self._row_template is not None:
            if (self._unproved or model.chat_template) is not None:
                runtime.log.warning(BYPASSED, runtime.node, "template" if self._file is None else "template_file")
            self._unproved = None
            return
        if self._unproved is not None:
            self._chat = Chat(self._unproved)
        elif model.chat_template is not None:
            processes = (self._process(runtime, each) for each in (model.chat_template, model.tool_template) if each)
            self._chat = Chat(*processes)
            self._chat.prove(self._proof())
        if self._chat is None and self._raw_column is None:
            self._check_no_chat_is_needed()
            runtime.log.info("the model has no chat template: the prompt is given to it as it is")
        self._read = set() if self._chat is None else set(self._chat.named)
        self._proved: set[tuple[str, bool]] = set()
        self._shapes: set[tuple[object, ...]] = set()
        self._log = runtime.log

    def process(self, batch: Batch) -> Iterable[Output]:
        if self._unproved is not None:  # not in `open`: here the watchdog can end a template that loops forever
            assert self._chat is not None
            probe(self._unproved, self._proof())
            self._chat.prove(self._proof())
            self._unproved = None
        yield from super().process(batch)

    def _process(self, runtime: Runtime, template: str) -> TemplateProcess:
        return shared_process(runtime, template, self._model.date_given, self._proof())

    def _proof(self) -> dict[str, Any]:
        """Return the values of a conversation of one word, which every chat template must render."""
        return self._chat_values([{"role": USER, "content": "x"}], self._model.template_kwargs or {})

    def _texts(self, rows: Sequence[tuple[Any, ...]]) -> list[Prompt | Exception]:
        return in_turns([self._prompt(values) for values in rows], self._chat)

    def _raw(self, text: str) -> Prompt:
        return self._found(text, self._special_tokens.mark(text))

    def _found(self, text: str, marked: str, images: RowImages | None = None) -> Prompt:
        """Return the prompt that `text` is, with the names that are `marked`, and the images that it has marks of."""
        plain, in_order = (text, []) if images is None else images.settled(text)
        if marked is text:
            return Prompt(plain, images=in_order)
        literals = self._special_tokens.places(plain, marked if images is None else images.plain(marked))
        if literals is None:
            raise NoPrompt(NAMES_CHANGED)
        return Prompt(plain, literals, HAS_NAMES if literals else "", in_order)

    def _prompt(self, values: tuple[Any, ...]) -> Prompts:
        """Make the prompt of a row with these `values` of the columns that are read: yield the values that the chat
        template shall render, and go on with the text."""
        row = dict(zip(self._columns, values, strict=True))
        images = self._images_of(row)
        if self._row_template is not None or self._chat is None:
            marked_row = self._special_tokens.mark(row)
            text = self._without_chat(row, images)
            return self._found(text, text if marked_row is row else self._without_chat(marked_row, images), images)
        messages = self._messages(row, images)
        for message in self._with_system(messages):
            if message.get("tool_calls"):
                message.setdefault("content", self._chat.no_content)
        arguments = self._arguments.of(row)
        if unread := arguments.keys() - self._read:
            self._read |= unread
            self._log.warning(UNREAD, ", ".join(sorted(unread)), ", ".join(sorted(self._chat.unknown)))
        yield from self._prove(messages, arguments)
        text = yield from self._rendered(messages, arguments)
        for answers in (self._special_tokens, self._but_tags):
            marked = self._marked(messages, arguments, answers)
            if marked is None:
                return self._found(text, text, images)
            try:
                marked_text = yield from self._rendered(*marked)
            except Exception as error:  # an expression of the template may raise anything
                if of_machine(error):
                    raise
                continue
            with suppress(NoPrompt):
                return self._found(text, marked_text, images)
        raise NoPrompt(NAMES_CHANGED)

    def _without_chat(self, row: dict[str, Any], images: RowImages | None) -> str:
        if self._row_template is not None:
            return self._row_template.render({**self._special, **row})
        if self._raw_column is not None:
            raise NoPrompt(
                "the model has no chat template, so it can only continue texts; name a template with"
                " model.chat_template="
            )
        return str(self._messages(row, images)[0]["content"])

    def _prove(self, messages: Messages, arguments: Mapping[str, Any]) -> Generator[dict[str, Any], str, None]:
        """Say once of each kind of message that a row has, and of its tools, that the chat template drops it."""
        shape = (
            *((m["role"], bool(m.get("content")), bool(m.get("tool_calls"))) for m in messages),
            "tools" in arguments,
        )
        if shape in self._shapes:
            return
        if len(self._shapes) < MOST_SHAPES:
            self._shapes.add(shape)
        tools = arguments.get("tools") if self._chat is not None and "tools" in self._chat.named else None
        for part, conversation, beside in proofs(messages, tools):
            if (kind := (part, bool(beside))) in self._proved:
                continue
            self._proved.add(kind)
            with suppress(Exception):  # what it raises for the row is the reason of its reject
                if not prints((yield from self._rendered(conversation, {**arguments, **beside}))):
                    system = part == f"{SYSTEM} message" and self._model.system is not None
                    lost = "model.system changes nothing" if system else "what the rows have of it is lost"
                    where = " where there are tools" if beside and part != "tools" else ""
                    self._log.warning(DROPPED, part, where, lost)

    def _rendered(self, messages: Messages, arguments: Mapping[str, Any]) -> Steps:
        try:
            return (yield from self._chat_text(messages, {"tools": None, "documents": None, **arguments}))
        except TypeError:  # it loops over tools that are None, or appends the arguments of a call to a text
            return (yield from self._chat_text(with_text_arguments(messages), arguments))

    def _marked(
        self, messages: Messages, arguments: Mapping[str, Any], answers: SpecialTokens
    ) -> tuple[Messages, Mapping[str, Any]] | None:
        """Return messages and arguments of a row with the names of control tokens marked, in the assistant's messages
        those of `answers`; None if there are none. Roles, and what the job gives, are the template's words."""
        mark, in_answers, of_job = self._special_tokens.mark, answers.mark, self._model.template_kwargs or {}
        changed: list[tuple[int, str, Any]] = []
        for i, message in enumerate(messages):
            its = in_answers if message["role"] == ASSISTANT else mark
            changed += [(i, key, new) for key, v in message.items() if key != "role" and (new := its(v)) is not v]
        values = {k: new for k, v in arguments.items() if of_job.get(k) is not v and (new := mark(v)) is not v}
        if not changed and not values:
            return None
        copies = [dict(message) for message in messages]
        for i, key, new in changed:
            copies[i][key] = new
        return copies, {**arguments, **values}

    def _chat_text(self, messages: Messages, arguments: Mapping[str, Any]) -> Steps:
        last = messages[-1] if messages else {}
        if self._user_writes:
            values = self._chat_values([*messages, {"role": USER, "content": _TURN}], arguments)
            prefix, marker, _ = (yield {**values, "add_generation_prompt": False}).partition(_TURN)
            if not marker:
                raise NoPrompt("the chat template does not print the content of a last user message, so none can begin")
            return prefix
        if not self._data.continue_final_message or last.get("role") != ASSISTANT:
            return (yield self._chat_values(messages, arguments))
        marked = {**last, "content": f"{last.get('content', '')}{_TURN} "}
        text = yield {**self._chat_values([*messages[:-1], marked], arguments), "add_generation_prompt": False}
        prefix, marker, after = text.rpartition(_TURN)
        if not marker or str(last.get("content", "")).strip() not in prefix:
            raise NoPrompt("the chat template does not print the last message as it is, so it cannot be continued")
        return prefix if after.startswith(" ") else prefix.rstrip()  # a template that strips a message, strips its end

    def _chat_values(self, messages: Messages, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**arguments, "messages": messages, "add_generation_prompt": True, **self._special}

    def _check_no_chat_is_needed(self) -> None:
        system = None if self._model.system is None else f"model.system={self._model.system!r}"
        writes = "writes=user" if self._user_writes else None
        opened = "data.continue_final_message" if self._data.continue_final_message else None
        needs = (self._conversations.needs_chat, system, writes, self._arguments.setting, opened)
        if (setting := next(filter(None, needs), None)) is not None:
            raise ConfigError(
                f"{setting} needs a chat template and the model has none; name a file with"
                " model.chat_template=, or write a template over the columns"
            )


def in_turns(prompts: Sequence[Prompts], chat: Chat | None) -> list[Prompt | Exception]:
    """Make `prompts` side by side, so that `chat` renders at once what all ask for; an exception may stand for one."""
    results: dict[int, Prompt | Exception] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(prompts)))
    while answers:
        requests: dict[int, dict[str, Any]] = {}
        for i, answer in answers.items():
            try:
                requests[i] = prompts[i].throw(answer) if isinstance(answer, Exception) else prompts[i].send(answer)
            except StopIteration as end:
                results[i] = end.value
            except Exception as error:  # an expression of a template may raise anything
                if of_machine(error):
                    raise
                results[i] = error
        answers = {} if chat is None else dict(zip(requests, chat.render_all(list(requests.values())), strict=True))
    return [results[i] for i in range(len(prompts))]
