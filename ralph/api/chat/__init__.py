"""The dialect of Chat Completions, which OpenAI, Gemini, DeepSeek, Mistral, OpenRouter, vLLM, Ollama and many others serve."""

from ralph.api.chat.request import ChatRequests
from ralph.api.chat.stream import ChatTranslator, events_of_whole


class ChatDialect(ChatRequests):
    """Implements `api/dialects.Dialect` for one server."""

    def translator(self) -> ChatTranslator:
        return ChatTranslator()

    whole = staticmethod(events_of_whole)


dialect = ChatDialect
